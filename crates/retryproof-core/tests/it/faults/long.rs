// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long leases, whose attempts to beat are further apart than `operation-timeout`. The end of an
//! action does not wait for the next attempt.

use std::time::Duration;

use retryproof_core::observe::Loss;
use retryproof_core::{Acquisition, IdempotencyConfig, IdempotencyContext, Recorded};
use retryproof_testkit::{Fault, Operation, Outage};
use tokio::time::{Instant, sleep};

use super::{Does, Lab};

/// A lease with a beat every 300 s. A beat that failed is tried again after 30 s.
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
        // The action ends a second after the one beat that failed, when the store answers again.
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
    // The beat is cut off after 5 s, and tried again 30 s later.
    sleep(LONG / 2 + Duration::from_secs(40)).await;
    let extends = lab.log.count_of(|call| call.operation == Operation::Extend);
    assert!(extends >= 1, "no further beat within {:?}", started.elapsed());
    assert!(holder.await.unwrap().is_executed());
}

/// There are more leases than heartbeats that can be in flight at once. Leases that pause between
/// two tries do not keep other leases from sending heartbeats.
#[tokio::test(start_paused = true)]
async fn run_1_run_2_many_long_leases_that_rest_between_tries_keep_no_short_one_from_beating() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let ctx =
        |key: &str, lease| IdempotencyContext::builder("faults", key).lease(lease).build().unwrap();
    for outage in [Outage::Refuse, Outage::Swallow] {
        let lab = lab();
        let mut held = Vec::new();
        for at in 0..300 {
            held.push(lab.engine.try_acquire(&ctx(&format!("long {at}"), HOUR)).await.unwrap());
        }
        let short = lab.engine.try_acquire(&ctx("short", Duration::from_secs(30))).await.unwrap();
        let Acquisition::Granted(short) = short else { panic!("granted") };
        // All long leases are due to beat during the outage.
        sleep(HOUR / 2 - Duration::from_secs(1)).await;
        lab.faults.begin_outage(outage);
        sleep(Duration::from_secs(2)).await;
        lab.faults.end_outage();
        for second in 0..240 {
            sleep(Duration::from_secs(1)).await;
            assert!(short.lease().believed_held(), "{outage:?}, {second} s later");
        }
        assert_eq!(lab.counters.read().loss_noticed, 0, "{outage:?}");
        assert!(lab.faults.injected() >= 200, "{outage:?}: {} beats failed", lab.faults.injected());
        // Each failed beat was repeated a twentieth of the long lease later.
        let answered =
            lab.log.entries().into_iter().filter(|call| call.operation == Operation::Extend);
        let long =
            answered.filter(|call| call.identity.as_ref() != Some(ctx("short", HOUR).identity()));
        assert_eq!(long.count(), 300, "{outage:?}");
        assert_eq!(lab.engine.activity().beating, 301, "{outage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_2_run_6_a_lease_that_rests_between_tries_is_lost_when_it_ends_and_at_max_hold() {
    for (max_hold, loss, after) in
        [(2 * LONG, Loss::Expired, LONG), (LONG * 8 / 10, Loss::MaxHold, LONG * 8 / 10)]
    {
        let mut config = IdempotencyConfig::default();
        config.purge.enabled = false;
        config.max_hold = max_hold;
        let lab = Lab::with(config);
        lab.faults.plan(|call| (call.operation == Operation::Extend).then_some(Fault::Refused));
        let Acquisition::Granted(held) = lab.engine.try_acquire(&ctx("k")).await.unwrap() else {
            panic!()
        };
        let began = Instant::now();
        assert_eq!(held.lease().lost().await, loss);
        let told = began.elapsed();
        assert!(told >= after && told <= after + Duration::from_millis(5), "{loss:?}: {told:?}");
        // The first try comes after half of the lease, and each further try a twentieth of the
        // lease later.
        assert!(
            (6..=10).contains(&lab.faults.injected()),
            "{loss:?}: {} tries",
            lab.faults.injected()
        );
        assert_eq!(lab.engine.activity().beating, 0);
    }
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
        assert_eq!(
            lab.engine.shutdown(Duration::from_secs(1)).await,
            1,
            "it is not recorded, and the report says so"
        );
        assert_eq!(lab.engine.shutdown(2 * away).await, 0);
        assert_eq!(lab.completions(), 1, "recorded before the process may end");
    }
}
