// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts round trips: what each kind of call costs the store (ACQ-8, ACQ-5).

use std::time::Duration;

use retryproof_testkit::Operation::{Acquire, Complete, Release, WaitForChange};
use retryproof_testkit::Said;

use super::{Does, LEASE, Lab, MS, NOW, ctx};

#[tokio::test(start_paused = true)]
async fn acq_8_a_first_execution_costs_two_calls_a_replay_one() {
    let lab = Lab::new();
    assert!(lab.call(ctx("k", LEASE), Does::Succeeds(LEASE / 2 - MS)).await.is_executed());
    assert_eq!(lab.log.operations(), [Acquire, Complete], "shorter than half its lease");
    lab.log.clear();
    assert!(lab.call(ctx("k", LEASE), NOW).await.is_replayed());
    assert_eq!(lab.log.operations(), [Acquire]);
}

#[tokio::test(start_paused = true)]
async fn acq_8_in_flight_failure_and_takeover_cost_one_two_and_two() {
    let lab = Lab::new();
    let holder = lab.start(ctx("k", LEASE), Does::Succeeds(LEASE / 4));
    tokio::time::sleep(MS).await;
    lab.log.clear();
    assert!(lab.call(ctx("k", Duration::ZERO), NOW).await.is_in_flight());
    assert_eq!(lab.log.operations(), [Acquire], "a zero wait looks once");
    holder.await.unwrap();

    lab.log.clear();
    assert!(lab.call(ctx("e", LEASE), Does::Fails(MS)).await.result.is_err());
    assert_eq!(lab.log.operations(), [Acquire, Release]);

    let dead = lab.engine.try_acquire(&ctx("d", LEASE)).await.unwrap();
    drop(dead);
    tokio::time::sleep(LEASE).await;
    lab.log.clear();
    assert!(lab.call(ctx("d", LEASE), NOW).await.is_executed());
    assert_eq!(lab.log.operations(), [Acquire, Complete]);
    assert_eq!(lab.log.count_of(|call| call.said == Said::TookOver), 1);
}

#[tokio::test(start_paused = true)]
async fn run_1_a_beat_is_one_call_every_half_lease() {
    let lab = Lab::new();
    assert!(lab.call(ctx("k", LEASE), Does::Succeeds(10 * LEASE - MS)).await.is_executed());
    let beats = lab.log.entries().len() - 2;
    assert_eq!(beats, 19);
    lab.is_at_rest().await;
    assert_eq!(lab.log.entries().len(), beats + 2, "RUN-3: no beat after the completion");
}

#[tokio::test(start_paused = true)]
async fn acq_5_a_thousand_waiters_cost_their_first_looks_and_the_polls_of_one() {
    let costs = |waiters: usize| async move {
        let lab = Lab::new();
        let holder = lab.start(ctx("k", LEASE), Does::Succeeds(3 * LEASE));
        tokio::time::sleep(MS).await;
        lab.log.clear();
        let tasks: Vec<_> = (0..waiters).map(|_| lab.start(ctx("k", 10 * LEASE), NOW)).collect();
        for task in tasks {
            assert!(task.await.unwrap().is_replayed());
        }
        assert!(holder.await.unwrap().is_executed());
        assert_eq!(lab.runs(), 1);
        lab.log.count(Acquire) + lab.log.count(WaitForChange)
    };
    let polls_of_one = costs(1).await - 1;
    let of_all = costs(1_000).await;
    assert!(
        of_all <= 1_000 + 3 * polls_of_one,
        "{of_all} calls; one waiter polls {polls_of_one} times"
    );
}

#[tokio::test(start_paused = true)]
async fn acq_3_a_release_among_waiters_costs_one_more_acquire_each_at_most() {
    let lab = Lab::new();
    let holder = lab.start(ctx("k", LEASE), Does::Fails(LEASE / 4));
    tokio::time::sleep(MS).await;
    let waiters: Vec<_> =
        (0..50).map(|_| lab.start(ctx("k", 10 * LEASE), Does::Succeeds(MS))).collect();
    assert!(holder.await.unwrap().result.is_err());
    let mut executed = 0;
    for waiter in waiters {
        let ended = waiter.await.unwrap();
        executed += usize::from(ended.is_executed());
        assert!(ended.value().is_some(), "{ended:?}");
        assert!(ended.took <= LEASE / 2, "no caller waits until its time limit: {:?}", ended.took);
    }
    assert_eq!((executed, lab.runs()), (1, 2));
    assert!(lab.log.count(Acquire) <= 1 + 50 + 4, "{} acquires", lab.log.count(Acquire));
}
