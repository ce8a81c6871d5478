// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Counters`]: an observer that counts every event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    CallEvent, LeaseEvent, Loss, Observer, Phase, PurgeEvent, ShadowVerdict, StoreCallEvent,
    WaitEnd,
};
use crate::error::ErrorKind;
use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::store::HolderNote;

/// Counts every event. Use it in a program that exports its own metrics, and in tests.
///
/// Register the counters with [`EngineBuilder::observer`](crate::EngineBuilder::observer), keep a
/// clone of the `Arc`, and [`read`](Self::read) them at any time.
///
/// ```
/// use std::sync::Arc;
/// use retryproof_core::observe::Counters;
/// use retryproof_core::{IdempotencyContext, IdempotencyEngine};
/// use retryproof_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let counters = Counters::new();
/// let engine = IdempotencyEngine::builder(MemoryStore::new())
///     .observer(Arc::clone(&counters))
///     .build()?;
/// for _ in 0..3 {
///     let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
///     engine.execute(ctx, || async { Ok::<_, std::io::Error>(1) }).await?;
/// }
/// assert_eq!((counters.read().completed, counters.read().replayed), (1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Counters {
    acquired: AtomicU64,
    taken_over: AtomicU64,
    loss_noticed: AtomicU64,
    beat_failed: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
    unguarded: AtomicU64,
    shadowed: AtomicU64,
    waiting: AtomicU64,
    waited: AtomicU64,
    replayed: AtomicU64,
    mismatch: AtomicU64,
    not_replayable: AtomicU64,
    in_flight: AtomicU64,
    refused: AtomicU64,
    store_called: AtomicU64,
    circuit_opened: AtomicU64,
    circuit_closed: AtomicU64,
    purged: AtomicU64,
}

/// The values of [`Counters`]. Each counter is read separately, so an event that arrives during the
/// read may be missing in some fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each field counts calls to the observer method of the same name")]
pub struct Counts {
    pub acquired: u64,
    pub taken_over: u64,
    pub loss_noticed: u64,
    pub beat_failed: u64,
    pub completed: u64,
    pub failed: u64,
    pub lost: u64,
    pub unguarded: u64,
    pub shadowed: u64,
    pub waiting: u64,
    pub waited: u64,
    pub replayed: u64,
    pub mismatch: u64,
    pub not_replayable: u64,
    pub in_flight: u64,
    pub refused: u64,
    pub store_called: u64,
    pub circuit_opened: u64,
    pub circuit_closed: u64,
    pub purged: u64,
}

impl Counters {
    /// Creates shared counters, all at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Reads all counters.
    #[must_use]
    pub fn read(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            acquired: get(&self.acquired),
            taken_over: get(&self.taken_over),
            loss_noticed: get(&self.loss_noticed),
            beat_failed: get(&self.beat_failed),
            completed: get(&self.completed),
            failed: get(&self.failed),
            lost: get(&self.lost),
            unguarded: get(&self.unguarded),
            shadowed: get(&self.shadowed),
            waiting: get(&self.waiting),
            waited: get(&self.waited),
            replayed: get(&self.replayed),
            mismatch: get(&self.mismatch),
            not_replayable: get(&self.not_replayable),
            in_flight: get(&self.in_flight),
            refused: get(&self.refused),
            store_called: get(&self.store_called),
            circuit_opened: get(&self.circuit_opened),
            circuit_closed: get(&self.circuit_closed),
            purged: get(&self.purged),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Observer for Counters {
    fn acquired(&self, _: LeaseEvent<'_>) {
        count(&self.acquired);
    }

    fn taken_over(&self, _: LeaseEvent<'_>) {
        count(&self.taken_over);
    }

    fn loss_noticed(&self, _: LeaseEvent<'_>, _: Loss) {
        count(&self.loss_noticed);
    }

    fn beat_failed(&self, _: LeaseEvent<'_>, _: ErrorKind) {
        count(&self.beat_failed);
    }

    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        count(&self.completed);
    }

    fn failed(&self, _: LeaseEvent<'_>, _: Phase) {
        count(&self.failed);
    }

    fn lost(&self, _: LeaseEvent<'_>) {
        count(&self.lost);
    }

    fn unguarded(&self, _: LeaseEvent<'_>) {
        count(&self.unguarded);
    }

    fn shadowed(&self, _: LeaseEvent<'_>, _: ShadowVerdict) {
        count(&self.shadowed);
    }

    fn waiting(&self, _: &Identity) {
        count(&self.waiting);
    }

    fn waited(&self, _: &Identity, _: Duration, _: WaitEnd) {
        count(&self.waited);
    }

    fn replayed(&self, _: CallEvent<'_>, _: Option<&HolderNote>) {
        count(&self.replayed);
    }

    fn mismatch(&self, _: CallEvent<'_>) {
        count(&self.mismatch);
    }

    fn not_replayable(&self, _: CallEvent<'_>) {
        count(&self.not_replayable);
    }

    fn in_flight(&self, _: CallEvent<'_>, _: Duration) {
        count(&self.in_flight);
    }

    fn refused(&self, _: CallEvent<'_>, _: ErrorKind) {
        count(&self.refused);
    }

    fn store_called(&self, _: StoreCallEvent) {
        count(&self.store_called);
    }

    fn circuit_opened(&self) {
        count(&self.circuit_opened);
    }

    fn circuit_closed(&self) {
        count(&self.circuit_closed);
    }

    fn purged(&self, _: PurgeEvent) {
        count(&self.purged);
    }
}
