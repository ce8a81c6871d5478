// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stores that fulfil the contract in an awkward way: they accept only small values, answer late,
//! or do not answer at all.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Peeked, Purge, StoreProfile,
};
use retryproof_core::{
    Acquisition, CodecId, CompletionResult, Error, ErrorKind, FencingToken, HeldLease,
    IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdempotencyStore, Identity, Opened,
    OwnerId, Result, SharedStore, Tombstone,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::SlowStore;
use tokio::time::{Instant, sleep};

use crate::outcomes::Told;

const MS: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_secs(1);
/// The `operation-timeout` of these tests.
const OPERATION: Duration = Duration::from_millis(200);

/// A memory store with awkward properties.
#[derive(Debug, Clone)]
struct Awkward(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: SharedStore,
    /// The size of the largest value that the store accepts.
    takes: usize,
    /// Whether the store's profile states that size.
    says: bool,
    /// The delay with which the store reports a change.
    late: Duration,
    /// Whether the store leaves acquires and peeks unanswered.
    silent: AtomicBool,
    purges: AtomicUsize,
    /// How many batches of expired records are left; purging a batch takes a second.
    backlog: AtomicUsize,
}

fn awkward(takes: usize, says: bool, late: Duration) -> Awkward {
    let (silent, purges, backlog) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    Awkward(Arc::new(Inner {
        store: MemoryStore::new().into(),
        takes,
        says,
        late,
        silent,
        purges,
        backlog,
    }))
}

impl Awkward {
    async fn unless_silent<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        if self.0.silent.load(Ordering::SeqCst) { pending().await } else { call.await }
    }

    fn engine(&self, configure: impl FnOnce(&mut IdempotencyConfig)) -> IdempotencyEngine {
        let mut config = IdempotencyConfig::default();
        config.operation_timeout = OPERATION;
        configure(&mut config);
        let store = SharedStore::builder(self.clone()).with_purge().build();
        IdempotencyEngine::builder(store).config(config).build().unwrap()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Awkward {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.unless_silent(self.0.store.acquire(id, req)).await
    }
    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.unless_silent(self.0.store.peek(id)).await
    }
    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.0.store.wait_for_change(id, seen, at_most).await?;
        sleep(self.0.late).await;
        Ok(())
    }
    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.0.store.extend(id, owner, lease).await
    }
    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.0.takes {
            return Err(Error::new(ErrorKind::TooLarge, "the store takes small values only"));
        }
        self.0.store.complete(id, owner, done).await
    }
    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.0.store.release(id, owner).await
    }
    fn profile(&self) -> StoreProfile {
        let profile = StoreProfile::new("awkward");
        if self.0.says { profile.with_max_value(self.0.takes) } else { profile }
    }
}

impl Purge for Awkward {
    async fn purge(&self, limit: usize) -> Result<usize> {
        let backlog = &self.0.backlog;
        if backlog
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok()
        {
            sleep(Duration::from_secs(1)).await;
            return Ok(limit);
        }
        match self.0.purges.fetch_add(1, Ordering::SeqCst) {
            0 => pending().await,
            _ => Ok(0),
        }
    }
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("awkward", key).wait_timeout(WAIT).build().unwrap()
}

