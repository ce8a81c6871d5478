// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2 on librdkafka's mock cluster: which offsets are committed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::Message as _;
use retryproof_core::listener::{Backoff, Poison, Reason, Verdict, body_fingerprint};
use retryproof_core::{Acquisition, IdempotencyContext, Tombstone};
use retryproof_kafka::Delivery;
use retryproof_testkit::broker::{Gate, unsure};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{COMMITS_EVERY, Mock, PATIENCE, SCOPE, counting, start, until, waiting};

/// The lease of another owner, long enough that even a busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn lst_1_a_message_published_twice_runs_once_and_both_are_committed() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    mock.publish(0, "o-1", "{}").await;
    mock.publish(0, "o-1", "{}").await;
    let listener = mock.listener().build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&mock, &runs));
    mock.until_committed(0, 2).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!((counters.count_of(Reason::Executed), counters.count_of(Reason::Replayed)), (1, 1));
}

/// Each context has the subject that the listener's function finds in the message.
#[tokio::test]
async fn seal_3_a_function_names_the_subject_of_each_message() {
    let mock = Mock::new(1);
    let listener = mock.listener().data_subject(|message| {
        let body = String::from_utf8_lossy(message.payload()?).into_owned();
        Some(body).filter(|name| name != "nobody")
    });
    let (runs, found) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
    let (handler, finds) = (counting(&mock, &runs), Arc::clone(&found));
    let running = start(listener.build().expect("built"), move |delivery: Delivery| {
        let ctx = delivery.context().expect("a context");
        finds.lock().unwrap().push(ctx.subject().map(str::to_owned));
        handler(delivery)
    });
    for name in ["ada", "nobody"] {
        mock.publish(0, name, name).await;
    }
    mock.until_committed(0, 2).await;
    running.stop().await;
    assert_eq!(*found.lock().unwrap(), [Some("ada".to_owned()), None]);
}

#[tokio::test]
async fn lst_2_a_new_group_runs_what_lies_in_the_topic_unless_told_otherwise() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    mock.publish(0, "o-1", "{}").await;
    assert_eq!(mock.client().get("auto.offset.reset"), None);
    let running = start(mock.listener().build().expect("built"), counting(&mock, &runs));
    mock.until_committed(0, 1).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let mut client = mock.client();
    client.set("group.id", "latecomers").set("auto.offset.reset", "latest");
    let running = start(mock.listener_of(client).build().expect("built"), counting(&mock, &runs));
    // Publish until one message is read, because nothing else shows when a member begins to read.
    let mut published = 1;
    let read = async {
        while runs.load(Ordering::SeqCst) == 1 {
            published += 1;
            mock.publish(0, &format!("o-{published}"), "{}").await;
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, read).await.expect("read");
    running.stop().await;
    assert!(runs.load(Ordering::SeqCst) > 1);
}

#[tokio::test]
async fn lst_2_nothing_is_committed_before_the_work_is_done() {
    let mock = Mock::new(1);
    let gate = Arc::new(Gate::closed());
    mock.publish(0, "o-1", "{}").await;
    mock.publish(0, "o-2", "{}").await;
    let running = start(mock.listener().build().expect("built"), waiting(&mock, &gate));
    until("at work", || gate.begun() == 1).await;
    assert_eq!(mock.committed(0).await, None);
    // Nothing is committed within ten of librdkafka's commit intervals either.
    sleep(COMMITS_EVERY * 10).await;
    assert_eq!(mock.committed(0).await, None);
    gate.let_go(1);
    mock.until_committed(0, 1).await;
    until("the next at work", || gate.begun() == 2).await;
    gate.let_go(1);
    mock.until_committed(0, 2).await;
    running.stop().await;
}

