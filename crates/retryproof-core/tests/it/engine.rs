// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine on the memory store, in paused time: outcomes, waits, heartbeats, and the ends of
//! leases.
//!
//! This file is over 400 lines long because the outcomes of each stage of the engine belong
//! together.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::observe::Counters;
use retryproof_core::store::Peeked;
use retryproof_core::{
    Acquisition, Attempt, ErrorKind, ExecuteError, Fingerprint, IdempotencyConfig,
    IdempotencyContext, IdempotencyEngine, IdempotencyStore, OnDrop, Outcome, SharedStore,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::SlowStore;
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);

fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("test", key)
        .lease(1_000 * MS)
        .wait_timeout(5_000 * MS)
        .build()
        .unwrap()
}

fn impatient(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("test", key)
        .lease(1_000 * MS)
        .wait_timeout(Duration::ZERO)
        .build()
        .unwrap()
}

type Never = std::convert::Infallible;

async fn answer(engine: &IdempotencyEngine, ctx: IdempotencyContext, value: u32) -> Outcome<u32> {
    engine.execute(ctx, || async move { Ok::<_, Never>(value) }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn acq_1_first_executes_and_the_duplicate_replays() {
    let engine = engine();
    assert_eq!(answer(&engine, ctx("k"), 1).await, Outcome::Executed(1));
    assert_eq!(answer(&engine, ctx("k"), 2).await, Outcome::Replayed(1));
    let other = IdempotencyContext::builder("other", "k").build().unwrap();
    assert_eq!(
        answer(&engine, other, 3).await,
        Outcome::Executed(3),
        "ID-1: another scope, another record"
    );
}

#[tokio::test(start_paused = true)]
async fn acq_5_a_hundred_duplicates_share_one_run() {
    let engine = engine();
    let runs = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (engine, runs) = (engine.clone(), Arc::clone(&runs));
            tokio::spawn(async move {
                let action = || async {
                    let run = runs.fetch_add(1, Ordering::SeqCst);
                    sleep(300 * MS).await;
                    Ok::<_, Never>(run)
                };
                engine.execute(ctx("herd"), action).await.unwrap()
            })
        })
        .collect();
    let mut replayed = 0;
    for task in tasks {
        replayed += usize::from(task.await.unwrap() == Outcome::Replayed(0));
    }
    assert_eq!((runs.load(Ordering::SeqCst), replayed), (1, 99));
    assert_eq!(engine.activity().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn acq_6_a_waiter_ends_by_its_deadline_and_zero_waits_not_at_all() {
    let engine = engine();
    let holder = engine.try_acquire(&ctx("k")).await.unwrap();
    let started = Instant::now();
    assert!(matches!(answer(&engine, impatient("k"), 2).await, Outcome::InFlight(_)));
    assert_eq!(started.elapsed(), Duration::ZERO);
    let Outcome::InFlight(busy) = answer(&engine, ctx("k"), 2).await else { panic!("in flight") };
    assert!(
        started.elapsed() >= 5_000 * MS && started.elapsed() < 5_200 * MS,
        "{:?}",
        started.elapsed()
    );
    assert!(busy.remaining <= 1_000 * MS && busy.retry_after() == 1_000 * MS);
    drop(holder);
}

#[tokio::test(start_paused = true)]
async fn acq_3_a_release_passes_the_key_to_one_waiter_and_the_rest_wait_for_it() {
    let engine = engine();
    let Acquisition::Granted(held) = engine.try_acquire(&ctx("k")).await.unwrap() else {
        panic!("granted")
    };
    let waiters: Vec<_> = (0..5)
        .map(|value| {
            let engine = engine.clone();
            tokio::spawn(async move { answer(&engine, ctx("k"), value).await })
        })
        .collect();
    sleep(10 * MS).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let mut executed = 0;
    for waiter in waiters {
        executed += usize::from(waiter.await.unwrap().is_executed());
    }
    assert_eq!(executed, 1);
    assert!(released.elapsed() < 60 * MS, "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn acq_2_acq_12_a_waiter_takes_over_when_the_lease_of_a_dead_owner_ends() {
    let counters = Counters::new();
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(Arc::clone(&counters))
        .build()
        .unwrap();
    let Acquisition::Granted(held) = engine.try_acquire(&ctx("k")).await.unwrap() else {
        panic!("granted")
    };
    let token = held.lease().token();
    held.hold();
    let started = Instant::now();
    let outcome = engine
        .execute_with(ctx("k"), |lease| async move {
            assert_eq!(lease.attempt(), Attempt::Takeover);
            assert!(lease.token() > token, "ACQ-10");
            Ok::<_, Never>(7)
        })
        .await
        .unwrap();
    assert_eq!(outcome, Outcome::Executed(7));
    assert!(
        started.elapsed() >= 999 * MS && started.elapsed() < 1_100 * MS,
        "{:?}",
        started.elapsed()
    );
    let counts = counters.read();
    assert_eq!((counts.acquired, counts.taken_over, counts.failed, counts.completed), (2, 1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn run_1_an_action_many_leases_long_keeps_its_lease() {
    let engine = engine();
    let long = {
        let engine = engine.clone();
        tokio::spawn(async move {
            engine
                .execute_with(ctx("k"), |lease| async move {
                    sleep(20_000 * MS).await;
                    Ok::<_, Never>(lease.believed_held())
                })
                .await
                .unwrap()
        })
    };
    sleep(10 * MS).await;
    let waiter =
        IdempotencyContext::builder("test", "k").wait_timeout(60_000 * MS).build().unwrap();
    let replayed = engine.execute(waiter, || async { Ok::<_, Never>(false) }).await.unwrap();
    assert_eq!(replayed, Outcome::Replayed(true));
    assert_eq!(long.await.unwrap(), Outcome::Executed(true));
    assert_eq!(engine.activity().beating, 0, "the heartbeat ends with its lease (RUN-3)");
}

#[tokio::test(start_paused = true)]
async fn run_4_errors_and_panics_free_the_key() {
    let engine = engine();
    let failed = engine.execute(ctx("k"), || async { Err::<u32, _>("declined") }).await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))));
    let panicking = {
        let engine = engine.clone();
        tokio::spawn(async move {
            let _ =
                engine.execute(ctx("k"), || async { panic!("boom") as Result<u32, Never> }).await;
        })
    };
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!(answer(&engine, impatient("k"), 3).await, Outcome::Executed(3));
}

#[tokio::test(start_paused = true)]
async fn run_5_a_dropped_execution_lets_its_lease_run_out_unless_told_to_release() {
    let engine = engine();
    let hang = || async { pending::<Result<u32, Never>>().await };
    assert!(timeout(10 * MS, engine.execute(ctx("a"), hang)).await.is_err());
    assert!(answer(&engine, impatient("a"), 1).await.is_in_flight());
    assert!(answer(&engine, ctx("a"), 1).await.is_executed());
    assert!(
        timeout(10 * MS, engine.call(ctx("b")).on_drop(OnDrop::Release).execute(hang))
            .await
            .is_err()
    );
    sleep(MS).await;
    assert!(answer(&engine, impatient("b"), 1).await.is_executed());
}

#[tokio::test(start_paused = true)]
async fn run_5_spawned_actions_outlive_their_caller_and_shutdown_waits_for_them() {
    let engine = engine();
    let slow = || async {
        sleep(500 * MS).await;
        Ok::<_, Never>(5_u32)
    };
    assert!(timeout(10 * MS, engine.spawn(ctx("k"), slow)).await.is_err());
    assert_eq!(engine.activity().running, 1);
    assert_eq!(engine.shutdown(100 * MS).await, 1);
    let refused = engine.execute(ctx("new"), || async { Ok::<_, Never>(1_u32) }).await;
    assert!(matches!(refused, Err(ExecuteError::Store(e)) if e.kind() == ErrorKind::ShuttingDown));
    assert_eq!(engine.shutdown(1_000 * MS).await, 0);
    assert_eq!(
        answer(&engine, ctx("k"), 6).await,
        Outcome::Replayed(5),
        "a finished key is still replayed"
    );
}

#[tokio::test(start_paused = true)]
async fn run_5_an_acquire_that_a_shutdown_overtakes_starts_no_action() {
    let store = SharedStore::from(MemoryStore::new());
    let slow = SlowStore::new(store.clone(), 100 * MS, 100 * MS);
    let engine = IdempotencyEngine::new(SharedStore::new(slow));
    let ran = AtomicUsize::new(0);
    let action = || async { Ok::<_, Never>(ran.fetch_add(1, Ordering::SeqCst)) };
    let stops = async {
        sleep(150 * MS).await;
        engine.shutdown(Duration::ZERO).await
    };
    let (refused, left) = tokio::join!(engine.execute(ctx("k"), action), stops);
    assert!(matches!(refused, Err(ExecuteError::Store(e)) if e.kind() == ErrorKind::ShuttingDown));
    assert_eq!((left, ran.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(engine.shutdown(1_000 * MS).await, 0, "the shutdown waits for the release");
    let peeked = store.peek(ctx("k").identity()).await.unwrap();
    assert!(matches!(peeked, Peeked::Absent), "{peeked:?}");
}

#[tokio::test(start_paused = true)]
async fn run_5_max_running_caps_tracked_actions_and_still_replays() {
    let config = {
        let mut c = IdempotencyConfig::default();
        c.max_running = Some(1);
        c
    };
    let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    let quick = || async { Ok::<_, Never>(1_u32) };
    let _ = engine.spawn(ctx("done"), quick).await.unwrap();
    let _ =
        timeout(MS, engine.spawn(ctx("busy"), || async { pending::<Result<u32, Never>>().await }))
            .await;
    let refused = engine.spawn(ctx("more"), quick).await;
    assert!(matches!(refused, Err(ExecuteError::Store(e)) if e.kind() == ErrorKind::TooBusy));
    assert_eq!(engine.spawn(ctx("done"), quick).await.unwrap(), Outcome::Replayed(1));
}

#[tokio::test(start_paused = true)]
async fn run_6_after_max_hold_the_lease_is_lost_and_the_key_goes_on() {
    let config = {
        let mut c = IdempotencyConfig::default();
        c.max_hold = 3_000 * MS;
        c
    };
    let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    let hung = {
        let engine = engine.clone();
        tokio::spawn(async move {
            engine
                .execute_with(ctx("k"), |lease| async move {
                    let loss = lease.lost().await;
                    Ok::<_, Never>(format!("{loss:?}"))
                })
                .await
        })
    };
    let outcome = timeout(10_000 * MS, hung).await.unwrap().unwrap().unwrap();
    assert_eq!(
        outcome,
        Outcome::Executed("MaxHold".to_owned()),
        "no other caller took over, so it counts (CMP-2)"
    );
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_refused_completion_is_answered_with_the_takers_result() {
    let store = MemoryStore::new();
    let engine = IdempotencyEngine::new(store);
    let Acquisition::Granted(held) = engine.try_acquire(&ctx("k")).await.unwrap() else {
        panic!("granted")
    };
    // With this `max_hold`, the owner sends no beats, so its lease ends while it works, as if its
    // process were paused.
    let config = {
        let mut c = IdempotencyConfig::default();
        c.max_hold = 10 * MS;
        c
    };
    drop(held);
    let zombie = IdempotencyEngine::builder(engine.store().clone()).config(config).build().unwrap();
    let fenced = Arc::new(AtomicUsize::new(0));
    let late = {
        let (zombie, fenced) = (zombie.clone(), Arc::clone(&fenced));
        tokio::spawn(async move {
            zombie
                .call(ctx("k"))
                .on_fenced(move |value: u32| fenced.store(value as usize, Ordering::SeqCst))
                .report(|_| async {
                    sleep(3_000 * MS).await;
                    Ok::<_, Never>(1_u32)
                })
                .await
                .unwrap()
        })
    };
    sleep(1_500 * MS).await;
    assert_eq!(answer(&engine, ctx("k"), 2).await, Outcome::Executed(2));
    let report = late.await.unwrap();
    assert_eq!(report.outcome, Outcome::Replayed(2));
    assert!(report.fenced);
    assert_eq!(fenced.load(Ordering::SeqCst), 1, "the hook gets the refused value");
}

#[tokio::test(start_paused = true)]
async fn fp_1_another_request_under_the_same_key_is_refused() {
    let engine = engine();
    let with = |byte| {
        let fp = Fingerprint::new(&[1, byte]).unwrap();
        IdempotencyContext::builder("test", "k").fingerprint(fp).build().unwrap()
    };
    assert_eq!(answer(&engine, with(1), 1).await, Outcome::Executed(1));
    let other = engine.execute(with(2), || async { Ok::<_, Never>(2_u32) }).await;
    assert!(matches!(other, Err(ExecuteError::Mismatch)));
    assert_eq!(answer(&engine, ctx("k"), 3).await, Outcome::Replayed(1), "only if both have one");
}

#[tokio::test(start_paused = true)]
async fn cmp_6_ttl_runs_from_completion_and_then_counts_as_absent() {
    let engine = engine();
    let short = || IdempotencyContext::builder("test", "k").ttl(100 * MS).build().unwrap();
    assert!(answer(&engine, short(), 1).await.is_executed());
    sleep(99 * MS).await;
    assert!(answer(&engine, short(), 2).await.is_replayed());
    sleep(2 * MS).await;
    assert!(answer(&engine, short(), 3).await.is_executed());
}

/// A store in which the holder's token becomes smaller, as it can after a restore from a backup.
#[derive(Debug)]
struct Restored(retryproof_core::SharedStore, Arc<AtomicUsize>);

#[deny(clippy::missing_trait_methods)]
impl retryproof_core::IdempotencyStore for Restored {
    async fn acquire(
        &self,
        id: &retryproof_core::Identity,
        req: &retryproof_core::store::AcquireRequest,
    ) -> retryproof_core::Result<retryproof_core::store::Acquired> {
        use retryproof_core::store::{Acquired, LiveLease};
        let first = self.1.fetch_add(1, Ordering::SeqCst) == 0;
        match self.0.acquire(id, req).await? {
            Acquired::Busy(LiveLease { remaining, token, .. }) if first => {
                let token = retryproof_core::FencingToken::new(token.get() + 1_000);
                Ok(Acquired::Busy(LiveLease::new(remaining, token)))
            }
            other => Ok(other),
        }
    }

    async fn peek(
        &self,
        id: &retryproof_core::Identity,
    ) -> retryproof_core::Result<retryproof_core::store::Peeked> {
        self.0.peek(id).await
    }

    async fn wait_for_change(
        &self,
        id: &retryproof_core::Identity,
        seen: retryproof_core::FencingToken,
        at_most: Duration,
    ) -> retryproof_core::Result<()> {
        self.0.wait_for_change(id, seen, at_most).await
    }

    async fn extend(
        &self,
        id: &retryproof_core::Identity,
        owner: retryproof_core::OwnerId,
        lease: Duration,
    ) -> retryproof_core::Result<retryproof_core::store::FencedWrite> {
        self.0.extend(id, owner, lease).await
    }

    async fn complete(
        &self,
        id: &retryproof_core::Identity,
        owner: retryproof_core::OwnerId,
        done: &retryproof_core::store::Completion,
    ) -> retryproof_core::Result<retryproof_core::store::FencedWrite> {
        self.0.complete(id, owner, done).await
    }

    async fn release(
        &self,
        id: &retryproof_core::Identity,
        owner: retryproof_core::OwnerId,
    ) -> retryproof_core::Result<retryproof_core::store::FencedWrite> {
        self.0.release(id, owner).await
    }

    fn profile(&self) -> retryproof_core::store::StoreProfile {
        self.0.profile()
    }
}

#[tokio::test(start_paused = true)]
async fn acq_5_tokens_that_went_back_do_not_make_a_waiter_spin() {
    let memory = retryproof_core::SharedStore::from(MemoryStore::new());
    let holder = IdempotencyEngine::new(memory.clone());
    let Acquisition::Granted(held) = holder.try_acquire(&ctx("k")).await.unwrap() else {
        panic!("granted")
    };
    let calls = Arc::new(AtomicUsize::new(0));
    let restored = retryproof_core::SharedStore::new(Restored(memory, Arc::clone(&calls)));
    let waiter = IdempotencyEngine::new(restored);
    let waiting = tokio::spawn(async move { answer(&waiter, ctx("k"), 2).await });
    sleep(3_000 * MS).await;
    // The waiter acquires when it starts, when it finds the smaller token, and whenever it expects
    // the end of the lease, which the holder's beats postpone.
    assert!(calls.load(Ordering::SeqCst) < 12, "{} acquires", calls.load(Ordering::SeqCst));
    held.release().await.unwrap();
    assert_eq!(waiting.await.unwrap(), Outcome::Executed(2));
}
