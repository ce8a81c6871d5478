// SPDX-License-Identifier: MIT OR Apache-2.0
//! Repeats a run with one fault, at the first call, then at the second, and so on, until no call is
//! left. Also repeats a run with a fault at every n-th call.

use std::time::Duration;

use retryproof_core::{ErrorKind, ExecuteError, Recorded};
use retryproof_testkit::{Fault, Operation};

use super::{Does, Ended, LEASE, Lab, MS, NOW, OPERATION, ctx};

/// A long action with duplicates that wait long, briefly and not at all, a replay, and an action
/// that fails and is tried again.
struct Story {
    holder: Ended,
    patient: Ended,
    brief: Ended,
    impatient: Ended,
    later: Ended,
    failing: Ended,
    again: Ended,
}

const LONG_ACTION: Duration = Duration::from_millis(1_600);

async fn tell(lab: &Lab) -> Story {
    let holder = lab.start(ctx("k", 4 * LEASE), Does::Succeeds(LONG_ACTION));
    tokio::time::sleep(100 * MS).await;
    let patient = lab.start(ctx("k", 4 * LEASE), NOW);
    let brief = lab.start(ctx("k", 300 * MS), NOW);
    tokio::time::sleep(100 * MS).await;
    let impatient = lab.call(ctx("k", Duration::ZERO), NOW).await;
    let (holder, patient, brief) =
        (holder.await.unwrap(), patient.await.unwrap(), brief.await.unwrap());
    let later = lab.call(ctx("k", 4 * LEASE), NOW).await;
    let failing = lab.call(ctx("e", 4 * LEASE), Does::Fails(10 * MS)).await;
    let again = lab.call(ctx("e", 4 * LEASE), NOW).await;
    Story { holder, patient, brief, impatient, later, failing, again }
}

