// SPDX-License-Identifier: MIT OR Apache-2.0
//! STO-4: what is logged about a purge that fails, and about a store that cannot be purged.

use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::{Purge, StoreProfile};
use retryproof_core::{
    Error, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdempotencyStore, Result,
    SharedStore,
};
use retryproof_memory::MemoryStore;
use tokio::time::sleep;

use crate::outcomes::Told;

const SECOND: Duration = Duration::from_secs(1);

/// A store in which each batch of a purge takes a tenth of a second.
#[derive(Debug, Default)]
struct Batches {
    inner: MemoryStore,
    /// The results of the batches, the first one last.
    answers: Mutex<Vec<Result<usize>>>,
}

impl IdempotencyStore for Batches {
    retryproof_testkit::forward!(inner: acquire, peek, wait_for_change, extend, complete, release);

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("batches")
    }
}

impl Purge for Batches {
    async fn purge(&self, _: usize) -> Result<usize> {
        sleep(SECOND / 10).await;
        self.answers.lock().pop().unwrap_or(Ok(0))
    }
}

/// Creates an engine that purges every second.
fn engine(answers: Vec<Result<usize>>) -> IdempotencyEngine {
    let store = Batches { answers: Mutex::new(answers), ..Batches::default() };
    let mut config = IdempotencyConfig::default();
    config.purge.interval = SECOND;
    let store = SharedStore::builder(store).with_purge().build();
    IdempotencyEngine::builder(store).config(config).build().unwrap()
}

/// Acquires the engine's first lease, which starts the purge.
async fn begin(engine: &IdempotencyEngine) {
    let ctx = IdempotencyContext::builder("purges", "k").build().unwrap();
    assert!(engine.execute(ctx, || async { Ok::<_, &str>(1) }).await.unwrap().is_executed());
}

#[tokio::test(start_paused = true)]
async fn sto_4_a_purge_that_fails_is_logged_and_tried_again() {
    const FAILED: &str =
        " WARN retryproof_core::engine::purge: expired records could not be deleted";
    let (told, _listening) = Told::listen();
    let engine = engine(vec![Ok(7), Err(Error::unavailable("as planned"))]);
    begin(&engine).await;
    sleep(SECOND + SECOND / 2).await;
    assert_eq!((told.lines(FAILED), engine.activity().purged_ago), (1, None));
    sleep(2 * SECOND).await;
    assert!(engine.activity().purged_ago.is_some());
    assert_eq!(told.lines(FAILED), 0);
}

/// The part of the next test that runs in a separate process, because a process warns only once.
#[tokio::test(start_paused = true)]
async fn sto_4_child_starts_engines() {
    let Ok(kind) = std::env::var("RETRYPROOF_TEST_PURGE") else { return };
    let (told, _listening) = Told::listen();
    for _ in 0..2 {
        let store = match kind.as_str() {
            "without" => SharedStore::new(Batches::default()),
            "with" => SharedStore::builder(Batches::default()).with_purge().build(),
            _ => SharedStore::from(MemoryStore::new()),
        };
        begin(&IdempotencyEngine::new(store)).await;
    }
    let warning = " WARN retryproof_core::engine::purge: expired records are never deleted";
    println!("{} warnings", told.lines(warning));
}

#[test]
fn sto_4_a_store_that_never_deletes_records_causes_one_warning() {
    for (kind, said) in [("without", "1 warnings"), ("with", "0 warnings"), ("own", "0 warnings")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "purge_warnings::sto_4_child_starts_engines", "--nocapture"])
            .env("RETRYPROOF_TEST_PURGE", kind)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(said), "{kind}: {text}");
    }
}
