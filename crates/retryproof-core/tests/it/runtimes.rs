// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine on several runtimes, and on a store that does not always answer at once.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Peeked};
use retryproof_core::{
    Acquiring, Acquisition, Attempt, IdempotencyContext, IdempotencyEngine, IdempotencyStore,
    Identity, Result, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{CallLog, Operation, Recorder};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("runtimes", key)
        .lease(Duration::from_secs(2))
        .build()
        .expect("a context")
}

/// A server can have a runtime for each worker, and one runtime can end while a handler runs on
/// another.
#[test]
fn run_1_a_lease_beats_on_when_the_runtime_of_an_earlier_one_has_ended() {
    let log = CallLog::new();
    let engine =
        IdempotencyEngine::new(SharedStore::new(Recorder::new(MemoryStore::new(), log.clone())));
    let (first, second) = (runtime(), runtime());
    let granted =
        |runtime: &Runtime, key: &str| match runtime.block_on(engine.try_acquire(&ctx(key))) {
            Ok(Acquisition::Granted(held)) => held,
            other => panic!("{other:?}"),
        };
    let early = granted(&first, "early");
    let late = granted(&second, "late");
    drop(first);
    drop(early);
    let of_late =
        |identity: Option<&Identity>| identity.is_some_and(|id| id.key().expose() == "late");
    let beats = || {
        log.count_of(|call| call.operation == Operation::Extend && of_late(call.identity.as_ref()))
    };
    second.block_on(async {
        let two = async {
            while beats() < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), two).await.expect("it beats");
    });
    assert_eq!(engine.activity().beating, 1);
    drop(late);
    assert_eq!(engine.activity().beating, 0);
}

#[test]
fn run_1_the_leases_of_all_runtimes_are_counted() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runtimes = [runtime(), runtime(), runtime()];
    let mut held = Vec::new();
    for (at, runtime) in runtimes.iter().enumerate() {
        held.push(runtime.block_on(engine.try_acquire(&ctx(&at.to_string()))).expect("a grant"));
        assert_eq!(engine.activity().beating, at + 1);
    }
    drop(held);
    assert_eq!(engine.activity().beating, 0);
}

/// A wrapper that waits after the call, although its profile says that it is immediate.
#[derive(Debug)]
struct Yields(MemoryStore);

impl IdempotencyStore for Yields {
    retryproof_testkit::forward!(0: peek, wait_for_change, extend, complete, release, profile);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let answer = self.0.acquire(id, req).await;
        tokio::task::yield_now().await;
        answer
    }
}

#[tokio::test(start_paused = true)]
async fn acq_9_what_a_store_did_for_an_owner_at_once_counts_when_it_goes_on() {
    let engine = IdempotencyEngine::new(SharedStore::new(Yields(MemoryStore::new())));
    let ctx = ctx("k");
    let begun = tokio::time::Instant::now();
    let Acquiring::Waiting(rest) = engine.begin_acquire(&ctx) else { panic!("it was not ready") };
    let granted = rest.await.acquired.expect("an answer");
    let Acquisition::Granted(held) = granted else { panic!("{granted:?}") };
    assert_eq!((held.lease().attempt(), begun.elapsed()), (Attempt::First, Duration::ZERO));
}

#[test]
fn acq_11_a_grant_outside_of_a_runtime_is_given_back() {
    let store = SharedStore::from(MemoryStore::new());
    let engine = IdempotencyEngine::new(store.clone());
    let refused = engine.begin_acquire(&ctx("k"));
    assert!(matches!(&refused, Acquiring::Done(end) if end.acquired.is_err()), "{refused:?}");
    let standing = runtime().block_on(store.peek(ctx("k").identity())).expect("an answer");
    assert!(matches!(standing, Peeked::Absent), "{standing:?}");
}
