// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests each row of LST-2, for the result of an engine and of an annotated function. Also tests
//! messages that are handled concurrently.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Barrier, Notify, mpsc};

use super::*;
use crate::error::{Error, ErrorKind};
use crate::identity::Identity;
use crate::outcome::{
    CompletionError, ExecuteError, InFlight, Outcome, Recorded, Rejected, settle,
};
use crate::payload::Tombstone;

type Executed = Result<Outcome<u8>, ExecuteError<Rejected>>;

const NOW: Duration = Duration::ZERO;

fn action() -> ExecuteError<Rejected> {
    // In this test, `Rejected` is the error type of the work itself. It must count as an error of
    // the work, and not as a rejection by the engine.
    ExecuteError::Action(Rejected::Mismatch)
}

fn store(kind: ErrorKind) -> ExecuteError<Rejected> {
    ExecuteError::Store(Error::new(kind, "planted").during("acquire"))
}

fn completion(recorded: Recorded) -> ExecuteError<Rejected> {
    ExecuteError::Completion(CompletionError::new(Error::unavailable("planted"), recorded))
}

/// Returns two verdicts on a result: one on the engine's result, and one on what an annotated
/// function would return for it.
fn both(result: Executed) -> (Verdict, Verdict) {
    (Verdict::of(&result), Verdict::of_function(&settle(result)))
}

fn row(result: Executed, verdict: Verdict) {
    assert_eq!(both(result), (verdict, verdict));
}

#[test]
fn lst_2_ann_5_executed_and_replayed_are_acknowledged() {
    row(Ok(Outcome::Executed(1)), Verdict::Ack { reason: Reason::Executed });
    let (of_engine, of_function) = both(Ok(Outcome::Replayed(1)));
    assert_eq!(of_engine, Verdict::Ack { reason: Reason::Replayed });
    assert_eq!(
        of_function,
        Verdict::Ack { reason: Reason::Executed },
        "a function does not distinguish a replay from a run"
    );
}

#[test]
fn lst_2_ann_5_not_replayable_is_acknowledged() {
    let done = Verdict::Ack { reason: Reason::NotReplayable };
    row(Err(ExecuteError::NotReplayable(Tombstone::new())), done);
    row(Err(completion(Recorded::Tombstone)), done);
}

#[test]
fn lst_2_ann_5_in_flight_comes_again_no_sooner_than_the_lease_ends_and_is_no_failure() {
    for (remaining, after) in
        [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (90_000, 90), (86_400_000, 86_400)]
    {
        let busy = InFlight::new(Duration::from_millis(remaining));
        let verdict = Verdict::delayed(Duration::from_secs(after));
        row(Ok(Outcome::InFlight(busy)), verdict);
        assert!(!verdict.is_failure());
    }
}

#[test]
fn lst_2_mismatch_and_poison_are_dead_letters() {
    row(Err(ExecuteError::Mismatch), Verdict::DeadLetter { reason: Reason::Mismatch });
    let bad_key = Identity::of("scope", "a\tb").unwrap_err();
    row(Err(ExecuteError::Store(bad_key.during("acquire"))), Verdict::poison(Poison::BadKey));
    for why in [Poison::NoKey, Poison::BadKey, Poison::Unreadable] {
        assert_eq!(Verdict::poison(why), Verdict::DeadLetter { reason: Reason::Poison(why) });
    }
}

/// The message itself is good, so it is redelivered until the program is fixed.
#[test]
fn lst_2_a_mistake_of_the_program_is_not_the_messages() {
    let long: &'static str = "p".repeat(256).leak();
    let mistakes = [
        Identity::of(long, "k").unwrap_err(),
        crate::IdempotencyContext::builder("s", "k").lease(NOW).build().unwrap_err(),
        Fingerprint::new(&[]).unwrap_err(),
        Error::new(ErrorKind::Invalid, "the ttl or the lease is longer than the store supports"),
    ];
    for mistake in mistakes {
        assert_eq!(mistake.kind(), ErrorKind::Invalid);
        row(Err(ExecuteError::Store(mistake)), Verdict::Nack { after: NOW, reason: Reason::Store });
    }
}

#[test]
fn lst_2_cmp_8_an_unreadable_result_is_acknowledged_unless_it_is_to_be_sent_on() {
    let ack = Verdict::Ack { reason: Reason::Unreadable };
    row(Err(ExecuteError::Codec(Error::new(ErrorKind::Codec, "planted"))), ack);
    row(Err(ExecuteError::Store(Error::corrupt("planted"))), ack);
    assert_eq!(ack.replying(), Verdict::DeadLetter { reason: Reason::Unreadable });
    let executed = Verdict::Ack { reason: Reason::Executed };
    assert_eq!(executed.replying(), executed);
}

