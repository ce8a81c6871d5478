// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking functions and methods, over `blocking::Engine`.

use std::sync::Barrier;
use std::thread;

use retryproof::blocking::Engine;
use retryproof::{ErrorKind, IdempotencyContext, MemoryStore, Outcome, Rejected, idempotent};

use super::{Failure, Runs};

struct Shop {
    engine: Engine,
    runs: Runs,
    sold: Vec<String>,
}

impl AsRef<Engine> for Shop {
    fn as_ref(&self) -> &Engine {
        &self.engine
    }
}

impl Shop {
    fn new() -> Self {
        let engine = Engine::new(MemoryStore::new()).expect("a thread for the heartbeat");
        Self { engine, runs: Runs::default(), sold: Vec::new() }
    }

    #[idempotent(key = article)]
    fn sell(&mut self, article: String) -> Result<usize, Failure> {
        self.runs.next();
        self.sold.push(article);
        Ok(self.sold.len())
    }

    #[idempotent(key = id, wait_timeout = "PT0S", lease = "PT9S")]
    fn slow(&self, id: u8, steps: &Barrier) -> Result<u32, Failure> {
        steps.wait();
        steps.wait();
        let _ = id;
        Ok(self.runs.next())
    }
}

#[idempotent(key = id, engine = shop)]
fn import(shop: &Shop, id: u8, fetch: fn() -> Result<u32, Failure>) -> Result<u32, Failure> {
    let _ = id;
    let fetched = fetch()?;
    Ok(fetched + shop.runs.next())
}

#[idempotent(key = id, fingerprint = amount, scope = "refund", engine = shop)]
fn refund(shop: &Shop, id: u8, amount: u64) -> Result<u32, Failure> {
    let _ = (id, amount);
    Ok(shop.runs.next())
}

#[test]
fn ann_1_fp_1_a_blocking_function_refuses_a_key_with_another_fingerprint() {
    let shop = Shop::new();
    assert_eq!(refund(&shop, 1, 100).unwrap(), 1);
    assert_eq!(refund(&shop, 1, 100).unwrap(), 1);
    assert!(matches!(refund(&shop, 1, 101), Err(Failure::Rejected(Rejected::Mismatch))));
}

#[test]
fn ann_1_ann_5_a_blocking_method_runs_once() {
    let mut shop = Shop::new();
    assert_eq!(shop.sell("tea".to_owned()).unwrap(), 1);
    assert_eq!(shop.sell("tea".to_owned()).unwrap(), 1);
    assert_eq!(shop.sell("rum".to_owned()).unwrap(), 2);
    assert_eq!(shop.sold, ["tea", "rum"]);
    assert_eq!(shop.runs.count(), 2);
}

#[test]
fn ann_1_ann_4_a_blocking_function_names_its_engine() {
    let shop = Shop::new();
    assert!(matches!(
        import(&shop, 1, || Err(Failure::Own("offline"))),
        Err(Failure::Own("offline"))
    ));
    assert_eq!(import(&shop, 1, || Ok(10)).unwrap(), 11);
    assert_eq!(import(&shop, 1, || Ok(20)).unwrap(), 11);
    let same =
        IdempotencyContext::builder(concat!(module_path!(), "::import"), "1").build().unwrap();
    let outcome = shop.engine.execute(same, || Err::<u32, _>(Failure::Own("ran"))).unwrap();
    assert_eq!(outcome, Outcome::Replayed(11));
}

#[test]
fn ann_5_a_blocking_duplicate_is_turned_away_while_the_first_runs() {
    let (shop, steps) = (Shop::new(), Barrier::new(2));
    thread::scope(|threads| {
        let first = threads.spawn(|| shop.slow(1, &steps));
        steps.wait();
        let after = shop.slow(1, &steps).unwrap_err().retry_after().expect("in flight");
        assert!((1..=9).contains(&after), "{after}");
        steps.wait();
        assert_eq!(first.join().expect("no panic").unwrap(), 1);
    });
    assert_eq!(shop.slow(1, &steps).unwrap(), 1);
    assert_eq!(shop.runs.count(), 1);
}

#[tokio::test]
async fn ann_1_a_blocking_function_refuses_to_stall_a_runtime() {
    let mut shop = Shop::new();
    assert_eq!(shop.sell("tea".to_owned()).unwrap_err().kind(), Some(ErrorKind::Unsupported));
    assert!(shop.sold.is_empty());
}
