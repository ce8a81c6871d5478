// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a lease begins and ends for its holder. The lease is measured from just before the call
//! that granted or extended it, so that it ends for the holder before it ends for the store.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::clock::ManualClock;
use retryproof_core::store::{AcquireRequest, Acquired, StoreProfile};
use retryproof_core::{
    Acquisition, HeldLease, IdempotencyConfig, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, Identity, Result, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{CallLog, Fault, FaultStore, Faults, Operation, Recorder, SlowStore};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);
/// How long an answer takes on its way back.
const BACK: Duration = Duration::from_millis(100);

async fn granted(engine: &IdempotencyEngine) -> HeldLease {
    let ctx = IdempotencyContext::builder("lease time", "k").lease(LEASE).build().unwrap();
    match engine.try_acquire(&ctx).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

/// Creates an engine on a store that executes each call at once, but whose answer arrives [`BACK`]
/// later.
fn far(faults: &Faults) -> (IdempotencyEngine, CallLog) {
    let log = CallLog::new();
    let near = Recorder::new(MemoryStore::new(), log.clone());
    let store = SlowStore::new(FaultStore::new(near, faults.clone()), Duration::ZERO, BACK);
    let mut config = IdempotencyConfig::default();
    config.purge.enabled = false;
    let engine =
        IdempotencyEngine::builder(SharedStore::new(store)).config(config).build().unwrap();
    (engine, log)
}

/// Compares two times with the precision of a test, whose timers count milliseconds.
#[track_caller]
fn assert_near(time: Duration, expected: Duration) {
    assert!(time <= expected && time + 10 * MS > expected, "{time:?}, not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn acq_7_a_grant_counts_from_before_its_call() {
    let (engine, _) = far(&Faults::none());
    let held = granted(&engine).await;
    assert_near(held.lease().remaining(), LEASE - BACK);
}

#[tokio::test(start_paused = true)]
async fn acq_7_acq_9_a_grant_at_the_repetition_counts_from_the_repetition() {
    let faults = Faults::none();
    let (engine, _) = far(&faults);
    faults.fail_next(Operation::Acquire, 1, Fault::AnswerLost);
    let held = granted(&engine).await;
    assert_eq!(faults.injected(), 1);
    assert_near(held.lease().remaining(), LEASE - BACK);
}

/// A store that answers at the first poll, while the clock advances by [`BACK`].
#[derive(Debug)]
struct Stalling {
    inner: MemoryStore,
    clock: ManualClock,
}

impl IdempotencyStore for Stalling {
    retryproof_testkit::forward!(inner: peek, wait_for_change, extend, complete, release);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let answer = self.inner.acquire(id, req).await;
        self.clock.advance(BACK);
        answer
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("stalling")
    }
}

#[tokio::test]
async fn acq_7_a_grant_that_is_answered_at_once_counts_from_before_its_call() {
    let clock = ManualClock::new();
    let inner = MemoryStore::with_clock(Arc::new(clock.clone()));
    let store = SharedStore::new(Stalling { inner, clock: clock.clone() });
    let engine = IdempotencyEngine::builder(store).clock(clock).build().unwrap();
    assert_eq!(granted(&engine).await.lease().remaining(), LEASE - BACK);
}

#[tokio::test(start_paused = true)]
async fn acq_7_run_1_a_beat_counts_from_before_its_call() {
    let (engine, log) = far(&Faults::none());
    let held = granted(&engine).await;
    let beats = || log.count_of(|call| call.operation == Operation::Extend);
    // The beat is sent when half of the lease has passed since the acquire was sent.
    sleep(LEASE / 2 - BACK + 5 * MS).await;
    assert_eq!(beats(), 1);
    sleep(BACK).await;
    assert_near(held.lease().remaining(), LEASE - BACK);
    // The next beat is sent when half of the lease has passed since this beat was sent, not since
    // it was answered.
    sleep(LEASE / 2 - BACK + 5 * MS).await;
    assert_eq!(beats(), 2);
}

#[tokio::test(start_paused = true)]
async fn acq_7_run_2_a_confirmation_counts_from_before_its_call() {
    let (engine, _) = far(&Faults::none());
    let held = granted(&engine).await;
    sleep(BACK).await;
    assert!(held.lease().confirm().await.unwrap());
    assert_near(held.lease().remaining(), LEASE - BACK);
}

#[tokio::test]
async fn run_2_at_its_end_a_lease_is_not_believed_held() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let engine = IdempotencyEngine::builder(store).clock(clock.clone()).build().unwrap();
    let held = granted(&engine).await;
    let lease = held.lease();
    let instant = Duration::from_nanos(1);
    clock.advance(LEASE - instant);
    assert!(lease.believed_held() && lease.remaining() == instant);
    clock.advance(instant);
    assert!(!lease.believed_held() && lease.remaining().is_zero());
}
