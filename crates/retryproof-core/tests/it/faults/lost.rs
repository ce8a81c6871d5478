// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that are lost: at the acquire, the completion and the release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::listener::{Reason, Verdict};
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, SharedStore, StoreProfile,
};
use retryproof_core::{
    Acquiring, Acquisition, Attempt, CodecId, CompletionFailurePolicy, CompletionResult, Error,
    ErrorKind, ExecuteError, IdempotencyEngine, IdempotencyStore, Identity, Lease, Outcome,
    OwnerId, Payload, Recorded, Result,
};
use retryproof_memory::MemoryStore;
use retryproof_testkit::{Entry, Fault, Operation, Said};
use tokio::time::sleep;

use super::{Does, LEASE, Lab, MS, NOW, OPERATION, ctx};
use crate::outcomes::Told;

fn of(lab: &Lab, operation: Operation) -> Vec<Entry> {
    lab.log.entries().into_iter().filter(|entry| entry.operation == operation).collect()
}

#[tokio::test(start_paused = true)]
async fn acq_9_a_lost_grant_is_asked_for_again_by_the_same_owner() {
    let lab = Lab::new();
    lab.faults.fail_next(Operation::Acquire, 1, Fault::AnswerLost);
    let ended = lab.call(ctx("k", LEASE), NOW).await;
    assert!(ended.is_executed() && ended.recorded() == Some(Recorded::Yes), "{ended:?}");
    let acquires = of(&lab, Operation::Acquire);
    assert_eq!(acquires.len(), 2);
    assert_eq!(acquires[0].owner, acquires[1].owner);
    assert!(
        acquires.iter().all(|acquire| acquire.said == Said::Granted),
        "no takeover: {acquires:?}"
    );
    assert_eq!(lab.counters.read().acquired, 1);
}

