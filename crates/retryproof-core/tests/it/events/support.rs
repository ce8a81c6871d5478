// SPDX-License-Identifier: MIT OR Apache-2.0
//! An observer that records every event, and a store whose notes and purges a test sets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::observe::{
    CallEvent, LeaseEvent, Observer, Phase, PurgeEvent, StoreCallEvent, WaitEnd,
};
use retryproof_core::store::{
    AcquireRequest, Acquired, HolderNote, Purge, StoreProfile, TraceContext,
};
use retryproof_core::{
    Acquisition, ErrorKind, Fingerprint, HeldLease, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore, Identity, Recorded, Result, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{FaultStore, Faults};
use tokio::time::sleep;

use super::MS;

/// Records every event.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Terminal events.
    pub(super) ends: Mutex<Vec<String>>,
    pub(super) waits: Mutex<Vec<String>>,
    pub(super) calls: Mutex<Vec<String>>,
    pub(super) circuit: Mutex<Vec<&'static str>>,
    pub(super) purges: Mutex<Vec<PurgeEvent>>,
    pub(super) traces: Mutex<Vec<Option<TraceContext>>>,
    pub(super) took: Mutex<Duration>,
}

impl Heard {
    fn end(&self, outcome: &str) {
        self.ends.lock().push(outcome.to_owned());
    }

    fn answer(&self, event: CallEvent<'_>, outcome: &str) {
        *self.took.lock() = event.took;
        self.end(outcome);
    }

    pub(super) fn ends(&self) -> Vec<String> {
        std::mem::take(&mut *self.ends.lock())
    }

    pub(super) fn waits(&self) -> Vec<String> {
        std::mem::take(&mut *self.waits.lock())
    }

    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock())
    }
}

impl Observer for Heard {
    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        self.end("executed");
    }

    fn failed(&self, _: LeaseEvent<'_>, phase: Phase) {
        self.end(phase.outcome());
    }

    fn lost(&self, _: LeaseEvent<'_>) {
        self.end("lost");
    }

    fn waiting(&self, _: &Identity) {
        self.waits.lock().push("waiting".to_owned());
    }

    fn waited(&self, _: &Identity, waited: Duration, end: WaitEnd) {
        self.waits.lock().push(format!("{} after {}", end.as_str(), waited.as_millis()));
    }

    fn replayed(&self, event: CallEvent<'_>, holder: Option<&HolderNote>) {
        self.answer(event, "replayed");
        self.traces.lock().push(holder.and_then(HolderNote::trace));
    }

    fn mismatch(&self, event: CallEvent<'_>) {
        self.answer(event, "mismatch");
    }

    fn not_replayable(&self, event: CallEvent<'_>) {
        self.answer(event, "not_replayable");
    }

    fn in_flight(&self, event: CallEvent<'_>, _: Duration) {
        self.answer(event, "in_flight");
    }

    fn refused(&self, event: CallEvent<'_>, kind: ErrorKind) {
        self.answer(event, &format!("refused error.type={kind:?}"));
    }

    fn store_called(&self, event: StoreCallEvent) {
        let error = event.error.map_or(String::new(), |kind| format!(": {kind:?}"));
        let after = match event.took.as_millis() {
            0 => String::new(),
            ms => format!(" in {ms}"),
        };
        self.calls.lock().push(format!("{}{error}{after}", event.operation));
    }

    fn circuit_opened(&self) {
        self.circuit.lock().push("opened");
    }

    fn circuit_closed(&self) {
        self.circuit.lock().push("closed");
    }

    fn purged(&self, event: PurgeEvent) {
        self.purges.lock().push(event);
    }
}

/// A memory store with a note in completed records, and with a scripted purge.
#[derive(Debug)]
pub(crate) struct Noted {
    pub(super) inner: MemoryStore,
    pub(super) note: Option<HolderNote>,
    pub(crate) max_duration: Duration,
    pub(super) batches: Mutex<VecDeque<Result<usize>>>,
}

impl Noted {
    pub(crate) fn new() -> Self {
        let (inner, batches) = (MemoryStore::new(), Mutex::default());
        Self { inner, note: None, max_duration: Duration::MAX, batches }
    }
}

impl IdempotencyStore for Noted {
    retryproof_testkit::forward!(inner: peek, wait_for_change, extend, complete, release);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        Ok(match self.inner.acquire(id, req).await? {
            Acquired::Complete(stored) => Acquired::Complete(stored.with_holder(self.note.clone())),
            other => other,
        })
    }
    fn profile(&self) -> StoreProfile {
        let mut profile = StoreProfile::new("noted");
        profile.max_duration = self.max_duration;
        profile
    }
}

impl Purge for Noted {
    async fn purge(&self, _: usize) -> Result<usize> {
        sleep(100 * MS).await;
        self.batches.lock().pop_front().unwrap_or(Ok(0))
    }
}

pub(super) fn observed(store: impl Into<SharedStore>) -> (IdempotencyEngine, Arc<Heard>) {
    let heard = Arc::<Heard>::default();
    let engine = IdempotencyEngine::builder(store).observer(Arc::clone(&heard)).build().unwrap();
    (engine, heard)
}

pub(super) fn faulty() -> (IdempotencyEngine, Arc<Heard>, Faults) {
    let faults = Faults::none();
    let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults.clone()));
    let (engine, heard) = observed(store);
    (engine, heard, faults)
}

pub(super) fn of(key: &str, fingerprint: u8, wait: Duration) -> IdempotencyContext {
    IdempotencyContext::builder("told", format!("canary-{key}"))
        .lease(100 * MS)
        .wait_timeout(wait)
        .fingerprint(Fingerprint::new(&[1, fingerprint]).unwrap())
        .build()
        .unwrap()
}

pub(super) fn quick(key: &str) -> IdempotencyContext {
    of(key, 1, Duration::ZERO)
}

pub(super) async fn held(engine: &IdempotencyEngine, key: &str) -> HeldLease {
    match engine.try_acquire(&quick(key)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn succeed() -> Result<u32, &'static str> {
    Ok(1)
}