async fn held(engine: &IdempotencyEngine, key: &str) -> HeldLease {
    match engine.try_acquire_tracked(&ctx(key)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_9_a_tombstone_whose_detail_is_refused_for_its_size_is_recorded_without_it() {
    let bare = Tombstone::new().envelope().len();
    for says in [false, true] {
        let engine = awkward(bare, says, MS).engine(|_| {});
        let detail = Tombstone::with_detail(CodecId::BYTES, 0, &[7; 100]);
        assert!(detail.envelope().len() > bare);
        let finished = held(&engine, "k").await.complete_tombstone(detail).await;
        // The holder gets a completion failure, as for any value that the store refuses.
        assert!(
            matches!(&finished, CompletionResult::Tombstoned(e) if e.kind() == ErrorKind::TooLarge),
            "{finished:?}"
        );
        let Acquisition::Complete(stored) = engine.try_acquire(&ctx("k")).await.unwrap() else {
            panic!("the work is done and must not run again")
        };
        let Opened::Tombstone(left) = stored.open(None).unwrap() else { panic!("a tombstone") };
        assert_eq!(left, Tombstone::new());
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_9_a_store_that_takes_no_tombstone_at_all_is_not_asked_for_ever() {
    let engine = awkward(1, false, MS).engine(|_| {});
    let finished = held(&engine, "k").await.complete_tombstone(Tombstone::new()).await;
    assert!(
        matches!(&finished, CompletionResult::Unconfirmed(e) if e.kind() == ErrorKind::TooLarge),
        "{finished:?}"
    );
}

/// A purge that ends within its interval logs nothing. A longer purge logs a warning after one
/// interval, and another one after two.
#[tokio::test(start_paused = true)]
async fn sto_4_a_purge_that_does_not_keep_up_says_so() {
    for (batches, warnings) in [(50, 0), (70, 1), (130, 2)] {
        let (told, _listening) = Told::listen();
        let store = awkward(1_000, false, MS);
        // In this store, the first purge without a backlog hangs. Start the count at 1, so that no
        // purge hangs here.
        store.0.purges.store(1, Ordering::SeqCst);
        store.0.backlog.store(batches, Ordering::SeqCst);
        let engine = store.engine(|config| config.purge.enabled = false);
        assert_eq!(engine.purge().await.unwrap(), Some(batches * 1_000));
        assert_eq!(told.lines("deleting expired records takes longer"), warnings, "{batches}");
    }
}

#[tokio::test(start_paused = true)]
async fn sto_4_sto_5_a_purge_that_is_never_answered_is_a_failed_round() {
    let store = awkward(1_000, false, MS);
    let engine = store.engine(|config| config.purge.enabled = false);
    let began = Instant::now();
    let failed =
        tokio::time::timeout(Duration::from_secs(60), engine.purge()).await.expect("it ends");
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    // A purge may take longer than `operation-timeout`, because a batch of many records is more
    // work than any other call.
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(engine.purge().await.unwrap(), Some(0));
    // After a purge that was never answered, the engine's purge task continues.
    let store = awkward(1_000, false, MS);
    let engine = store.engine(|_| {});
    held(&engine, "k").await.release().await.unwrap();
    // Each pause is up to a tenth longer than the interval (STO-6). The first purge is cut off
    // after 30 s.
    sleep(Duration::from_secs(66 + 30 + 66 + 1)).await;
    assert_eq!(store.0.purges.load(Ordering::SeqCst), 2);
}

/// The first acquire can take a long time: MariaDB, for example, waits a second for a locked row.
/// If the first acquire takes longer than the caller's wait timeout, no other call follows.
#[tokio::test(start_paused = true)]
async fn acq_6_a_first_look_that_outlasts_the_wait_is_the_last_one() {
    let slow = SlowStore::new(MemoryStore::new(), Duration::ZERO, WAIT + 500 * MS);
    let engine = IdempotencyEngine::new(SharedStore::new(slow));
    let _holder = held(&engine, "k").await;
    let began = Instant::now();
    let answer = engine.try_acquire(&ctx("k")).await.unwrap();
    assert!(matches!(answer, Acquisition::InFlight(_)), "{answer:?}");
    assert!(began.elapsed() <= WAIT + 502 * MS, "one call: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn acq_6_a_store_that_says_late_that_nothing_changed_costs_a_waiter_one_call_and_not_two() {
    // A waiter's last look at the record is an acquire, or a peek if the waiter has no permit.
    for busy in [false, true] {
        // The delay is just within the time limit of one call.
        let store = awkward(1_000, false, OPERATION - 10 * MS);
        let engine = store.engine(|config| config.max_running = Some(2));
        let _holder = held(&engine, "k").await;
        let began = Instant::now();
        let waiter = tokio::spawn({
            let engine = engine.clone();
            async move { engine.try_acquire_tracked(&ctx("k")).await }
        });
        sleep(WAIT / 2).await;
        let _other = if busy { Some(held(&engine, "other").await) } else { None };
        store.0.silent.store(true, Ordering::SeqCst);
        let ended = waiter.await.unwrap();
        let took = began.elapsed();
        assert!(took <= WAIT + OPERATION + 2 * MS, "busy {busy}: {took:?}, {ended:?}");
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable, "busy {busy}");
    }
    // A caller whose completion was refused only peeks while it waits.
    let store = awkward(1_000, false, OPERATION - 10 * MS);
    let engine = store.engine(|_| {});
    let _holder = held(&engine, "k").await;
    let began = Instant::now();
    let falls_silent = async {
        sleep(WAIT / 2).await;
        store.0.silent.store(true, Ordering::SeqCst);
    };
    let context = ctx("k");
    let (ended, ()) = tokio::join!(engine.answer_fenced(&context), falls_silent);
    let took = began.elapsed();
    assert!(took <= WAIT + OPERATION + 2 * MS, "fenced: {took:?}, {ended:?}");
    assert!(ended.unwrap().is_err(), "the caller saw a holder, so the call is in flight (CMP-2)");
}