#[tokio::test]
async fn lst_2_in_flight_holds_its_partition_until_the_lease_is_over_and_no_other() {
    let mock = Mock::new(2);
    let runs = Arc::new(AtomicUsize::new(0));
    let ctx = IdempotencyContext::builder(SCOPE, "o-1").lease(LEASE);
    let ctx = ctx.fingerprint(body_fingerprint(b"{}")).build().expect("a context");
    let looked_up = Instant::now();
    let Ok(Acquisition::Granted(held)) = mock.engine.try_acquire(&ctx).await else {
        panic!("not granted")
    };
    mock.publish(0, "o-1", "{}").await;
    mock.publish(0, "o-2", "{}").await;
    mock.publish(1, "o-3", "{}").await;
    let listener = mock.listener().build().expect("built");
    let counters = listener.counters();
    let running = start(listener, counting(&mock, &runs));
    until("found in flight", || counters.count_of(Reason::InFlight) >= 1).await;
    mock.until_committed(1, 1).await;
    assert_eq!(mock.committed(0).await, None);
    assert_eq!(runs.load(Ordering::SeqCst), 1, "only o-3: o-2 has to wait for o-1");
    drop(held.complete_tombstone(Tombstone::new()).await);
    mock.until_committed(0, 2).await;
    running.stop().await;
    // The attempts do not form a hot loop: after each of them, the listener pauses for the
    // remaining lease, in whole seconds.
    let looks = counters.count_of(Reason::InFlight);
    assert!(looks <= looked_up.elapsed().as_secs() + 1, "{looks} looks");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(counters.count_of(Reason::NotReplayable), 1);
    assert_eq!(mock.dead_letter_count().await, 0);
}

#[tokio::test]
async fn lst_2_put_off_without_a_pause_is_no_hot_loop() {
    let mock = Mock::new(1);
    let pause = Duration::from_millis(100);
    mock.publish(0, "o-1", "{}").await;
    let listener = mock.listener().backoff(Backoff::new(pause, pause)).build().expect("built");
    let counters = listener.counters();
    let first = Arc::new(Mutex::new(None));
    let begun = Arc::clone(&first);
    let running = start(listener, move |_| {
        let began = *begun.lock().expect("noted").get_or_insert_with(Instant::now);
        async move {
            Ok(if began.elapsed() < pause * 10 {
                Verdict::delayed(Duration::ZERO)
            } else {
                Verdict::failed()
            })
        }
    });
    until("over", || counters.count_of(Reason::Failed) >= 1).await;
    let (looks, since) = (
        counters.count_of(Reason::InFlight),
        first.lock().expect("noted").map(|first| first.elapsed()),
    );
    running.stop().await;
    // The listener pauses before each attempt, so the number of attempts is bounded on any machine.
    let most = since.expect("begun").as_millis() / pause.as_millis() + 1;
    assert!(u128::from(looks) <= most, "{looks} looks where {most} had a pause");
}

#[tokio::test]
async fn lst_2_side_by_side_the_offset_stays_before_the_first_that_is_not_done() {
    let mock = Mock::new(1);
    let (gate, done) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    for n in 0..100 {
        mock.publish(0, &format!("o-{n}"), "{}").await;
    }
    let (most, now) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listener =
        mock.listener().partition_concurrency(8).partition_prefetch(20).build().expect("built");
    let (engine, opens, ended) = (mock.engine.clone(), Arc::clone(&gate), Arc::clone(&done));
    let (peak, inside) = (Arc::clone(&most), Arc::clone(&now));
    let running = start(listener, move |delivery: Delivery| {
        let (engine, opens, ended) = (engine.clone(), Arc::clone(&opens), Arc::clone(&ended));
        let (peak, inside) = (Arc::clone(&peak), Arc::clone(&inside));
        async move {
            let slow = delivery.offset() == 10;
            let work = async || {
                peak.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if slow {
                    drop(opens.acquire().await);
                }
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<(), Poison>(())
            };
            let verdict = Verdict::of(&engine.execute(delivery.context()?, work).await);
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(verdict)
        }
    });
    until("all except the slow one", || done.load(Ordering::SeqCst) == 99).await;
    mock.until_committed(0, 10).await;
    gate.add_permits(1);
    mock.until_committed(0, 100).await;
    running.stop().await;
    assert!(most.load(Ordering::SeqCst) <= 8, "{most:?}");
}

/// LST-2: the message is tried again when the lease of its first run has ended, and not before.
#[tokio::test]
async fn lst_2_run_4_an_error_of_unknown_effect_is_put_off_for_the_rest_of_the_lease() {
    let mock = Mock::new(1);
    let listener = mock.listener().build().expect("built");
    let (counters, engine) = (listener.counters(), mock.engine.clone());
    mock.publish(0, "o-1", "{}").await;
    let running = start(listener, move |_| {
        let engine = engine.clone();
        async move {
            let ctx = IdempotencyContext::builder(SCOPE, "o-1").lease(Duration::from_secs(2));
            let ctx = ctx.wait_timeout(Duration::ZERO).build().expect("a context");
            Ok(unsure(&engine, ctx).await)
        }
    });
    mock.until_committed(0, 1).await;
    running.stop().await;
    assert_eq!((counters.count_of(Reason::Held), counters.count_of(Reason::InFlight)), (1, 0));
}