impl Story {
    fn calls(&self) -> [(&'static str, &Ended, Duration); 7] {
        let wait = 4 * LEASE;
        [
            ("holder", &self.holder, wait + LONG_ACTION),
            ("patient", &self.patient, wait),
            ("brief", &self.brief, 300 * MS),
            ("impatient", &self.impatient, Duration::ZERO),
            ("later", &self.later, wait),
            ("failing", &self.failing, wait + 10 * MS),
            ("again", &self.again, wait),
        ]
    }

    /// Checks what must be true whichever calls fail: outcomes are true, calls end, and there is
    /// one result.
    fn is_safe(&self, lab: &Lab, what: &str) {
        for (name, ended, wait) in self.calls() {
            let what = format!("{what}, {name}");
            ended.is_true(&what);
            // A call takes at most its wait, one store call, and another store call at the end of
            // an action (ACQ-6, CMP-3).
            let most = wait + 2 * OPERATION + 10 * MS;
            assert!(ended.took <= most, "{what}: took {:?}, at most {most:?}", ended.took);
            if ended.recorded() == Some(Recorded::Yes) {
                assert!(ended.value().is_some(), "{what}: {ended:?}");
            }
        }
        // The calls use two keys, and at most one completion per key is accepted (S4).
        assert!(lab.completions() <= 2, "{what}: {:?}", lab.log);
        // All callers that got a recorded value of a key got the same value (S5).
        let recorded = |ended: &&Ended| ended.recorded() == Some(Recorded::Yes);
        let calls = [&self.holder, &self.patient, &self.brief, &self.impatient, &self.later];
        let mut values: Vec<_> =
            calls.into_iter().filter(recorded).filter_map(Ended::value).collect();
        values.dedup();
        assert!(values.len() <= 1, "{what}: {values:?}");
    }

    /// Checks the outcomes of a run without faults.
    fn is_clean(&self, lab: &Lab, what: &str) {
        assert!(
            self.holder.is_executed() && self.holder.recorded() == Some(Recorded::Yes),
            "{what}"
        );
        assert!(self.patient.is_replayed(), "{what}: {:?}", self.patient);
        assert!(self.brief.is_in_flight(), "{what}: {:?}", self.brief);
        assert!(self.impatient.is_in_flight(), "{what}: {:?}", self.impatient);
        assert!(self.later.is_replayed(), "{what}: {:?}", self.later);
        assert!(matches!(self.failing.result, Err(ExecuteError::Action("declined"))), "{what}");
        assert!(self.again.is_executed(), "{what}: {:?}", self.again);
        assert_eq!(lab.runs(), 3, "{what}");
        assert_eq!(lab.counters.read().taken_over, 0, "{what}");
    }
}

/// Callers notice nothing if a single store call, whichever it is, is refused, loses its answer or
/// panics.
#[tokio::test(start_paused = true)]
async fn acq_9_cmp_3_one_refused_call_or_lost_answer_is_noticed_by_nobody() {
    for fault in [Fault::Refused, Fault::AnswerLost, Fault::Panicked, Fault::AnswerPanicked] {
        for nth in 1.. {
            let lab = Lab::new();
            lab.faults.fail_call(nth, fault);
            let what = format!("{fault:?} at call {nth}");
            let story = tell(&lab).await;
            let injected = lab.faults.injected();
            story.is_safe(&lab, &what);
            story.is_clean(&lab, &what);
            lab.is_at_rest().await;
            if injected == 0 {
                assert!(nth > 12, "the story has {nth} calls only");
                break;
            }
        }
    }
}

/// A single store call that gets no answer, whether or not it took effect, can fail at most the
/// call that made it: every outcome is true and in time, the key ends up with a result, and nothing
/// runs twice.
#[tokio::test(start_paused = true)]
async fn acq_6_sto_5_one_swallowed_call_costs_its_own_caller_at_most() {
    for fault in [Fault::Swallowed, Fault::AnswerSwallowed] {
        for nth in 1.. {
            let lab = Lab::new();
            lab.faults.fail_call(nth, fault);
            let what = format!("{fault:?} at call {nth}");
            let story = tell(&lab).await;
            let injected = lab.faults.injected();
            story.is_safe(&lab, &what);
            for (name, ended, _) in story.calls() {
                if let Err(error) = &ended.result {
                    let unavailable = matches!(error, ExecuteError::Store(e) if e.kind() == ErrorKind::Unavailable);
                    assert!(unavailable || name == "failing", "{what}, {name}: {error:?}");
                }
            }
            lab.is_at_rest().await;
            let settled = lab.call(ctx("k", 4 * LEASE), NOW).await;
            assert!(settled.is_replayed(), "{what}: {settled:?}");
            if injected == 0 {
                story.is_clean(&lab, &what);
                break;
            }
        }
    }
}

/// If every n-th store call fails, or even every one, outcomes stay true and in time.
#[tokio::test(start_paused = true)]
async fn sto_5_every_nth_call_may_fail() {
    for fault in [
        Fault::Refused,
        Fault::AnswerLost,
        Fault::Swallowed,
        Fault::AnswerSwallowed,
        Fault::Panicked,
        Fault::AnswerPanicked,
    ] {
        for nth in 1.. {
            let lab = Lab::new();
            lab.faults.fail_every(nth, fault);
            let what = format!("{fault:?} at every call {nth}");
            let story = tell(&lab).await;
            let injected = lab.faults.injected();
            story.is_safe(&lab, &what);
            if nth == 1 {
                assert_eq!(lab.runs(), 0, "{what}: nothing runs without a lease");
                let kinds = story.calls().map(|(_, ended, _)| match &ended.result {
                    Err(ExecuteError::Store(error)) => Some(error.kind()),
                    _ => None,
                });
                assert_eq!(kinds, [Some(ErrorKind::Unavailable); 7], "{what}");
            }
            lab.is_at_rest().await;
            let settled = lab.call(ctx("k", 4 * LEASE), NOW).await;
            assert!(settled.is_executed() || settled.is_replayed(), "{what}: {settled:?}");
            if injected == 0 {
                story.is_clean(&lab, &what);
                break;
            }
        }
    }
}

/// If two store calls are refused or get no answer, outcomes are as true as after one fault, but
/// callers may notice the faults.
#[tokio::test(start_paused = true)]
async fn cmp_2_any_two_faults_keep_outcomes_true() {
    for (first, second) in [
        (Fault::Refused, Fault::Refused),
        (Fault::AnswerLost, Fault::AnswerLost),
        (Fault::AnswerLost, Fault::Refused),
        (Fault::Swallowed, Fault::AnswerLost),
    ] {
        for one in 1..=14 {
            for other in one + 1..=15 {
                let lab = Lab::new();
                lab.faults.plan(move |call| match call.number {
                    n if n == one => Some(first),
                    n if n == other => Some(second),
                    _ => None,
                });
                let what = format!("{first:?} at {one}, {second:?} at {other}");
                let story = tell(&lab).await;
                story.is_safe(&lab, &what);
                lab.is_at_rest().await;
                let settled = lab.call(ctx("k", 4 * LEASE), NOW).await;
                assert!(settled.is_executed() || settled.is_replayed(), "{what}: {settled:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn run_8_each_heartbeat_that_failed_is_reported() {
    let lab = Lab::new();
    lab.faults.fail_next(Operation::Extend, 3, Fault::Refused);
    let holder = lab.start(ctx("k", 4 * LEASE), Does::Succeeds(3 * LEASE));
    assert!(holder.await.unwrap().is_executed());
    let counts = lab.counters.read();
    assert_eq!((counts.beat_failed, counts.loss_noticed), (3, 0));
}

/// A lease survives failing heartbeats as long as one beat gets through in time.
#[tokio::test(start_paused = true)]
async fn run_1_any_few_beats_may_fail() {
    for times in 1..=8 {
        let lab = Lab::new();
        lab.faults.fail_next(Operation::Extend, times, Fault::Refused);
        let waiter = {
            let holder = lab.start(ctx("k", 4 * LEASE), Does::Succeeds(3 * LEASE));
            tokio::time::sleep(MS).await;
            let waiter = lab.call(ctx("k", 10 * LEASE), NOW).await;
            assert!(holder.await.unwrap().is_executed());
            waiter
        };
        assert!(waiter.is_replayed(), "{times} failed beats: {waiter:?}");
        assert_eq!((lab.runs(), lab.counters.read().loss_noticed), (1, 0), "{times} failed beats");
    }
}