#[test]
fn lst_2_cmp_8_a_record_whose_state_nobody_knows_is_never_acknowledged() {
    row(Err(store(ErrorKind::Corrupt)), Verdict::DeadLetter { reason: Reason::Unreadable });
}

#[test]
fn lst_2_lost_lease_store_away_and_failures_come_again() {
    let again = |reason| Verdict::Nack { after: NOW, reason };
    row(Err(ExecuteError::LeaseLost), again(Reason::LeaseLost));
    row(Err(completion(Recorded::No)), again(Reason::NotRecorded));
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::ShuttingDown,
        ErrorKind::TooBusy,
        ErrorKind::Full,
        ErrorKind::Schema,
        ErrorKind::Unexpected,
    ];
    kinds.into_iter().for_each(|kind| row(Err(store(kind)), again(Reason::Store)));
    assert_eq!(Verdict::of::<u8, _>(&Err(action())), again(Reason::Failed));
    assert!(again(Reason::Failed).is_failure() && again(Reason::Store).is_failure());
}

/// The error of an annotated function does not say how much of the lease is left. The redelivered
/// message therefore finds its key in flight.
#[test]
fn lst_2_run_4_an_error_of_unknown_effect_comes_again_no_sooner_than_the_lease_ends_and_is_a_failure()
 {
    let held = |remaining| ExecuteError::Held { error: Rejected::Mismatch, remaining };
    for (remaining, after) in [(0, 1), (1_001, 2), (90_000, 90)] {
        let verdict = Verdict::of::<u8, _>(&Err(held(Duration::from_millis(remaining))));
        assert_eq!(
            verdict,
            Verdict::Nack { after: Duration::from_secs(after), reason: Reason::Held }
        );
        assert!(verdict.is_failure());
    }
    assert!(matches!(settle::<u8, _>(Err(held(NOW))), Err(Rejected::Mismatch)), "unchanged");
}

#[test]
fn lst_2_work_that_failed_uses_up_an_attempt_and_a_store_that_failed_does_not() {
    assert!(Verdict::failed().is_failed_attempt());
    assert!(!Verdict::failed().given_up().is_failed_attempt());
    for (failed, result) in [(true, Err(action())), (false, Err(store(ErrorKind::Unavailable)))] {
        let verdict = Verdict::of::<u8, _>(&result);
        assert!(verdict.is_failure(), "{verdict:?}");
        assert_eq!(verdict.is_failed_attempt(), failed, "{verdict:?}");
    }
    assert!(!Verdict::delayed(NOW).is_failed_attempt());
}

#[test]
fn lst_2_a_message_out_of_redeliveries_is_a_dead_letter_and_one_that_is_done_is_not() {
    assert_eq!(Verdict::failed().given_up(), Verdict::DeadLetter { reason: Reason::Failed });
    let done = Verdict::Ack { reason: Reason::Replayed };
    assert_eq!(done.given_up(), done);
}

#[test]
fn lst_2_ann_5_a_boxed_error_keeps_what_it_says() {
    type Boxed = Box<dyn StdError + Send + Sync>;
    let of = |error: Boxed| Verdict::of_function(&Err::<(), _>(error));
    assert_eq!(of(Rejected::Mismatch.into()), Verdict::DeadLetter { reason: Reason::Mismatch });
    assert_eq!(of("the mail server is unavailable".into()), Verdict::failed());
}

#[test]
fn fp_1_another_body_has_another_fingerprint() {
    let empty = body_fingerprint(b"");
    assert_eq!((empty.algorithm(), empty.as_bytes().len()), (64, 33));
    assert_eq!(empty.as_bytes()[1..5], [0xe3, 0xb0, 0xc4, 0x42], "SHA-256");
    assert_eq!(body_fingerprint(b"a"), body_fingerprint(b"a"));
    assert_ne!(body_fingerprint(b"a"), empty);
}

