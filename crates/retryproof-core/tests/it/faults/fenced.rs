// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that ran their action, lost their lease, and whose completion is refused (CMP-2). Their
//! engine sends no heartbeats, so another owner takes over after one lease, while the action still
//! runs. The store of these tests also fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retryproof_core::{
    Acquisition, CompletionFailurePolicy, ExecuteError, IdempotencyConfig, IdempotencyEngine,
    Outcome, Recorded, Report,
};
use retryproof_testkit::{Fault, Operation, Outage};
use tokio::time::{sleep, timeout};

use super::{LEASE, Lab, MS, OPERATION, ctx};

/// When the other owner takes over, and when the action of the refused call ends.
const TAKEN: Duration = Duration::from_millis(1_200);
const ENDS: Duration = Duration::from_millis(1_500);

fn config() -> IdempotencyConfig {
    let mut config = IdempotencyConfig::default();
    config.operation_timeout = OPERATION;
    config.purge.enabled = false;
    config.max_hold = 10 * MS;
    config
}

/// Makes the call whose completion is refused. `hooked` gets the value that the hook gets.
async fn refused(
    lab: &Lab,
    policy: CompletionFailurePolicy,
    hooked: &AtomicU32,
) -> Result<Report<u32>, ExecuteError<&'static str>> {
    lab.engine
        .call(ctx("k", 10 * LEASE))
        .completion(policy)
        .on_fenced(|value: u32| hooked.store(value, Ordering::SeqCst))
        .report(|_| async {
            sleep(ENDS).await;
            Ok(1_u32)
        })
        .await
}

/// Takes over, and works that long.
async fn takes_over(engine: &IdempotencyEngine, works: Duration) {
    sleep(TAKEN).await;
    let work = || async move {
        sleep(works).await;
        Ok::<_, &str>(77_u32)
    };
    assert_eq!(engine.execute(ctx("k", LEASE), work).await.unwrap(), Outcome::Executed(77));
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_caller_waits_on_when_the_takers_lease_runs_out() {
    let lab = Lab::with(config());
    let hooked = AtomicU32::new(0);
    // The taker sends no heartbeats either. Its lease is over long before it completes.
    let taker = IdempotencyEngine::builder(lab.store.clone()).config(config()).build().unwrap();
    let (report, ()) = tokio::join!(
        refused(&lab, CompletionFailurePolicy::LogAndReturn, &hooked),
        takes_over(&taker, 3 * LEASE)
    );
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Replayed(77), "all callers get the same answer");
    assert!(report.fenced);
    assert_eq!(hooked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_caller_is_in_flight_if_no_owner_completes_within_its_wait() {
    let lab = Lab::with(config());
    let hooked = AtomicU32::new(0);
    let dies = async {
        sleep(TAKEN).await;
        let taken = lab.elsewhere().try_acquire(&ctx("k", LEASE)).await.unwrap();
        let Acquisition::Granted(held) = taken else { panic!("the lease is over: {taken:?}") };
        drop(held);
    };
    let (report, ()) =
        tokio::join!(refused(&lab, CompletionFailurePolicy::LogAndReturn, &hooked), dies);
    let report = report.unwrap();
    assert!(matches!(report.outcome, Outcome::InFlight(busy) if busy.remaining.is_zero()));
    assert!(report.fenced);
    assert_eq!(hooked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn cmp_2_cmp_4_a_fenced_call_without_a_record_follows_the_policy() {
    for policy in [CompletionFailurePolicy::LogAndReturn, CompletionFailurePolicy::Propagate] {
        let lab = Lab::with(config());
        let hooked = AtomicU32::new(0);
        let fails = async {
            sleep(TAKEN).await;
            let taken = lab.elsewhere().try_acquire(&ctx("k", LEASE)).await.unwrap();
            let Acquisition::Granted(held) = taken else { panic!("the lease is over: {taken:?}") };
            held.release().await.unwrap();
        };
        let (result, ()) = tokio::join!(refused(&lab, policy, &hooked), fails);
        let hooked = hooked.load(Ordering::SeqCst);
        if policy == CompletionFailurePolicy::LogAndReturn {
            let report = result.unwrap();
            assert_eq!(report.outcome, Outcome::Executed(1));
            assert_eq!((report.recorded, report.fenced), (Recorded::No, true));
            assert_eq!(hooked, 0, "the value is the call's answer, so nothing is to be undone");
        } else {
            let failed = matches!(&result, Err(ExecuteError::Completion(failure))
                if failure.recorded == Recorded::No);
            assert!(failed, "{result:?}");
            assert_eq!(hooked, 1, "the hook gets the value that the caller does not get");
        }
        assert!(lab.call(ctx("k", LEASE), super::NOW).await.is_executed(), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_caller_outlasts_a_failed_look_at_the_record() {
    for operation in [Operation::Peek, Operation::WaitForChange] {
        let lab = Lab::with(config());
        lab.faults.fail_next(operation, 2, Fault::Refused);
        let hooked = AtomicU32::new(0);
        let taker = lab.elsewhere();
        let (report, ()) = tokio::join!(
            refused(&lab, CompletionFailurePolicy::LogAndReturn, &hooked),
            takes_over(&taker, 3 * LEASE)
        );
        let report = report.unwrap();
        assert_eq!(report.outcome, Outcome::Replayed(77), "{operation:?}");
        assert_eq!(hooked.load(Ordering::SeqCst), 1, "{operation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_caller_that_saw_a_taker_is_in_flight_if_the_store_stays_away() {
    let lab = Lab::with(config());
    let hooked = AtomicU32::new(0);
    let away = async {
        sleep(TAKEN).await;
        let taken = lab.elsewhere().try_acquire(&ctx("k", LEASE)).await.unwrap();
        sleep(ENDS).await;
        lab.faults.begin_outage(Outage::Refuse);
        taken
    };
    let (report, _taken) =
        tokio::join!(refused(&lab, CompletionFailurePolicy::LogAndReturn, &hooked), away);
    let report = report.unwrap();
    assert!(matches!(report.outcome, Outcome::InFlight(_)), "{report:?}");
    assert_eq!(hooked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn cmp_2_a_fenced_call_that_is_dropped_passes_its_value_to_the_hook() {
    let lab = Lab::with(config());
    let hooked = Arc::new(AtomicU32::new(0));
    let taker = lab.elsewhere();
    let taken = tokio::spawn(async move { takes_over(&taker, 3 * LEASE).await });
    let call = refused(&lab, CompletionFailurePolicy::LogAndReturn, &hooked);
    assert!(timeout(2 * LEASE, call).await.is_err(), "the call still waits for the taker");
    assert_eq!(hooked.load(Ordering::SeqCst), 1);
    taken.await.unwrap();
}
