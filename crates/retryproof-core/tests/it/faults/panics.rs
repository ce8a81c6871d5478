// SPDX-License-Identifier: MIT OR Apache-2.0
//! If a call to the store panics, only that call fails (STO-5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::observe::Loss;
use retryproof_core::store::{
    AcquireRequest, Acquired, Audit, AuditEntry, AuditPage, Completion, FencedWrite, Force,
    ForceRequest, Forced, Inspect, Peeked, Purge, RecordSummary, ScanCursor, ScanPage, SharedStore,
    StoreProfile, StoreStats,
};
use retryproof_core::{
    Acquisition, ErrorKind, FencingToken, IdempotencyContext, IdempotencyEngine, IdempotencyStore,
    Identity, Outcome, OwnerId, Result,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Fault, Operation};
use tokio::time::{sleep, timeout};

use super::{Does, LEASE, Lab, MS, NOW, ctx};

#[tokio::test(start_paused = true)]
async fn run_1_sto_5_beats_that_panic_are_tried_again() {
    for fault in [Fault::Panicked, Fault::AnswerPanicked] {
        let lab = Lab::new();
        lab.faults.fail_next(Operation::Extend, 4, fault);
        let held = lab.call(ctx("k", 4 * LEASE), Does::Succeeds(3 * LEASE)).await;
        assert!(held.is_executed(), "{fault:?}: {held:?}");
        assert_eq!((lab.faults.injected(), lab.counters.read().loss_noticed), (4, 0), "{fault:?}");
        lab.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_2_a_holder_whose_every_beat_panics_hears_that_its_lease_is_lost() {
    let lab = Lab::new();
    lab.faults.plan(|call| (call.operation == Operation::Extend).then_some(Fault::Panicked));
    let Acquisition::Granted(held) = lab.engine.try_acquire(&ctx("k", MS)).await.unwrap() else {
        panic!("granted")
    };
    let loss = timeout(2 * LEASE, held.lease().lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Expired);
}

/// A memory store that panics when a method is called, not when its future is polled. `panics` is
/// the number of calls that will still panic.
#[derive(Debug)]
struct Jumpy {
    store: SharedStore,
    panics: Arc<AtomicU32>,
    at_once: bool,
}

impl Jumpy {
    fn may_panic(&self) {
        let left = self
            .panics
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "on purpose");
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Jumpy {
    fn acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + Send {
        self.may_panic();
        async move { self.store.acquire(id, req).await }
    }
    fn peek(&self, id: &Identity) -> impl Future<Output = Result<Peeked>> + Send {
        self.may_panic();
        async move { self.store.peek(id).await }
    }
    fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> impl Future<Output = Result<()>> + Send {
        self.may_panic();
        async move { self.store.wait_for_change(id, seen, at_most).await }
    }
    fn extend(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> impl Future<Output = Result<FencedWrite>> + Send {
        self.may_panic();
        async move { self.store.extend(id, owner, lease).await }
    }
    fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> impl Future<Output = Result<FencedWrite>> + Send {
        self.may_panic();
        async move { self.store.complete(id, owner, done).await }
    }
    fn release(
        &self,
        id: &Identity,
        owner: OwnerId,
    ) -> impl Future<Output = Result<FencedWrite>> + Send {
        self.may_panic();
        async move { self.store.release(id, owner).await }
    }
    fn profile(&self) -> StoreProfile {
        let profile = StoreProfile::new("jumpy");
        if self.at_once { profile.with_immediate() } else { profile }
    }
}

impl Purge for Jumpy {
    async fn purge(&self, _: usize) -> Result<usize> {
        self.may_panic();
        Ok(0)
    }
}

impl Inspect for Jumpy {
    async fn get(&self, _: &Identity) -> Result<Option<RecordSummary>> {
        self.may_panic();
        Ok(None)
    }
    async fn stats(&self) -> Result<StoreStats> {
        self.may_panic();
        Ok(StoreStats::default())
    }
    async fn scan(&self, _: Option<&ScanCursor>, _: usize) -> Result<ScanPage> {
        self.may_panic();
        Ok(ScanPage::default())
    }
}

impl Audit for Jumpy {
    async fn append(&self, _: &AuditEntry) -> Result<()> {
        self.may_panic();
        Ok(())
    }
    async fn entries(&self, _: Option<&ScanCursor>, _: usize) -> Result<AuditPage> {
        self.may_panic();
        Ok(AuditPage::default())
    }
}

impl Force for Jumpy {
    async fn force(&self, _: &Identity, _: &ForceRequest) -> Result<Forced> {
        self.may_panic();
        Ok(Forced::Absent)
    }
}

fn jumpy(at_once: bool) -> (IdempotencyEngine, Arc<AtomicU32>) {
    let panics = Arc::<AtomicU32>::default();
    let store = Jumpy { store: MemoryStore::new().into(), panics: Arc::clone(&panics), at_once };
    let store = SharedStore::builder(store).with_purge().with_inspect().with_force().with_audit();
    (IdempotencyEngine::new(store.build()), panics)
}

fn quick(key: &str) -> IdempotencyContext {
    ctx(key, Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn sto_5_a_call_that_panics_before_it_has_a_future_is_a_failed_call() {
    for at_once in [false, true] {
        let (engine, panics) = jumpy(at_once);
        // The engine repeats a panicked call once. If the repeated call panics too, the caller gets
        // a typed error, and nothing runs.
        panics.store(1, Ordering::SeqCst);
        let action = || {
            // The next store call, which is the completion, panics.
            panics.store(1, Ordering::SeqCst);
            async { Ok::<_, &str>(1) }
        };
        assert_eq!(
            engine.execute(quick("k"), action).await.unwrap(),
            Outcome::Executed(1),
            "{at_once}"
        );
        panics.store(2, Ordering::SeqCst);
        let failed = engine.try_acquire(&quick("other")).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable, "at once {at_once}");
        assert!(failed.to_string().contains("panicked"), "{failed}");
        sleep(LEASE / 2).await;
        panics.store(1, Ordering::SeqCst);
        // HTTP calls begin with `begin_acquire`, which must not pass on a panic of the store.
        drop(engine.begin_acquire(&quick("now")));
        let Acquisition::Granted(held) = engine.try_acquire(&quick("release")).await.unwrap()
        else {
            panic!("granted")
        };
        panics.store(1, Ordering::SeqCst);
        held.release().await.unwrap();
        panics.store(1, Ordering::SeqCst);
        assert_eq!(engine.health().await.unwrap_err().kind(), ErrorKind::Unavailable);
        panics.store(1, Ordering::SeqCst);
        assert_eq!(engine.purge().await.unwrap_err().kind(), ErrorKind::Unavailable);
        panics.store(1, Ordering::SeqCst);
        assert_eq!(engine.store().stats().await.unwrap_err().kind(), ErrorKind::Unavailable);
        panics.store(1, Ordering::SeqCst);
        let id = quick("k");
        assert_eq!(
            engine.store().get(id.identity()).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        panics.store(1, Ordering::SeqCst);
        let scanned = engine.store().scan(None, 10).await;
        assert_eq!(scanned.unwrap_err().kind(), ErrorKind::Unavailable);
        panics.store(1, Ordering::SeqCst);
        let erase = ForceRequest::erase(FencingToken::new(1));
        let forced = engine.store().force(id.identity(), &erase).await;
        assert_eq!(forced.unwrap_err().kind(), ErrorKind::Unavailable);
        panics.store(1, Ordering::SeqCst);
        let appended = engine.store().append_audit(&AuditEntry::new("erase", "alice", "x")).await;
        assert_eq!(appended.unwrap_err().kind(), ErrorKind::Unavailable);
        panics.store(1, Ordering::SeqCst);
        let entries = engine.store().audit_entries(None, 10).await;
        assert_eq!(entries.unwrap_err().kind(), ErrorKind::Unavailable);
        // None of these panics has left anything behind.
        let replayed = engine.execute(quick("k"), || async { Ok::<_, &str>(2) }).await.unwrap();
        assert_eq!(replayed, Outcome::Replayed(1), "at once {at_once}");
    }
}

#[tokio::test(start_paused = true)]
async fn acq_1_sto_5_a_waiter_whose_wait_panics_waits_on() {
    let lab = Lab::new();
    lab.faults.fail_next(Operation::WaitForChange, 3, Fault::Panicked);
    let holder = lab.start(ctx("k", LEASE), Does::Succeeds(LEASE));
    sleep(10 * MS).await;
    let waiter = lab.call(ctx("k", 4 * LEASE), NOW).await;
    assert!(waiter.is_replayed(), "{waiter:?}");
    assert!(holder.await.unwrap().is_executed());
    assert_eq!(lab.faults.injected(), 3);
}
