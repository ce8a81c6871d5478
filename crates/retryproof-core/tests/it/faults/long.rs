// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long leases, whose tries to beat lie further apart than `operation-timeout`: the end of an action waits for none.

use std::time::Duration;

use retryproof_core::{IdempotencyConfig, IdempotencyContext, Recorded};
use retryproof_testkit::{Fault, Operation};
use tokio::time::{Instant, sleep};

use super::{Does, Lab};

/// Its beat comes after half of it; a try repeats after 30 s, and a further one goes out beside it after 60 s.
const LONG: Duration = Duration::from_secs(600);

fn lab() -> Lab {
    let mut config = IdempotencyConfig::default();
    config.purge.enabled = false;
    Lab::with(config)
}

fn ctx(key: &str) -> IdempotencyContext {
    IdempotencyContext::builder("faults", key).lease(LONG).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn cmp_3_a_completion_does_not_sit_out_the_rest_of_a_failed_beat() {
    for fault in [Fault::Refused, Fault::AnswerLost, Fault::Swallowed, Fault::AnswerSwallowed] {
        let lab = lab();
        lab.faults.fail_next(Operation::Extend, 1, fault);
        // A second after the one beat that failed: the store answers again.
        let runs_for = LONG / 2 + Duration::from_secs(1);
        let ended = lab.call(ctx("k"), Does::Succeeds(runs_for)).await;
        assert_eq!(lab.faults.injected(), 1);
        assert_eq!(ended.recorded(), Some(Recorded::Yes), "{fault:?}: {ended:?}");
        assert!(ended.took < runs_for + Duration::from_secs(2), "{fault:?}: {:?}", ended.took);
        let failed = lab.call(ctx("k2"), Does::Fails(Duration::ZERO)).await;
        assert_eq!(failed.runs, 1);
        assert_eq!(lab.completions(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn run_4_a_release_does_not_sit_out_the_rest_of_a_failed_beat() {
    for fault in [Fault::Refused, Fault::Swallowed] {
        let lab = lab();
        lab.faults.fail_next(Operation::Extend, 1, fault);
        let runs_for = LONG / 2 + Duration::from_secs(1);
        let ended = lab.call(ctx("k"), Does::Fails(runs_for)).await;
        assert!(ended.took < runs_for + Duration::from_secs(2), "{fault:?}: {:?}", ended.took);
        let next = lab.call(ctx("k"), Does::Succeeds(Duration::ZERO)).await;
        assert!(next.is_executed(), "{fault:?}: the key is free: {next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn sto_5_a_beat_that_is_swallowed_is_cut_off_at_the_operation_timeout() {
    let lab = lab();
    lab.faults.fail_next(Operation::Extend, 1, Fault::Swallowed);
    let holder = lab.start(ctx("k"), Does::Succeeds(LONG));
    let started = Instant::now();
    // Cut off after 5 s, and tried again 30 s later.
    sleep(LONG / 2 + Duration::from_secs(40)).await;
    let extends = lab.log.count_of(|call| call.operation == Operation::Extend);
    assert!(extends >= 1, "no further beat within {:?}", started.elapsed());
    assert!(holder.await.unwrap().is_executed());
}

#[tokio::test(start_paused = true)]
async fn run_5_a_shutdown_waits_for_a_completion_that_is_repeated_in_the_background() {
    let away = Duration::from_secs(8);
    for tracked in [false, true] {
        let lab = lab();
        lab.faults.plan(|call| (call.operation == Operation::Complete).then_some(Fault::Refused));
        let answered = if tracked {
            let run = lab.engine.spawn(ctx("k"), || async { Ok::<_, String>(1) });
            run.await.is_ok()
        } else {
            lab.call(ctx("k"), Does::Succeeds(Duration::ZERO)).await.is_executed()
        };
        assert!(answered, "by the policy, after the operation timeout (CMP-4)");
        assert_eq!(lab.completions(), 0);
        let faults = lab.faults.clone();
        tokio::spawn(async move {
            sleep(away).await;
            faults.clear();
        });
        assert_eq!(lab.engine.shutdown(Duration::from_secs(1)).await, 1, "it is not done, and that is said");
        assert_eq!(lab.engine.shutdown(2 * away).await, 0);
        assert_eq!(lab.completions(), 1, "recorded before the process may end");
    }
}
