// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiters without a permit, or whose leader is not polled: what they cost the store, and what they
//! find.

use std::time::Duration;

use retryproof_core::store::SharedStore;
use retryproof_core::{
    Acquisition, CodecId, ErrorKind, ExecuteError, Fingerprint, HeldLease, IdempotencyConfig,
    IdempotencyContext, IdempotencyEngine, Outcome, Payload,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{CallLog, Operation, Recorder, Said};
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Creates an engine with this many permits, an engine of another process on the same records, and
/// a log of the first engine's calls.
fn engines(max_running: usize) -> (IdempotencyEngine, IdempotencyEngine, CallLog) {
    let (store, log) = (SharedStore::from(MemoryStore::new()), CallLog::new());
    let mut config = IdempotencyConfig::default();
    config.max_running = Some(max_running);
    let recorded = SharedStore::new(Recorder::new(store.clone(), log.clone()));
    let engine = IdempotencyEngine::builder(recorded).config(config).build().unwrap();
    (engine, IdempotencyEngine::new(store), log)
}

fn ctx(key: &str, wait: Duration) -> IdempotencyContext {
    IdempotencyContext::builder("waiters", key).lease(MINUTE).wait_timeout(wait).build().unwrap()
}

async fn granted(engine: &IdempotencyEngine, key: &str) -> HeldLease {
    match engine.try_acquire_tracked(&ctx(key, Duration::ZERO)).await.unwrap() {
        Acquisition::Granted(held) => held,
        other => panic!("{other:?}"),
    }
}

type Waiter = tokio::task::JoinHandle<retryproof_core::Result<(Acquisition, Duration)>>;

/// Starts a caller in a separate task; returns what it got, and when.
fn wait(engine: &IdempotencyEngine, key: &str, wait: Duration) -> Waiter {
    let (engine, ctx) = (engine.clone(), ctx(key, wait));
    tokio::spawn(async move {
        let began = Instant::now();
        Ok((engine.try_acquire_tracked(&ctx).await?, began.elapsed()))
    })
}

/// Frees ten keys, each with a waiter that has no permit.
async fn free_keys_without_a_permit(
    engine: &IdempotencyEngine,
    elsewhere: &IdempotencyEngine,
    most: Duration,
) -> (Vec<Waiter>, HeldLease) {
    let keys: Vec<_> = (0..10).map(|key| key.to_string()).collect();
    let mut holders = Vec::new();
    for key in &keys {
        holders.push(granted(elsewhere, key).await);
    }
    let waiters: Vec<_> = keys.iter().map(|key| wait(engine, key, most)).collect();
    sleep(10 * MS).await;
    let busy = granted(engine, "busy").await;
    for holder in holders {
        holder.release().await.unwrap();
    }
    (waiters, busy)
}

#[tokio::test(start_paused = true)]
async fn run_5_waiters_for_a_permit_ask_the_store_ever_more_seldom() {
    let (engine, elsewhere, log) = engines(1);
    let (waiters, _busy) = free_keys_without_a_permit(&engine, &elsewhere, 20_000 * MS).await;
    sleep(2_000 * MS).await;
    log.clear();
    sleep(10_000 * MS).await;
    let calls = log.entries().len();
    assert!(calls <= 10 * 20, "{calls} calls in 10 s for 10 keys: two a second each at most");
    // Although the waiters look so rarely, they find a result that another process records while
    // they wait.
    let elsewhere = granted(&elsewhere, "0").await;
    let _ = elsewhere.complete(Payload::new(CodecId::JSON, 0, b"9")).await;
    sleep(600 * MS).await;
    assert_eq!(waiters.iter().filter(|waiter| waiter.is_finished()).count(), 1);
    for (at, waiter) in waiters.into_iter().enumerate() {
        match waiter.await.unwrap() {
            Ok((found, _)) => {
                assert!(at == 0 && matches!(found, Acquisition::Complete(_)), "{at}: {found:?}")
            }
            Err(error) => assert!(at > 0 && error.kind() == ErrorKind::TooBusy, "{at}: {error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_5_a_permit_wakes_one_waiter_at_once() {
    let (engine, elsewhere, log) = engines(1);
    let (mut waiters, mut busy) = free_keys_without_a_permit(&engine, &elsewhere, MINUTE).await;
    sleep(5_000 * MS).await;
    while !waiters.is_empty() {
        log.clear();
        drop(busy.take_permit());
        // The clock stands still during these yields, so no waiter's pause ends. Only the free
        // permit can wake a waiter.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.count_of(|call| call.said == Said::Granted), 1, "{log:?}");
        assert!(log.entries().len() <= 2, "the others were left alone: {log:?}");
        // The caller with the grant is the next to end; its permit then passes to another caller.
        let at = waiters.iter().position(|waiter| waiter.is_finished()).unwrap();
        let (found, _) = waiters.swap_remove(at).await.unwrap().unwrap();
        let Acquisition::Granted(held) = found else { panic!("{found:?}") };
        busy = held;
    }
}

#[tokio::test(start_paused = true)]
async fn run_5_a_shutdown_ends_those_that_wait_for_a_permit() {
    let (engine, elsewhere, _) = engines(1);
    let (waiters, busy) = free_keys_without_a_permit(&engine, &elsewhere, MINUTE).await;
    sleep(5_000 * MS).await;
    let began = Instant::now();
    assert_eq!(engine.shutdown(Duration::ZERO).await, 1);
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::ShuttingDown);
    }
    assert!(began.elapsed() < 5 * MS, "{:?}", began.elapsed());
    drop(busy);
}

/// The leader's future is polled once, and then neither polled nor dropped, like a future that lost
/// a `select!` or that waits behind other work.
#[tokio::test(start_paused = true)]
async fn acq_5_acq_6_a_follower_asks_once_for_itself_when_its_leader_is_not_polled() {
    for end in ["completed", "released", "held"] {
        let (engine, _, log) = engines(100);
        let held = granted(&engine, "k").await;
        let context = ctx("k", MINUTE);
        let mut leader = Box::pin(engine.try_acquire(&context));
        assert!(timeout(10 * MS, leader.as_mut()).await.is_err());
        let follower = wait(&engine, "k", 2_000 * MS);
        sleep(100 * MS).await;
        log.clear();
        let kept = match end {
            "completed" => {
                let _ = held.complete(Payload::new(CodecId::JSON, 0, b"9")).await;
                None
            }
            "released" => {
                held.release().await.unwrap();
                None
            }
            _ => Some(held),
        };
        let (found, took) = follower.await.unwrap().unwrap();
        assert!(took >= 2_000 * MS && took <= 2_002 * MS, "{end}: {took:?}");
        match (end, &found) {
            ("completed", Acquisition::Complete(_)) => {}
            ("released", Acquisition::Granted(_)) => {}
            ("held", Acquisition::InFlight(busy)) => {
                assert!(busy.remaining > Duration::from_secs(50))
            }
            _ => panic!("{end}: {found:?}"),
        }
        let asked = |call: &retryproof_testkit::Entry| {
            matches!(call.operation, Operation::Acquire | Operation::Peek)
        };
        assert_eq!(log.count_of(asked), 1, "{end}: {log:?}");
        drop((leader, kept));
    }
}

#[tokio::test(start_paused = true)]
async fn fp_1_acq_5_waiters_that_share_a_wait_compare_their_own_fingerprints() {
    // The first waiter leads, and the others get its result.
    for fingerprints in [[1, 1, 2], [2, 1, 2], [2, 2, 1]] {
        let (engine, _, log) = engines(100);
        let call = |fingerprint: u8, work: Duration| {
            let ctx = IdempotencyContext::builder("waiters", "k")
                .lease(MINUTE)
                .wait_timeout(MINUTE)
                .fingerprint(Fingerprint::new(&[1, fingerprint]).unwrap())
                .build()
                .unwrap();
            let engine = engine.clone();
            tokio::spawn(async move {
                let action = || async move {
                    sleep(work).await;
                    Ok::<_, &str>(7)
                };
                engine.execute(ctx, action).await
            })
        };
        let holder = call(1, 1_000 * MS);
        let mut waiters = Vec::new();
        for fingerprint in fingerprints {
            sleep(10 * MS).await;
            waiters.push((fingerprint, call(fingerprint, Duration::ZERO)));
        }
        sleep(10 * MS).await;
        assert_eq!(engine.activity().waiting, 3);
        log.clear();
        for (fingerprint, waiter) in waiters {
            let ended = waiter.await.unwrap();
            match fingerprint {
                1 => assert_eq!(ended.unwrap(), Outcome::Replayed(7), "{fingerprints:?}"),
                _ => assert!(matches!(ended, Err(ExecuteError::Mismatch)), "{fingerprints:?}"),
            }
        }
        assert_eq!(holder.await.unwrap().unwrap(), Outcome::Executed(7));
        let acquires = log.count_of(|call| call.operation == Operation::Acquire);
        assert_eq!(acquires, 1, "one waiter should read the result for all: {log:?}");
    }
}
