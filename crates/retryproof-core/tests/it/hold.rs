// SPDX-License-Identifier: MIT OR Apache-2.0
//! RUN-4: after an error of unknown effect, an action keeps its key until the end of the lease.

use std::future::pending;
use std::time::Duration;

use retryproof_core::listener::{Reason, Verdict};
use retryproof_core::{
    Attempt, ExecuteError, IdempotencyContext, IdempotencyEngine, Lease, OnDrop, Outcome,
};
use retryproof_memory::MemoryStore;
use tokio::time::{advance, timeout};

const MS: Duration = Duration::from_millis(1);

fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("hold", key)
        .lease(9_000 * MS)
        .wait_timeout(Duration::ZERO)
        .build()
        .unwrap()
}

#[derive(Debug, PartialEq)]
enum PayError {
    TimedOut,
}

async fn times_out(lease: Lease) -> Result<bool, PayError> {
    lease.hold_on_error();
    Err(PayError::TimedOut)
}

#[tokio::test]
async fn a_downstream_key_is_the_same_in_each_run_and_differs_by_step_and_key() {
    let engine = engine();
    let keys = async |key: &str| {
        let action = |lease: Lease| async move {
            Err::<u8, _>([lease.downstream_key("charge"), lease.downstream_key("mail")])
        };
        match engine.execute_with(ctx(key), action).await {
            Err(ExecuteError::Action(keys)) => keys,
            other => panic!("{other:?}"),
        }
    };
    let first = keys("k").await;
    assert_eq!(first, keys("k").await);
    let other = keys("l").await;
    let all = std::collections::HashSet::from([&first[0], &first[1], &other[0], &other[1]]);
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(first.iter().all(|key| key.len() == 64), "{first:?}");
}

/// Makes a call whose value says whether the call was a takeover.
async fn attempt(
    engine: &IdempotencyEngine,
    key: &str,
) -> Result<Outcome<bool>, ExecuteError<PayError>> {
    engine
        .execute_with(ctx(key), |lease| async move { Ok(lease.attempt() == Attempt::Takeover) })
        .await
}

/// Checks that the key is taken for the rest of the lease, and that the next run takes over,
/// because the last run may have had an effect.
async fn is_held(engine: &IdempotencyEngine, key: &str) {
    assert!(attempt(engine, key).await.unwrap().is_in_flight(), "{key}");
    advance(9_001 * MS).await;
    assert_eq!(attempt(engine, key).await.unwrap(), Outcome::Executed(true), "{key}");
}

#[tokio::test(start_paused = true)]
async fn run_4_an_error_of_unknown_effect_is_unchanged_and_leaves_the_key_to_the_lease() {
    let engine = engine();
    let (executed, spawned) = (
        engine.execute_with(ctx("execute"), times_out).await,
        engine.call(ctx("spawn")).spawn_with(times_out).await,
    );
    for (key, failed) in [("execute", executed), ("spawn", spawned)] {
        let verdict = Verdict::of(&failed);
        assert!(
            matches!(verdict, Verdict::Nack { after, reason: Reason::Held, .. } if after.as_secs() == 9),
            "{key}: {verdict:?}"
        );
        assert!(verdict.is_failure(), "it spends one of the message's attempts");
        let Err(ExecuteError::Held { error, remaining }) = failed else {
            panic!("{key}: {failed:?}")
        };
        assert_eq!((error, remaining), (PayError::TimedOut, 9_000 * MS), "{key}");
    }
    assert!(attempt(&engine, "spawn").await.unwrap().is_in_flight());
    is_held(&engine, "execute").await;
    assert_eq!(attempt(&engine, "spawn").await.unwrap(), Outcome::Executed(true));
    assert_eq!(engine.activity().beating, 0);
}

#[tokio::test(start_paused = true)]
async fn run_4_a_panic_or_a_drop_of_unknown_effect_leaves_the_key_to_the_lease() {
    let engine = engine();
    let panicking = {
        let engine = engine.clone();
        let action = |lease: Lease| async move {
            lease.hold_on_error();
            panic!("boom") as Result<u8, PayError>
        };
        tokio::spawn(async move { engine.execute_with(ctx("panic"), action).await.is_ok() })
    };
    assert!(panicking.await.unwrap_err().is_panic());
    is_held(&engine, "panic").await;

    let hang = |lease: Lease| async move {
        lease.hold_on_error();
        pending::<Result<u8, PayError>>().await
    };
    let call = engine.call(ctx("drop")).on_drop(OnDrop::Release);
    assert!(timeout(MS, call.execute_with(hang)).await.is_err());
    is_held(&engine, "drop").await;
}

#[tokio::test(start_paused = true)]
async fn run_4_a_value_is_recorded_whatever_was_feared() {
    let engine = engine();
    let feared = |lease: Lease| async move {
        lease.hold_on_error();
        Ok::<_, PayError>(lease.attempt() == Attempt::Takeover)
    };
    let outcome = engine.execute_with(ctx("value"), feared).await.unwrap();
    assert_eq!(outcome, Outcome::Executed(false));
    assert_eq!(attempt(&engine, "value").await.unwrap(), Outcome::Replayed(false));
}
