// SPDX-License-Identifier: MIT OR Apache-2.0
//! STO-6: only one of the processes that share a store purges at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::{Purge, StoreProfile};
use retryproof_core::{
    Error, ErrorKind, IdempotencyConfig, IdempotencyContext, IdempotencyEngine, IdempotencyStore,
    Result, SharedStore,
};
use retryproof_memory::MemoryStore;
use tokio::time::{Instant, sleep};

use super::support::Heard;
use crate::outcomes::Told;

const MINUTE: Duration = Duration::from_secs(60);
/// The shortest pause between two rounds of all processes together.
const CLAIM: Duration = Duration::from_secs(54);
/// The longest pause between two rounds of one process.
const LATEST: Duration = Duration::from_secs(66);

/// A store that keeps claims, and records when it was claimed and purged.
#[derive(Debug, Clone)]
struct Claimed {
    inner: Arc<MemoryStore>,
    until: Arc<Mutex<Option<Instant>>>,
    rounds: Arc<Mutex<Vec<Instant>>>,
    /// When processes claimed, with or without success.
    claims: Arc<Mutex<Vec<Instant>>>,
    refuses: Option<ErrorKind>,
}

impl Claimed {
    fn new() -> Self {
        let inner = Arc::new(MemoryStore::new());
        let (rounds, claims) = (Arc::default(), Arc::default());
        Self { inner, until: Arc::default(), rounds, claims, refuses: None }
    }

    /// Returns the pauses between the rounds so far.
    fn pauses(&self) -> Vec<Duration> {
        self.rounds.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

impl IdempotencyStore for Claimed {
    retryproof_testkit::forward!(inner: acquire, peek, wait_for_change, extend, complete, release);

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("claimed")
    }
}

impl Purge for Claimed {
    async fn purge(&self, _: usize) -> Result<usize> {
        self.rounds.lock().push(Instant::now());
        Ok(0)
    }

    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        self.claims.lock().push(Instant::now());
        if let Some(kind) = self.refuses {
            return Err(Error::new(kind, "as told"));
        }
        let (now, mut until) = (Instant::now(), self.until.lock());
        let is_free = until.is_none_or(|until| until <= now);
        if is_free {
            *until = Some(now + at_most);
        }
        Ok(is_free)
    }
}

/// Creates an engine, and starts its purge.
async fn process(store: &Claimed, claim: bool) -> (IdempotencyEngine, Arc<Heard>) {
    let heard = Arc::<Heard>::default();
    let mut config = IdempotencyConfig::default();
    config.purge.claim = claim;
    let store = SharedStore::builder(store.clone()).with_purge().build();
    let engine = IdempotencyEngine::builder(store)
        .config(config)
        .observer(Arc::clone(&heard))
        .build()
        .unwrap();
    // The first lease starts the purge, so each process needs a key of its own.
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let key = format!("canary-{}", KEYS.fetch_add(1, Ordering::Relaxed));
    let ctx = IdempotencyContext::builder("told", key).build().unwrap();
    drop(engine.execute(ctx, || async { Ok::<_, &str>(1) }).await);
    (engine, heard)
}

#[tokio::test(start_paused = true)]
async fn sto_6_one_process_of_a_fleet_purges_in_each_interval() {
    let store = Claimed::new();
    let mut fleet = Vec::new();
    for _ in 0..5 {
        fleet.push(process(&store, true).await);
        sleep(Duration::from_secs(7)).await;
    }
    sleep(20 * MINUTE).await;
    let pauses = store.pauses();
    assert!(pauses.len() >= 17, "{pauses:?}");
    assert!(pauses.iter().all(|pause| (CLAIM..=LATEST).contains(pause)), "{pauses:?}");
    let (mut purged, mut left) = (0, 0);
    for (_, heard) in &fleet {
        for event in heard.purges.lock().iter() {
            assert!(event.kept_up && event.deleted == 0);
            *(if event.left_to_another { &mut left } else { &mut purged }) += 1;
        }
    }
    assert_eq!(purged, pauses.len() + 1, "the process that purged reports each round");
    assert!(left > 50, "the other processes report that they skipped theirs: {left}");
}

/// A deployment starts all processes of a fleet at the same instant.
#[tokio::test(start_paused = true)]
async fn sto_6_processes_that_start_together_do_not_claim_together() {
    let store = Claimed::new();
    let began = Instant::now();
    let mut fleet = Vec::new();
    for _ in 0..20 {
        fleet.push(process(&store, true).await);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    sleep(LATEST + Duration::from_millis(1)).await;
    let first: Vec<_> = store.claims.lock().iter().map(|claim| *claim - began).collect();
    assert_eq!(first.len(), 20);
    assert!(first.iter().all(|after| (MINUTE..=LATEST).contains(after)), "{first:?}");
    // The first claims are at random instants within 6 s.
    let distinct: std::collections::BTreeSet<_> = first.iter().collect();
    assert!(distinct.len() >= 15, "{first:?}");
    assert_eq!(store.rounds.lock().len(), 1, "one of the claims was granted");
}

#[tokio::test(start_paused = true)]
async fn sto_6_a_process_alone_purges_in_each_of_its_rounds_with_jitter() {
    let store = Claimed::new();
    let (_engine, heard) = process(&store, true).await;
    sleep(30 * MINUTE).await;
    let pauses = store.pauses();
    assert!(pauses.iter().all(|pause| (MINUTE..=LATEST).contains(pause)), "{pauses:?}");
    assert!(pauses.iter().any(|pause| *pause != pauses[0]), "all pauses are {:?}", pauses[0]);
    assert!(heard.purges.lock().iter().all(|event| !event.left_to_another));
}

#[tokio::test(start_paused = true)]
async fn sto_6_a_claimer_that_dies_delays_the_purge_by_one_interval() {
    let store = Claimed::new();
    let (first, _) = process(&store, true).await;
    sleep(MINUTE / 2).await;
    let (_second, heard) = process(&store, true).await;
    while store.rounds.lock().is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(heard.purges.lock().is_empty(), "the first process has the claim");
    drop(first);
    sleep(5 * MINUTE).await;
    let pauses = store.pauses();
    assert!(!pauses.is_empty() && pauses[0] <= 2 * LATEST, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn sto_6_without_claims_each_process_purges() {
    for (claim, refuses) in
        [(false, None), (true, Some(ErrorKind::Unexpected)), (true, Some(ErrorKind::Unavailable))]
    {
        let (told, _listening) = Told::listen();
        let store = Claimed { refuses, ..Claimed::new() };
        let fleet = [process(&store, claim).await, process(&store, claim).await];
        sleep(3 * LATEST).await;
        for (_, heard) in &fleet {
            assert!(heard.purges.lock().len() >= 3, "{claim} {refuses:?}");
        }
        let warnings = told.lines("the purge cannot be claimed");
        let expected = if refuses == Some(ErrorKind::Unexpected) { 2 } else { 0 };
        assert_eq!(warnings, expected, "each process logs it once: {refuses:?}");
        let claims =
            fleet[0].1.calls().iter().filter(|call| call.starts_with("claim_purge")).count();
        assert_eq!(claims > 0, claim);
    }
}
