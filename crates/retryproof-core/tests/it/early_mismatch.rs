// SPDX-License-Identifier: MIT OR Apache-2.0
//! FP-6: a scope with `fingerprint-while-in-flight = true` refuses a duplicate with another
//! fingerprint while the first call still runs.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::config::ScopeConfig;
use retryproof_core::observe::Counters;
use retryproof_core::store::AcquireRequest;
use retryproof_core::{
    Acquisition, ExecuteError, Fingerprint, HeldLease, IdempotencyConfig, IdempotencyContext,
    IdempotencyEngine, IdempotencyStore as _, OwnerId, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults};
use tokio::time::Instant;

use crate::outcomes::Told;

const EARLY: &str = "told";
const MINUTE: Duration = Duration::from_secs(60);

struct World {
    engine: IdempotencyEngine,
    store: SharedStore,
    faults: Faults,
    counters: Arc<Counters>,
}

/// Creates an engine on a store whose calls are counted, or on the bare memory store.
fn world(is_counted: bool) -> World {
    let (faults, counters) = (Faults::none(), Counters::new());
    let store = if is_counted {
        SharedStore::new(FaultStore::new(MemoryStore::new(), faults.clone()))
    } else {
        SharedStore::from(MemoryStore::new())
    };
    let mut config = IdempotencyConfig::default();
    let early = ScopeConfig { fingerprint_while_in_flight: Some(true), ..ScopeConfig::default() };
    config.scopes.insert(EARLY.to_owned(), early);
    let engine = IdempotencyEngine::builder(store.clone())
        .config(config)
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    World { engine, store, faults, counters }
}

fn fingerprint(bytes: &[u8]) -> Fingerprint {
    Fingerprint::new(bytes).unwrap()
}

fn context(scope: &'static str, bytes: &[u8]) -> IdempotencyContext {
    IdempotencyContext::builder(scope, "canary-k")
        .fingerprint(fingerprint(bytes))
        .wait_timeout(Duration::from_secs(5))
        .build()
        .unwrap()
}

fn plain(scope: &'static str) -> IdempotencyContext {
    let wait = Duration::from_secs(5);
    IdempotencyContext::builder(scope, "canary-k").wait_timeout(wait).build().unwrap()
}

async fn hold(engine: &IdempotencyEngine, ctx: IdempotencyContext) -> HeldLease {
    match engine.try_acquire(&ctx).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn fp_6_another_fingerprint_is_refused_while_the_first_call_runs() {
    for is_counted in [true, false] {
        let World { engine, faults, counters, .. } = world(is_counted);
        let _held = hold(&engine, context(EARLY, &[1, 1])).await;
        let (began, calls) = (Instant::now(), faults.calls());
        let found = engine.try_acquire(&context(EARLY, &[1, 2])).await.unwrap();
        assert!(matches!(found, Acquisition::Mismatch), "{found:?}");
        let run = || async { Ok::<u32, &str>(1) };
        let refused = engine.execute(context(EARLY, &[1, 2]), run).await;
        assert!(matches!(refused, Err(ExecuteError::Mismatch)), "{refused:?}");
        assert_eq!(began.elapsed(), Duration::ZERO, "nothing waits");
        if is_counted {
            assert_eq!(faults.calls() - calls, 2, "each call calls the store once");
        }
        let counts = counters.read();
        assert_eq!((counts.mismatch, counts.waiting, counts.in_flight), (2, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn fp_6_every_other_duplicate_waits() {
    for is_counted in [true, false] {
        let World { engine, counters, .. } = world(is_counted);
        let _held = hold(&engine, context(EARLY, &[1, 1])).await;
        for (what, ctx) in [
            ("the same fingerprint", context(EARLY, &[1, 1])),
            ("no fingerprint", plain(EARLY)),
            ("another algorithm", context(EARLY, &[2, 2])),
        ] {
            let began = Instant::now();
            let found = engine.try_acquire(&ctx).await.unwrap();
            assert!(matches!(found, Acquisition::InFlight(_)), "{what}: {found:?}");
            assert_eq!(began.elapsed(), Duration::from_secs(5), "{what}");
        }
        assert_eq!(counters.read().mismatch, 0);
    }
    let World { engine, .. } = world(false);
    let _held = hold(&engine, plain(EARLY)).await;
    let found = engine.try_acquire(&context(EARLY, &[1, 1])).await.unwrap();
    assert!(matches!(found, Acquisition::InFlight(_)), "the holder has no fingerprint: {found:?}");
}

#[tokio::test(start_paused = true)]
async fn fp_6_it_is_off_unless_configured() {
    let World { engine, .. } = world(true);
    let _held = hold(&engine, context("other", &[1, 1])).await;
    let began = Instant::now();
    let found = engine.try_acquire(&context("other", &[1, 2])).await.unwrap();
    assert!(matches!(found, Acquisition::InFlight(_)), "{found:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn fp_6_a_lease_that_is_over_refuses_nothing() {
    let World { engine, store, .. } = world(false);
    let ctx = context(EARLY, &[1, 1]);
    let dead = AcquireRequest::new(OwnerId::new(), Duration::from_secs(1), MINUTE)
        .with_fingerprint(ctx.fingerprint().copied())
        .comparing_in_flight();
    let _ = store.acquire(ctx.identity(), &dead).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let found = engine.try_acquire(&context(EARLY, &[1, 2])).await.unwrap();
    assert!(matches!(found, Acquisition::Granted(_)), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn fp_6_run_7_run_8_a_waiter_judges_a_new_holder() {
    let (told, _listening) = Told::listen();
    let World { engine, store, counters, .. } = world(false);
    let ctx = context(EARLY, &[1, 1]);
    let first = AcquireRequest::new(OwnerId::new(), MINUTE, MINUTE)
        .with_fingerprint(ctx.fingerprint().copied())
        .comparing_in_flight();
    let _ = store.acquire(ctx.identity(), &first).await.unwrap();
    let waiter = tokio::spawn({
        let (engine, ctx) = (engine.clone(), ctx.clone());
        async move { engine.try_acquire(&ctx).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The waiter is woken, but is polled only after the next grant.
    let _ = store.release(ctx.identity(), first.owner).await.unwrap();
    let next = AcquireRequest::new(OwnerId::new(), MINUTE, MINUTE)
        .with_fingerprint(Some(fingerprint(&[1, 2])))
        .comparing_in_flight();
    let _ = store.acquire(ctx.identity(), &next).await.unwrap();
    let found = waiter.await.unwrap().unwrap();
    assert!(matches!(found, Acquisition::Mismatch), "{found:?}");
    assert_eq!((counters.read().mismatch, counters.read().waiting), (1, 1));
    assert_eq!(told.outcomes(), ["mismatch"]);
}
