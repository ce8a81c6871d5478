// SPDX-License-Identifier: MIT OR Apache-2.0
//! ACQ-14: a call inside the action of its own key does not wait for itself.

use std::time::Duration;

use retryproof_core::{IdempotencyContext, IdempotencyEngine, Outcome};
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
        // Also after the action has been suspended, and below the action of another key.
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
async fn acq_14_a_panic_or_a_drop_leaves_no_trace() {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let panicking = tokio::spawn({
        let engine = engine.clone();
        async move {
            drop(engine.execute(ctx("p"), panics).await);
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_eq!(inner(&engine, "p").await.0, Outcome::Executed(7));
    let pending = engine.execute(ctx("d"), std::future::pending::<Result<u32, &str>>);
    assert!(tokio::time::timeout(SEC, pending).await.is_err());
    let (outcome, took) = inner(&engine, "d").await;
    assert!(matches!(outcome, Outcome::InFlight(_)) && took >= 5 * SEC, "{outcome:?} {took:?}");
}

#[cfg(feature = "blocking")]
#[test]
fn acq_14_a_blocking_call_inside_its_own_key_is_in_flight_at_once() {
    let engine = retryproof_core::blocking::Engine::new(MemoryStore::new()).unwrap();
    let outer = engine.execute(ctx("k"), || {
        let nested = engine.execute(ctx("k"), || Ok::<_, &str>(7)).unwrap();
        Ok::<_, &str>(matches!(nested, Outcome::InFlight(_)))
    });
    assert_eq!(outer.unwrap(), Outcome::Executed(true));
}