#[tokio::test(start_paused = true)]
async fn acq_9_acq_12_a_takeover_whose_answer_was_lost_is_one_still() {
    let lab = Lab::new();
    let Acquisition::Granted(dead) = lab.elsewhere().try_acquire(&ctx("k", LEASE)).await.unwrap()
    else {
        panic!("granted")
    };
    dead.hold();
    sleep(2 * LEASE).await;
    lab.faults.fail_next(Operation::Acquire, 1, Fault::AnswerLost);
    let action = |lease: Lease| async move { Ok::<_, &str>(lease.attempt() == Attempt::Takeover) };
    let outcome = lab.engine.execute_with(ctx("k", LEASE), action).await.unwrap();
    assert_eq!(outcome, Outcome::Executed(true));
    assert_eq!(of(&lab, Operation::Acquire).len(), 2);
    let counts = lab.counters.read();
    assert_eq!((counts.acquired, counts.taken_over), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn acq_9_a_grant_lost_twice_is_given_back_and_nothing_runs() {
    let lab = Lab::new();
    lab.faults.fail_next(Operation::Acquire, 2, Fault::AnswerLost);
    let ended = lab.call(ctx("k", LEASE), NOW).await;
    assert!(
        matches!(&ended.result, Err(ExecuteError::Store(e)) if e.kind() == ErrorKind::Unavailable)
    );
    assert_eq!(ended.runs, 0);
    sleep(10 * MS).await;
    let releases = of(&lab, Operation::Release);
    assert_eq!(releases.len(), 1);
    assert_eq!(releases[0].said, Said::Fenced(FencedWrite::Applied));
    let next = lab.call(ctx("k", std::time::Duration::ZERO), NOW).await;
    assert!(next.is_executed(), "the key is free at once: {next:?}");
    assert_eq!(lab.counters.read().taken_over, 0);
}

#[tokio::test(start_paused = true)]
async fn acq_9_acq_11_a_grant_that_is_not_answered_is_given_back_in_the_background() {
    let lab = Lab::new();
    lab.faults.fail_next(Operation::Acquire, 1, Fault::AnswerSwallowed);
    let ended = lab.call(ctx("k", LEASE), NOW).await;
    assert!(
        matches!(&ended.result, Err(ExecuteError::Store(e)) if e.kind() == ErrorKind::Unavailable)
    );
    assert!(ended.took <= OPERATION + MS, "STO-5: {:?}", ended.took);
    let next = lab.call(ctx("k", 3 * LEASE), NOW).await;
    assert!(next.is_executed() && next.took <= 2 * LEASE, "{next:?}");
    lab.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn cmp_3_a_lost_completion_is_repeated_and_counts_once() {
    for times in 1..=3 {
        let lab = Lab::new();
        lab.faults.fail_next(Operation::Complete, times, Fault::AnswerLost);
        let ended = lab.call(ctx("k", LEASE), NOW).await;
        assert!(ended.is_executed() && ended.recorded() == Some(Recorded::Yes), "{ended:?}");
        let said: Vec<_> = of(&lab, Operation::Complete).iter().map(|call| call.said).collect();
        assert_eq!(said[0], Said::Fenced(FencedWrite::Applied));
        assert!(
            said[1..].iter().all(|said| *said == Said::Fenced(FencedWrite::AlreadyApplied)),
            "{said:?}"
        );
        assert_eq!(said.len() as u64, times + 1);
        assert!(lab.call(ctx("k", LEASE), NOW).await.is_replayed());
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_3_the_caller_waits_for_the_operation_timeout_and_the_repetition_goes_on() {
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let mut config = retryproof_core::IdempotencyConfig::default();
        config.operation_timeout = OPERATION;
        config.completion_failure_policy = policy;
        let lab = Lab::with(config);
        lab.faults.plan(|call| (call.operation == Operation::Complete).then_some(Fault::Refused));
        let ended = lab.call(ctx("k", LEASE), NOW).await;
        assert!(ended.took >= OPERATION && ended.took <= OPERATION + 2 * MS, "{:?}", ended.took);
        match policy {
            CompletionFailurePolicy::LogAndReturn => {
                assert!(ended.is_executed() && ended.recorded() == Some(Recorded::No), "{ended:?}");
            }
            CompletionFailurePolicy::Propagate => {
                let Err(ExecuteError::Completion(failed)) = &ended.result else {
                    panic!("{ended:?}")
                };
                assert_eq!(failed.recorded, Recorded::No);
            }
        }
        let duplicate = lab.start(ctx("k", 5 * LEASE), NOW);
        sleep(300 * MS).await;
        lab.faults.clear();
        let duplicate = duplicate.await.unwrap();
        assert!(duplicate.is_replayed(), "the store was back within the lease: {duplicate:?}");
        assert_eq!(lab.runs(), 1);
        lab.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lst_2_cmp_4_a_message_without_a_record_is_acknowledged_unless_that_propagates() {
    for (policy, reason) in [
        (CompletionFailurePolicy::LogAndReturn, Reason::Executed),
        (CompletionFailurePolicy::Propagate, Reason::NotRecorded),
    ] {
        let mut config = retryproof_core::IdempotencyConfig::default();
        config.completion_failure_policy = policy;
        let lab = Lab::with(config);
        lab.faults.plan(|call| (call.operation == Operation::Complete).then_some(Fault::Refused));
        let message = async || {
            let work = async || Ok::<_, &str>(());
            Verdict::of(&lab.engine.execute(ctx("k", Duration::ZERO), work).await)
        };
        let verdict = message().await;
        assert_eq!(verdict.reason(), reason);
        assert_eq!(matches!(verdict, Verdict::Ack { .. }), reason == Reason::Executed);
        sleep(2 * LEASE).await;
        lab.faults.clear();
        assert_eq!(message().await.reason(), Reason::Executed, "it runs again");
        assert_eq!(message().await.reason(), Reason::Replayed);
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_4_a_completion_that_never_got_through_lets_a_retry_run_again_after_the_lease() {
    let lab = Lab::new();
    lab.faults.plan(|call| (call.operation == Operation::Complete).then_some(Fault::Refused));
    let ended = lab.call(ctx("k", LEASE), NOW).await;
    assert_eq!(ended.recorded(), Some(Recorded::No));
    let early = lab.call(ctx("k", std::time::Duration::ZERO), NOW).await;
    assert!(early.is_in_flight(), "the lease was not released: {early:?}");
    sleep(2 * LEASE).await;
    lab.faults.clear();
    let retry = lab.call(ctx("k", LEASE), NOW).await;
    assert!(retry.is_executed() && retry.recorded() == Some(Recorded::Yes), "{retry:?}");
    assert_eq!((lab.runs(), lab.counters.read().taken_over), (2, 1), "ACQ-12");
    lab.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn cmp_4_a_result_that_was_not_recorded_is_logged_as_an_error_under_each_policy() {
    const LINE: &str = " ERROR retryproof_core::engine::complete: the action ran, but its result \
                        was not recorded";
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let (told, _listening) = Told::listen();
        let mut config = retryproof_core::IdempotencyConfig::default();
        config.completion_failure_policy = policy;
        let lab = Lab::with(config);
        assert!(lab.call(ctx("recorded", LEASE), NOW).await.is_executed());
        assert_eq!(told.lines(LINE), 0);
        lab.faults.plan(|call| (call.operation == Operation::Complete).then_some(Fault::Refused));
        drop(lab.call(ctx("k", LEASE), NOW).await);
        sleep(2 * LEASE).await;
        assert_eq!(told.lines(LINE), 1, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_4_a_lost_release_is_repeated_and_the_actions_error_comes_back() {
    for fault in [Fault::Refused, Fault::AnswerLost] {
        let lab = Lab::new();
        lab.faults.fail_next(Operation::Release, 2, fault);
        let failed = lab.call(ctx("k", LEASE), Does::Fails(MS)).await;
        assert!(matches!(failed.result, Err(ExecuteError::Action("declined"))), "{failed:?}");
        let next = lab.call(ctx("k", std::time::Duration::ZERO), NOW).await;
        assert!(next.is_executed(), "{fault:?}: {next:?}");
        assert_eq!(lab.counters.read().taken_over, 0);
        lab.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_4_a_failing_release_never_hides_the_actions_error() {
    let lab = Lab::new();
    lab.faults.plan(|call| (call.operation == Operation::Release).then_some(Fault::Swallowed));
    let failed = lab.call(ctx("k", LEASE), Does::Fails(MS)).await;
    assert!(matches!(failed.result, Err(ExecuteError::Action("declined"))), "{failed:?}");
    assert!(failed.took <= OPERATION + 3 * MS, "{:?}", failed.took);
    let next = lab.call(ctx("k", 3 * LEASE), NOW).await;
    assert!(next.is_executed() && next.took <= LEASE + 100 * MS, "free at expiry: {next:?}");
    lab.is_at_rest().await;
}

/// A store that has no space for extends, completions and releases while `full` is set.
#[derive(Debug)]
struct NoSpace {
    inner: SharedStore,
    full: Arc<AtomicBool>,
}

impl NoSpace {
    fn check(&self) -> Result<()> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Full, "no space")),
            false => Ok(()),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for NoSpace {
    retryproof_testkit::forward!(inner: acquire, peek, wait_for_change, profile);

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.check()?;
        self.inner.extend(id, owner, lease).await
    }
    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        of: &Completion,
    ) -> Result<FencedWrite> {
        self.check()?;
        self.inner.complete(id, owner, of).await
    }
    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.check()?;
        self.inner.release(id, owner).await
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_3_run_4_what_finds_no_space_is_repeated_until_there_is_some() {
    let full = Arc::new(AtomicBool::new(false));
    let store = NoSpace { inner: MemoryStore::new().into(), full: Arc::clone(&full) };
    let engine = IdempotencyEngine::new(SharedStore::new(store));
    for key in ["released", "completed"] {
        let Acquisition::Granted(held) = engine.try_acquire(&ctx(key, LEASE)).await.unwrap() else {
            panic!("{key} was not granted")
        };
        full.store(true, Ordering::SeqCst);
        let call = tokio::spawn(async move {
            if key == "released" {
                return held.release().await.is_ok();
            }
            let value = Payload::new(CodecId::BYTES, 1, &b"kept"[..]);
            matches!(held.complete(value).await, CompletionResult::Recorded)
        });
        sleep(LEASE / 4).await;
        assert!(!call.is_finished(), "{key}: it is repeated");
        full.store(false, Ordering::SeqCst);
        assert!(call.await.unwrap(), "{key}: there is space again");
    }
    let again = engine.try_acquire(&ctx("completed", Duration::ZERO)).await.unwrap();
    assert!(matches!(again, Acquisition::Complete(_)), "{again:?}");
    let again = engine.try_acquire(&ctx("released", Duration::ZERO)).await.unwrap();
    assert!(matches!(again, Acquisition::Granted(_)), "{again:?}");
}

/// A store that answers at once, but reports a certain number of times that the answer to an
/// acquire was lost.
#[derive(Debug)]
struct Doubtful(SharedStore, Arc<Mutex<(u32, Vec<&'static str>)>>);

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Doubtful {
    retryproof_testkit::forward!(0: peek, wait_for_change, extend, complete);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let answer = self.0.acquire(id, req).await;
        let mut state = self.1.lock();
        state.1.push("acquire");
        match state.0.checked_sub(1) {
            Some(left) => {
                state.0 = left;
                Err(Error::unavailable("the answer was lost"))
            }
            None => answer,
        }
    }
    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.1.lock().1.push("release");
        self.0.release(id, owner).await
    }
    fn profile(&self) -> StoreProfile {
        StoreProfile::new("doubtful").with_immediate()
    }
}

#[tokio::test(start_paused = true)]
async fn acq_9_a_store_that_answers_at_once_is_asked_once_more_and_no_more() {
    for in_place in [false, true] {
        let state = Arc::new(Mutex::new((0, Vec::new())));
        let store = SharedStore::new(Doubtful(MemoryStore::new().into(), Arc::clone(&state)));
        let engine = IdempotencyEngine::new(store);
        let acquire = async |key: &str| {
            let ctx = ctx(key, Duration::ZERO);
            if !in_place {
                return engine.try_acquire_tracked(&ctx).await;
            }
            // The HTTP filter acquires like this.
            match engine.begin_acquire(&ctx) {
                Acquiring::Done(end) => end.acquired,
                Acquiring::Waiting(rest) => rest.await.acquired,
            }
        };
        state.lock().0 = 1;
        assert!(
            matches!(acquire("once").await.unwrap(), Acquisition::Granted(_)),
            "in place {in_place}"
        );
        assert_eq!(std::mem::take(&mut state.lock().1), ["acquire"; 2], "in place {in_place}");
        state.lock().0 = 2;
        assert_eq!(acquire("twice").await.unwrap_err().kind(), ErrorKind::Unavailable);
        sleep(20 * MS).await;
        assert_eq!(
            std::mem::take(&mut state.lock().1),
            ["acquire", "acquire", "release"],
            "in place {in_place}"
        );
        assert!(
            matches!(acquire("twice").await.unwrap(), Acquisition::Granted(_)),
            "it was released"
        );
        assert_eq!(engine.activity().running, 0);
    }
}
