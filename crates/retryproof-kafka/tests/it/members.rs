// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-1 over a rebalance, on librdkafka's mock cluster: messages that are delivered again to the
//! next member of the group are skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::listener::{Reason, Verdict};
use retryproof_kafka::Delivery;
use tokio::sync::Semaphore;

use crate::support::{Mock, counting, start, until};

#[tokio::test]
async fn lst_1_a_redelivery_to_the_next_group_member_runs_nothing() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    for n in 0..5 {
        mock.publish(0, &format!("o-{n}"), "{}").await;
    }
    // The first member completes the third message, and dies before the message's offset is
    // committed.
    let done = Arc::new(Semaphore::new(0));
    let (handle, completed) = (counting(&mock, &runs), Arc::clone(&done));
    let first = start(mock.listener().build().expect("built"), move |delivery: Delivery| {
        let (completed, last) = (Arc::clone(&completed), delivery.offset() == 2);
        let work = handle(delivery);
        async move {
            let verdict = work.await;
            if last {
                completed.add_permits(1);
                std::future::pending().await
            }
            verdict
        }
    });
    drop(done.acquire().await);
    first.die().await;
    let next = mock.listener().build().expect("built");
    let counters = next.counters();
    let second = start(next, counting(&mock, &runs));
    mock.until_committed(0, 5).await;
    second.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    assert!(counters.count_of(Reason::Replayed) >= 1, "the third came again");
    assert_eq!(counters.count_of(Reason::Executed), 2, "the fourth and the fifth");
    assert_eq!(mock.dead_letter_count().await, 0);
}

#[tokio::test]
async fn lst_1_a_member_that_joins_while_work_runs_waits_for_it_and_runs_nothing() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let (engine, opens, counted) = (mock.engine.clone(), Arc::clone(&gate), Arc::clone(&runs));
    let slow = move |delivery: Delivery| {
        let (engine, opens, counted) = (engine.clone(), Arc::clone(&opens), Arc::clone(&counted));
        async move {
            let ctx = delivery.context_builder()?.lease(Duration::from_secs(10)).build();
            let Ok(ctx) = ctx else { return Ok(Verdict::failed()) };
            let work = async || {
                counted.fetch_add(1, Ordering::SeqCst);
                opens.acquire().await.map(|permit| permit.forget())
            };
            Ok(Verdict::of(&engine.execute(ctx, work).await))
        }
    };
    mock.publish(0, "o-1", "{}").await;
    let first = start(mock.listener().build().expect("built"), slow.clone());
    until("at work", || runs.load(Ordering::SeqCst) == 1).await;
    let stopping = tokio::spawn(first.stop());
    // The first member waits for its handlers and still owns its partition.
    let next = mock.listener().build().expect("built");
    let counters = next.counters();
    let second = start(next, slow);
    gate.add_permits(100);
    stopping.await.expect("stopped");
    mock.publish(0, "o-1", "{}").await;
    mock.until_committed(0, 2).await;
    second.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(counters.count_of(Reason::Replayed) >= 1);
}

#[tokio::test]
async fn lst_1_members_that_come_and_go_run_each_message_once() {
    let mock = Mock::new(4);
    let runs = Arc::new(AtomicUsize::new(0));
    let stays = start(mock.listener().build().expect("built"), counting(&mock, &runs));
    for round in 0..4 {
        let guest = start(mock.listener().build().expect("built"), counting(&mock, &runs));
        for n in 0..40 {
            mock.publish(n % 4, &format!("o-{round}-{n}"), "{}").await;
        }
        if round % 2 == 0 { guest.stop().await } else { guest.die().await }
    }
    for partition in 0..4 {
        mock.until_committed(partition, 40).await;
    }
    stays.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 160);
    assert_eq!(mock.dead_letter_count().await, 0);
}
