// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the table "How a call ends" on the front page.

use std::time::Duration;

use retryproof::clock::Instant;
use retryproof::{
    Acquisition, Attempt, CodecId, ErrorKind, ExecuteError, Fingerprint, IdempotencyContext,
    IdempotencyEngine, MemoryStore, Outcome, Payload, Tombstone,
};
use tokio::time::{sleep, timeout};

const S: Duration = Duration::from_secs(1);

fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

fn order() -> IdempotencyContext {
    IdempotencyContext::builder("payments", "order-17")
        .wait_timeout(10 * S)
        .lease(30 * S)
        .build()
        .unwrap()
}

fn request(body: u8) -> IdempotencyContext {
    let fingerprint = Fingerprint::new(&[1, body]).unwrap();
    IdempotencyContext::builder("payments", "order-17").fingerprint(fingerprint).build().unwrap()
}

type Declined = std::io::Error;

async fn charge(receipt: u32) -> Result<u32, Declined> {
    Ok(receipt)
}

async fn charge_within(time: Duration) -> Result<u32, Declined> {
    sleep(time).await;
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn acq_1_first_executes_and_later_replays() {
    let engine = engine();
    assert_eq!(engine.execute(order(), || charge(1)).await.unwrap(), Outcome::Executed(1));
    assert_eq!(engine.execute(order(), || charge(2)).await.unwrap(), Outcome::Replayed(1));
    sleep(24 * 3_600 * S).await;
    assert_eq!(
        engine.execute(order(), || charge(3)).await.unwrap(),
        Outcome::Executed(3),
        "CMP-6: the ttl is over"
    );
}

#[tokio::test(start_paused = true)]
async fn acq_1_a_duplicate_outlasts_the_first_or_is_in_flight() {
    for (takes, replayed) in [(9 * S, true), (11 * S, false)] {
        let engine = engine();
        let first = tokio::spawn({
            let engine = engine.clone();
            async move { engine.execute(order(), || charge_within(takes)).await.unwrap() }
        });
        tokio::task::yield_now().await;
        let began = Instant::now();
        let outcome = engine.execute(order(), || charge(2)).await.unwrap();
        if replayed {
            assert_eq!(outcome, Outcome::Replayed(1));
            assert!(began.elapsed() < 10 * S, "woken, not timed out");
        } else {
            assert!(outcome.is_in_flight() && began.elapsed() >= 10 * S, "{outcome:?}");
        }
        assert_eq!(first.await.unwrap(), Outcome::Executed(1));
    }
}

#[tokio::test(start_paused = true)]
async fn fp_1_another_request_under_the_key_is_a_mismatch() {
    let engine = engine();
    assert!(engine.execute(request(1), || charge(1)).await.unwrap().is_executed());
    let other = engine.execute(request(2), || charge(2)).await;
    assert!(matches!(other, Err(ExecuteError::Mismatch)), "{other:?}");
    assert_eq!(engine.execute(request(1), || charge(3)).await.unwrap(), Outcome::Replayed(1));
}

#[tokio::test(start_paused = true)]
async fn run_4_a_failed_action_runs_again() {
    let engine = engine();
    let failed =
        engine.execute(order(), || async { Err::<u32, _>(Declined::other("declined")) }).await;
    assert!(
        matches!(failed, Err(ExecuteError::Action(error)) if error.to_string() == "declined"),
        "unchanged"
    );
    let call = tokio::spawn({
        let engine = engine.clone();
        async move {
            engine
                .execute(order(), || async { panic!("on purpose") as Result<u32, Declined> })
                .await
        }
    });
    assert!(call.await.unwrap_err().is_panic(), "the panic goes on");
    assert_eq!(engine.execute(order(), || charge(3)).await.unwrap(), Outcome::Executed(3));
}

#[tokio::test(start_paused = true)]
async fn acq_2_acq_12_a_dead_holder_is_taken_over_when_its_lease_is_over() {
    let engine = engine();
    let Acquisition::Granted(held) = engine.try_acquire(&order()).await.unwrap() else {
        panic!("not granted")
    };
    let key = held.lease().downstream_key("charge");
    drop(held); // like a process that died: no more heartbeats, and no release
    let died = Instant::now();
    assert!(engine.execute(order(), || charge(2)).await.unwrap().is_in_flight(), "10 s of 30");
    let patient =
        IdempotencyContext::builder("payments", "order-17").wait_timeout(60 * S).build().unwrap();
    let outcome = engine.execute_with(patient, |lease| async move {
        assert_eq!(lease.attempt(), Attempt::Takeover);
        assert_eq!(lease.downstream_key("charge"), key, "the same after a takeover");
        charge(3).await
    });
    assert_eq!(timeout(60 * S, outcome).await.unwrap().unwrap(), Outcome::Executed(3));
    assert!(died.elapsed() >= 30 * S, "not before the lease has ended: {:?}", died.elapsed());
}

#[tokio::test(start_paused = true)]
async fn http_13_a_result_that_was_not_kept_is_not_replayable() {
    let engine = engine();
    let Acquisition::Granted(held) = engine.try_acquire(&order()).await.unwrap() else {
        panic!("not granted")
    };
    let _ = held.complete_tombstone(Tombstone::new()).await;
    let again = engine.execute(order(), || charge(2)).await;
    assert!(matches!(again, Err(ExecuteError::NotReplayable(_))), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn cmp_8_a_result_of_another_codec_runs_nothing() {
    let engine = engine();
    let Acquisition::Granted(held) = engine.try_acquire(&order()).await.unwrap() else {
        panic!("not granted")
    };
    let _ = held.complete(Payload::new(CodecId::BYTES, 0, b"1")).await;
    let again = engine.execute(order(), || charge(2)).await;
    assert!(matches!(again, Err(ExecuteError::Codec(error)) if error.kind() == ErrorKind::Codec));
}