#[tokio::test]
async fn lst_2_a_batch_runs_a_bounded_number_at_once_and_answers_each_by_itself() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (sender, mut answers) = mpsc::unbounded_channel();
    // Four messages have to be in progress at the same time before any of them continues.
    let four = Arc::new(Barrier::new(4));
    let work = |n: &usize| {
        let (n, now, most, four) = (*n, Arc::clone(&now), Arc::clone(&most), Arc::clone(&four));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            four.wait().await;
            now.fetch_sub(1, Ordering::SeqCst);
            assert!(n != 7, "message 7 panics");
            if n == 9 {
                Verdict::poison(Poison::Unreadable)
            } else {
                Verdict::ack(Reason::Executed)
            }
        }
    };
    batch(0..100_usize, 4, work, move |n, verdict| {
        sender.send((n, verdict)).expect("the receiver should exist");
        std::future::ready(())
    })
    .await;
    let mut all = Vec::new();
    while let Some(answer) = answers.recv().await {
        all.push(answer);
    }
    all.sort_unstable_by_key(|(n, _)| *n);
    assert_eq!(all.iter().map(|(n, _)| *n).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert_eq!(all[7].1, Verdict::Nack { after: NOW, reason: Reason::Panicked });
    assert_eq!(all[9].1.reason(), Reason::Poison(Poison::Unreadable));
    assert!(
        all.iter()
            .filter(|(n, _)| ![7, 9].contains(n))
            .all(|(_, v)| v.reason() == Reason::Executed)
    );
}

#[tokio::test]
async fn lst_2_work_that_panics_before_its_future_is_a_verdict_and_the_others_run() {
    let (sender, mut answers) = mpsc::unbounded_channel();
    let work = |n: &usize| {
        assert!(*n != 3, "message 3 panics");
        std::future::ready(Verdict::ack(Reason::Executed))
    };
    batch(0..10_usize, 2, work, move |n, verdict| {
        sender.send((n, verdict.reason())).expect("the receiver should exist");
        std::future::ready(())
    })
    .await;
    let mut all = Vec::new();
    while let Some(answer) = answers.recv().await {
        all.push(answer);
    }
    all.sort_unstable_by_key(|(n, _)| *n);
    let why = |n| if n == 3 { Reason::Panicked } else { Reason::Executed };
    assert_eq!(all, (0..10).map(|n| (n, why(n))).collect::<Vec<_>>());
}

#[tokio::test]
async fn lst_2_a_slow_message_keeps_no_other_from_its_answer() {
    let (sender, mut answers) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let slow = Arc::clone(&go);
    let running = tokio::spawn(async move {
        let work = |n: &usize| {
            let (first, slow) = (*n == 0, Arc::clone(&slow));
            async move {
                if first {
                    slow.notified().await;
                }
                Verdict::ack(Reason::Executed)
            }
        };
        batch(0..10_usize, 2, work, move |n, _| {
            sender.send(n).expect("the receiver should exist");
            std::future::ready(())
        })
        .await;
    });
    for n in 1..10 {
        assert_eq!(answers.recv().await, Some(n));
    }
    go.notify_one();
    assert_eq!(answers.recv().await, Some(0));
    running.await.expect("the task should end");
}

#[tokio::test(start_paused = true)]
async fn run_5_a_worker_pool_waits_for_its_work_and_counts_what_it_drops() {
    let mut workers = WorkerPool::new(0);
    let slot = workers.slot().await;
    workers.spawn(slot, tokio::time::sleep(Duration::from_secs(5)));
    assert_eq!(workers.drain(Duration::from_secs(10)).await, 0);
    let slot = workers.slot().await;
    workers.spawn(slot, std::future::pending());
    assert_eq!(workers.running(), 1);
    assert_eq!(workers.drain(Duration::from_secs(10)).await, 1);
    assert_eq!(workers.running(), 0);
}

#[test]
fn lst_2_each_verdict_is_logged_at_its_level() {
    use std::io::Write;

    use parking_lot::Mutex;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let nack = |reason| Verdict::Nack { after: NOW, reason };
    let cases = [
        (Verdict::DeadLetter { reason: Reason::Unreadable }, "ERROR"),
        (nack(Reason::Store), "WARN"),
        (nack(Reason::InFlight), "DEBUG"),
        (Verdict::Ack { reason: Reason::Executed }, "DEBUG"),
    ];
    let identity = Identity::of("scope", "canary").unwrap();
    for (verdict, level) in cases {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || verdict.log("kafka", Some(&identity)));
        let line = String::from_utf8(std::mem::take(&mut *lines.0.lock())).unwrap();
        let why = format!("why=\"{}\"", verdict.reason().as_str());
        let parts = [level, "broker=\"kafka\"", &why, "identity=scope#"];
        assert!(parts.iter().all(|part| line.contains(part)), "{verdict:?}: {line}");
        assert!(!line.contains("canary"), "ID-4: {line}");
    }
}
