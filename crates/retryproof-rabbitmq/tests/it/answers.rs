// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that are done are skipped; a redelivery while the first delivery runs is delayed for the
//! rest of the lease, without counting as a failure (LST-1, LST-2).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use retryproof_core::codec::BytesCodec;
use retryproof_core::listener::{Backoff, Reason, Verdict};
use retryproof_core::{IdempotencyContext, IdempotencyEngine};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Delivery;
use retryproof_testkit::broker::{Gate, counted, gated, unsure, until};
use tokio::sync::Barrier;

use crate::support::{Running, TestQueues};

/// Heartbeats renew the lease after half of its time, so at least 1 s of it is left at any moment.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test measures in real time that no message came too early"
)]
async fn lst_2_in_flight_is_put_off_by_the_rest_of_the_lease_without_a_loop_and_counts_as_no_failure()
 {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let gate = Arc::new(Gate::closed());
    let waits_at = Arc::clone(&gate);
    // If a delivery counted as a failure, the message would become a dead letter, because only one
    // attempt is allowed.
    let listener = queues.listener().lease(LEASE).max_attempts(1).build().expect("built");
    let running = Running::start(listener, move |delivery: Delivery| {
        assert_eq!((delivery.failures(), delivery.header("x-delivery-count")), (0, None));
        let (engine, gate) = (engine.clone(), Arc::clone(&waits_at));
        async move { gated(&engine, delivery.context().expect("a key"), &gate).await }
    });
    queues.publish("k", "paid").await;
    queues.publish("k", "paid").await;
    running.answered(Reason::InFlight, 1).await;
    let began = Instant::now();
    running.answered(Reason::InFlight, 3).await;
    // Two delays of at least a second lie between the first and the third delivery.
    let (took, looks) = (began.elapsed(), running.counters.count_of(Reason::InFlight) - 1);
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert!(looks <= took.as_secs() + 1, "{looks} redeliveries in {took:?}");
    gate.let_go(1);
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!(gate.begun(), 1);
    assert_eq!(running.counters.read().dead_letters, 0);
    running.stop().await.expect("stopped");
    assert_eq!(queues.ready(&queues.queue).await, 0);
    queues.clean().await;
}

/// The context of each message has the data subject that the listener's function finds in the
/// message.
#[tokio::test]
async fn seal_3_a_function_names_the_subject_of_each_message() {
    let queues = TestQueues::new().await;
    let listener = queues.listener().data_subject(|message| {
        let body = String::from_utf8_lossy(message.payload()).into_owned();
        Some(body).filter(|name| name != "nobody")
    });
    let (engine, runs) = (IdempotencyEngine::new(MemoryStore::new()), Arc::default());
    let found = Arc::new(Mutex::new(Vec::new()));
    let finds = Arc::clone(&found);
    let running = Running::start(listener.build().expect("built"), move |delivery: Delivery| {
        let ctx = delivery.context().expect("a context");
        finds.lock().unwrap().push(ctx.subject().map(str::to_owned));
        let (engine, runs) = (engine.clone(), Arc::clone(&runs));
        async move { counted(&engine, ctx, &runs).await }
    });
    for (at, name) in (1..).zip(["ada", "nobody"]) {
        queues.publish(name, name).await;
        running.answered(Reason::Executed, at).await;
    }
    assert_eq!(*found.lock().unwrap(), [Some("ada".to_owned()), None]);
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_1_with_a_wait_a_redelivery_waits_for_the_first_and_is_skipped() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let gate = Arc::new(Gate::closed());
    let listener = queues.listener().wait_timeout(Duration::from_secs(600)).build().expect("built");
    let running = Running::waiting(listener, &engine, &gate);
    queues.publish("k", "paid").await;
    until("the first is in progress", || gate.begun() == 1).await;
    queues.publish("k", "paid").await;
    until("the second waits", || engine.activity().waiting == 1).await;
    gate.let_go(1);
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!((gate.begun(), running.counters.count_of(Reason::InFlight)), (1, 0));
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_run_4_an_error_of_unknown_effect_is_put_off_for_the_rest_of_the_lease() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let soon = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
    let listener = queues.listener().lease(LEASE).backoff(soon).build().expect("built");
    let running = Running::start(listener, move |delivery: Delivery| {
        let engine = engine.clone();
        async move { unsure(&engine, delivery.context().expect("a key")).await }
    });
    queues.publish("k", "paid").await;
    running.answered(Reason::Executed, 1).await;
    assert_eq!(
        (running.counters.count_of(Reason::Held), running.counters.count_of(Reason::InFlight)),
        (1, 0)
    );
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_1_of_messages_published_twice_each_runs_once_side_by_side_and_bounded() {
    let queues = TestQueues::new().await;
    for _ in 0..2 {
        for n in 0..100 {
            queues.publish(&format!("k{n}"), "paid").await;
        }
    }
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (runs, now, most) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    // No handler continues until four of them run at the same time.
    let four = Arc::new(Barrier::new(4));
    let listener = queues.listener().prefetch(100).concurrency(4).build().expect("built");
    let (counted, highest) = (Arc::clone(&runs), Arc::clone(&most));
    let running = Running::start(listener, move |delivery: Delivery| {
        let call = engine.call(delivery.context().expect("a key"));
        let (runs, now, most, four) =
            (Arc::clone(&counted), Arc::clone(&now), Arc::clone(&highest), Arc::clone(&four));
        async move {
            let run = async || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                runs.fetch_add(1, Ordering::SeqCst);
                four.wait().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>(())
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    running.answered(Reason::Executed, 100).await;
    running.answered(Reason::Replayed, 100).await;
    assert_eq!((runs.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (100, 4));
    assert_eq!(running.counters.read().acks, 200);
    running.stop().await.expect("stopped");
    assert_eq!((queues.ready(&queues.queue).await, queues.ready(&queues.dead()).await), (0, 0));
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_cmp_8_a_result_that_cannot_be_read_is_acknowledged_or_buried_where_it_is_to_be_sent_on()
 {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    // Store the record as another version of the program would, with a value of raw bytes.
    let ctx = IdempotencyContext::builder("rabbitmq.tests", "k").build().expect("a context");
    let call = engine.call(ctx).codec(BytesCodec);
    let done = call.execute(async || Ok::<_, ()>(b"done".to_vec())).await;
    assert!(done.expect("executed").is_executed());
    for replies in [false, true] {
        let of_engine = engine.clone();
        let running =
            Running::start(queues.listener().build().expect("built"), move |delivery: Delivery| {
                let call = of_engine.call(delivery.context().expect("a key"));
                async move {
                    let verdict = Verdict::of(&call.execute(async || Ok::<u8, ()>(1)).await);
                    if replies { verdict.replying() } else { verdict }
                }
            });
        queues.publish("k", "paid").await;
        running.answered(Reason::Unreadable, 1).await;
        let counters = running.counters.read();
        assert_eq!((counters.acks, counters.dead_letters), if replies { (0, 1) } else { (1, 0) });
        running.stop().await.expect("stopped");
    }
    assert_eq!(queues.take(&queues.dead()).await.why.as_deref(), Some("record-unreadable"));
    queues.clean().await;
}
