// SPDX-License-Identifier: MIT OR Apache-2.0
//! The blocking engine: the semantics of the async engine, and a clear error inside a runtime.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use retryproof_core::clock::ManualClock;
use retryproof_core::{
    Attempt, CodecId, CompletionResult, ErrorKind, ExecuteError, IdempotencyContext, Outcome,
    Payload, SharedStore, Tombstone, blocking,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults, Outage, SlowStore};

fn ctx(key: &str) -> IdempotencyContext {
    let lease = Duration::from_millis(200);
    IdempotencyContext::builder("blocking", key).lease(lease).build().unwrap()
}

#[test]
fn acq_1_blocking_executes_once_and_replays() {
    let engine = blocking::Engine::new(MemoryStore::new()).unwrap();
    let run = |value: u32| engine.execute(ctx("k"), || Ok::<_, std::io::Error>(value)).unwrap();
    assert_eq!(run(1), Outcome::Executed(1));
    assert_eq!(run(2), Outcome::Replayed(1));
    let failed = engine.execute(ctx("f"), || Err::<u32, _>("declined"));
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    assert!(engine.execute(ctx("f"), || Ok::<_, &str>(3)).unwrap().is_executed(), "RUN-4");
    engine.health().unwrap();
    assert_eq!(engine.purge().unwrap(), Some(0));
}

#[test]
fn sto_4_blocking_purge_counts_records_and_health_reports_the_stores_error() {
    let (clock, faults) = (ManualClock::new(), Faults::none());
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let store = SharedStore::builder(FaultStore::new(store, faults.clone())).with_purge().build();
    let engine = blocking::Engine::new(store).unwrap();
    let hour = Duration::from_secs(3_600);
    let ctx = IdempotencyContext::builder("blocking", "k").ttl(hour).build().unwrap();
    assert!(engine.execute(ctx, || Ok::<_, &str>(1)).unwrap().is_executed());
    engine.health().unwrap();
    clock.advance(hour);
    assert_eq!(engine.purge().unwrap(), Some(1));
    faults.begin_outage(Outage::Refuse);
    assert_eq!(engine.health().unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn run_1_blocking_action_keeps_its_lease_while_its_thread_is_busy() {
    let engine = blocking::Engine::new(MemoryStore::new()).unwrap();
    let (started, wait) = mpsc::channel();
    let holder = {
        let engine = engine.clone();
        std::thread::spawn(move || {
            engine.execute_with(ctx("k"), |lease| {
                started.send(()).unwrap();
                // Block this thread for several times the length of the lease; the engine's own
                // thread sends the beats.
                let (_never, rest) = mpsc::channel::<()>();
                let _ = rest.recv_timeout(Duration::from_millis(700));
                Ok::<_, std::io::Error>(lease.believed_held())
            })
        })
    };
    wait.recv().unwrap();
    let waited = engine.execute(ctx("k"), || Ok::<_, std::io::Error>(false)).unwrap();
    assert_eq!(waited, Outcome::Replayed(true));
    assert_eq!(holder.join().unwrap().unwrap(), Outcome::Executed(true));
}

#[test]
fn run_4_blocking_action_is_outside_the_runtime_and_its_panic_frees_the_key() {
    let engine = blocking::Engine::new(MemoryStore::new()).unwrap();
    let nested = engine.execute(ctx("outer"), || {
        let inner = engine.execute(ctx("inner"), || Ok::<_, std::io::Error>(1_u32)).unwrap();
        Ok::<_, std::io::Error>(inner.is_executed())
    });
    assert_eq!(nested.unwrap(), Outcome::Executed(true));
    let panicking = {
        let engine = engine.clone();
        let boom = || panic!("boom") as Result<u32, std::io::Error>;
        std::thread::spawn(move || engine.execute(ctx("p"), boom).map(drop).map_err(drop))
    };
    assert!(panicking.join().is_err());
    assert!(engine.execute(ctx("p"), || Ok::<_, std::io::Error>(1_u32)).unwrap().is_executed());
}

#[test]
fn run_4_blocking_error_of_unknown_effect_leaves_the_key_to_the_lease() {
    let engine = blocking::Engine::new(MemoryStore::new()).unwrap();
    let failed = engine.execute_with(ctx("h"), |lease| {
        lease.hold_on_error();
        Err::<bool, _>("timed out")
    });
    assert!(matches!(failed, Err(ExecuteError::Held { error: "timed out", .. })));
    // This call waits until the lease of the failed call ends.
    let next =
        engine.execute_with(ctx("h"), |lease| Ok::<_, &str>(lease.attempt() == Attempt::Takeover));
    assert_eq!(next.unwrap(), Outcome::Executed(true));
}

#[tokio::test]
async fn blocking_engine_inside_a_runtime_is_a_clear_error() {
    let engine = blocking::Engine::new(MemoryStore::new()).unwrap();
    let refused = engine.execute(ctx("k"), || Ok::<_, std::io::Error>(1_u32));
    let Err(ExecuteError::Store(error)) = refused else { panic!("refused") };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("inside a tokio runtime"), "{error}");
    drop(engine);
}

#[test]
fn run_5_an_end_that_is_refused_inside_a_runtime_is_finished_in_the_background() {
    const MS: Duration = Duration::from_millis(1);
    let store = SlowStore::new(MemoryStore::new(), MS, MS);
    let engine = blocking::Engine::new(SharedStore::new(store)).unwrap();
    let held = |key: &str| match engine.try_acquire(&long(key)).unwrap() {
        blocking::Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    };
    let (completed, released) = (held("completed"), held("released"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move {
        let finished = completed.complete(Payload::new(CodecId::JSON, 0, b"9"));
        assert!(
            matches!(&finished, CompletionResult::Unconfirmed(e) if e.kind() == ErrorKind::Unsupported),
            "{finished:?}"
        );
        assert_eq!(released.release().unwrap_err().kind(), ErrorKind::Unsupported);
    });
    // The leases last longer than these calls wait. If the leases had not been ended in the
    // background, both calls would find their key in flight.
    let again = |key: &str| engine.execute(long(key), || Ok::<_, std::io::Error>(1)).unwrap();
    assert_eq!(again("completed"), Outcome::Replayed(9));
    assert_eq!(again("released"), Outcome::Executed(1));
}

#[test]
fn run_5_an_end_inside_a_runtime_says_what_a_store_in_memory_has_answered() {
    let engine = blocking::Engine::new(MemoryStore::new()).unwrap();
    let held = |key: &str| match engine.try_acquire(&long(key)).unwrap() {
        blocking::Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    };
    let (completed, tombstoned, released) = (held("completed"), held("done"), held("released"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ended = runtime.block_on(async {
        let value = Payload::new(CodecId::JSON, 0, b"9");
        let ended = [completed.complete(value), tombstoned.complete_tombstone(Tombstone::new())];
        released.release().unwrap();
        ended
    });
    assert!(ended.iter().all(|ended| matches!(ended, CompletionResult::Recorded)), "{ended:?}");
    let again = engine.execute(long("completed"), || Ok::<_, std::io::Error>(1)).unwrap();
    assert_eq!(again, Outcome::Replayed(9));
    assert!(matches!(engine.try_acquire(&long("released")), Ok(blocking::Acquisition::Granted(_))));
}

fn long(key: &str) -> IdempotencyContext {
    let builder = IdempotencyContext::builder("blocking", key).lease(Duration::from_secs(60));
    builder.wait_timeout(Duration::from_secs(10)).build().unwrap()
}
