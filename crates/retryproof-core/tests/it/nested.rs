// SPDX-License-Identifier: MIT OR Apache-2.0
//! ACQ-14: a call inside the action of its own key does not wait for itself.

use std::pin::pin;
use std::time::Duration;

use retryproof_core::internal::catch_panic_of;
use retryproof_core::{
    IdempotencyConfig, IdempotencyContext, IdempotencyEngine, Outcome, SharedStore,
};
use retryproof_memory::MemoryStore;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

const SEC: Duration = Duration::from_secs(1);

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("nested", key).wait_timeout(5 * SEC).build().unwrap()
}

async fn panics() -> Result<u32, &'static str> {
    panic!("on purpose")
}

async fn inner(engine: &IdempotencyEngine, key: &str) -> (Outcome<u32>, Duration) {
    let began = Instant::now();
    let outcome = engine.execute(ctx(key), || async { Ok::<_, &str>(7) }).await.unwrap();
    (outcome, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_call_inside_its_own_key_is_in_flight_at_once() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let outer = engine.execute(ctx("k"), || async {
        // The inner call returns `InFlight` at once, even after the action was suspended, and
        // inside the action of another key.
        for _ in 0..2 {
            let (outcome, took) = inner(&engine, "k").await;
            assert!(matches!(outcome, Outcome::InFlight(_)), "{outcome:?}");
            assert_eq!(took, Duration::ZERO);
            sleep(SEC).await;
        }
        let (other, _) = inner(&engine, "other").await;
        assert_eq!(other, Outcome::Executed(7));
        let between = engine.execute(ctx("between"), || async {
            let (outcome, took) = inner(&engine, "k").await;
            Ok::<_, &str>(matches!(outcome, Outcome::InFlight(_)) && took.is_zero())
        });
        assert_eq!(between.await.unwrap(), Outcome::Executed(true));
        Ok::<_, &str>(1)
    });
    assert_eq!(outer.await.unwrap(), Outcome::Executed(1));
    assert_eq!(inner(&engine, "k").await.0, Outcome::Replayed(1));
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_call_beside_the_action_or_in_another_task_waits() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let slow = engine.execute(ctx("k"), || async {
        sleep(2 * SEC).await;
        Ok::<_, &str>(1)
    });
    let (first, (beside, took)) = tokio::join!(slow, inner(&engine, "k"));
    assert_eq!((first.unwrap(), beside), (Outcome::Executed(1), Outcome::Replayed(1)));
    assert!(took >= 2 * SEC, "{took:?}");
    let spawning = engine.execute(ctx("s"), || async {
        let spawned = engine.clone();
        let task = tokio::spawn(async move { inner(&spawned, "s").await });
        sleep(SEC).await;
        assert!(!task.is_finished());
        Ok::<_, &str>(1)
    });
    assert_eq!(spawning.await.unwrap(), Outcome::Executed(1));
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_call_of_another_task_that_the_action_polls_waits() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let polling = engine.execute(ctx("l"), || async {
        let local = LocalSet::new();
        let other = engine.clone();
        let task = local.spawn_local(async move { inner(&other, "l").await });
        local.run_until(sleep(SEC)).await;
        assert!(!task.is_finished(), "it is another call, which waits for its result");
        Ok::<_, &str>(1)
    });
    assert_eq!(polling.await.unwrap(), Outcome::Executed(1));
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_call_on_another_engine_waits() {
    let store = SharedStore::from(MemoryStore::new());
    let (engine, other) = (IdempotencyEngine::new(store.clone()), IdempotencyEngine::new(store));
    let outer = engine.execute(ctx("k"), || async {
        expect_to_wait(&other, "k").await;
        Ok::<_, &str>(1)
    });
    assert_eq!(outer.await.unwrap(), Outcome::Executed(1));
}

#[tokio::test(start_paused = true)]
async fn acq_14_a_call_inside_an_action_that_has_lost_its_key_waits_for_the_new_holder() {
    let mut config = IdempotencyConfig::default();
    config.max_hold = SEC;
    let engine = IdempotencyEngine::builder(MemoryStore::new()).config(config).build().unwrap();
    let outer = engine.execute(ctx("k"), || async {
        // After this sleep, the lease of 30 s has run out.
        sleep(40 * SEC).await;
        let next = {
            let engine = engine.clone();
            let slow = || async {
                sleep(3 * SEC).await;
                Ok::<_, &str>(2)
            };
            tokio::spawn(async move { engine.execute(ctx("k"), slow).await })
        };
        sleep(SEC).await;
        assert_eq!(inner(&engine, "k").await.0, Outcome::Replayed(2));
        assert_eq!(next.await.unwrap().unwrap(), Outcome::Executed(2));
        Ok::<_, &str>(1)
    });
    assert_eq!(outer.await.unwrap(), Outcome::Replayed(2), "CMP-2: it lost its key");
}

/// Expects that a call of `key` from inside the action of `key` does not wait.
async fn expect_in_flight_at_once(engine: &IdempotencyEngine, key: &str) {
    let (outcome, took) = inner(engine, key).await;
    let at_once = matches!(outcome, Outcome::InFlight(_)) && took.is_zero();
    assert!(at_once, "{key}: {outcome:?} after {took:?}");
}

/// Expects that a call of `key`, which is held, waits as usual.
async fn expect_to_wait(engine: &IdempotencyEngine, key: &str) {
    let (outcome, took) = inner(engine, key).await;
    let waited = matches!(outcome, Outcome::InFlight(_)) && took >= 5 * SEC;
    assert!(waited, "{key}: {outcome:?} after {took:?}");
}

/// All calls run in one task, and the key stays held under the token of the ended action.
/// Otherwise, the test could not notice that the task still remembers that action.
#[tokio::test(start_paused = true)]
async fn acq_14_a_panic_or_a_drop_leaves_no_trace() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let outer = engine.execute(ctx("outer"), || async {
        let panics_at_once = engine.call(ctx("at once")).execute_with(|lease| {
            lease.hold_on_error();
            if lease.is_guarded() {
                panic!("on purpose");
            }
            std::future::pending::<Result<u32, &str>>()
        });
        assert!(catch_panic_of(pin!(panics_at_once)).await.is_err());
        // The outer action is still recognised, in the same poll and in later ones.
        expect_in_flight_at_once(&engine, "outer").await;
        expect_to_wait(&engine, "at once").await;
        let panics_later = engine.call(ctx("later")).execute_with(|lease| async move {
            lease.hold_on_error();
            sleep(SEC).await;
            panics().await
        });
        assert!(catch_panic_of(pin!(panics_later)).await.is_err());
        expect_to_wait(&engine, "later").await;
        let pending = engine.execute(ctx("dropped"), std::future::pending::<Result<u32, &str>>);
        assert!(tokio::time::timeout(SEC, pending).await.is_err());
        expect_to_wait(&engine, "dropped").await;
        expect_in_flight_at_once(&engine, "outer").await;
        Ok::<_, &str>(1)
    });
    assert_eq!(outer.await.unwrap(), Outcome::Executed(1));
}

#[cfg(feature = "blocking")]
#[test]
fn acq_14_a_panic_of_a_blocking_action_leaves_no_trace() {
    let engine = retryproof_core::blocking::Engine::new(MemoryStore::new()).unwrap();
    let panics = || {
        let panicking = engine.call(ctx("k")).execute_with(|lease| {
            lease.hold_on_error();
            if lease.is_guarded() {
                panic!("on purpose");
            }
            Ok::<u32, &str>(1)
        });
        drop(panicking);
    };
    assert!(retryproof_core::internal::catch_panic(panics).is_err());
    let wait = Duration::from_millis(100);
    let again = IdempotencyContext::builder("nested", "k").wait_timeout(wait).build().unwrap();
    let began = Instant::now();
    let outcome = engine.execute(again, || Ok::<_, &str>(7)).unwrap();
    let waited = matches!(outcome, Outcome::InFlight(_)) && began.elapsed() >= wait;
    assert!(waited, "{outcome:?} after {:?}", began.elapsed());
}

#[cfg(feature = "blocking")]
#[test]
fn acq_14_a_blocking_call_inside_its_own_key_is_in_flight_at_once() {
    let engine = retryproof_core::blocking::Engine::new(MemoryStore::new()).unwrap();
    let began = Instant::now();
    let outer = engine.execute(ctx("k"), || {
        let nested = engine.execute(ctx("k"), || Ok::<_, &str>(7)).unwrap();
        Ok::<_, &str>(matches!(nested, Outcome::InFlight(_)))
    });
    assert!(began.elapsed() < 2 * SEC, "it does not wait: {:?}", began.elapsed());
    assert_eq!(outer.unwrap(), Outcome::Executed(true));
}
