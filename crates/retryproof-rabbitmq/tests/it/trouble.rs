// SPDX-License-Identifier: MIT OR Apache-2.0
//! A broker that becomes unavailable at the worst moments: a proxy cuts the connections to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::listener::{Poison, Reason, Verdict};
use retryproof_core::observe::{LeaseEvent, Observer};
use retryproof_core::{IdempotencyEngine, Recorded};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Delivery;
use retryproof_testkit::broker::{Gate, counted, until};
use retryproof_testkit::wire::WireProxy;
use tokio::sync::Semaphore;

use crate::support::{Running, TestQueues, eventually, proxied};

/// Cuts the connection when the work is recorded, so that the acknowledgement that follows is lost.
struct CutAtCompletion(Arc<WireProxy>);

impl Observer for CutAtCompletion {
    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        self.0.refuse(true);
        self.0.cut();
    }
}

/// Checks that the redelivery was acknowledged and that nothing ran again.
async fn skipped(queues: TestQueues, running: Running, runs: &AtomicUsize) {
    running.answered(Reason::Replayed, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop().await.expect("stopped");
    assert_eq!(queues.ready(&queues.queue).await, 0);
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_broker_gone_between_completion_and_ack_redelivers_what_is_then_skipped() {
    let queues = TestQueues::new().await;
    let (proxy, through) = proxied().await;
    let observer = CutAtCompletion(Arc::clone(&proxy));
    let engine =
        IdempotencyEngine::builder(MemoryStore::new()).observer(observer).build().expect("built");
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener_at(&through).build().expect("built");
    let running = Running::counting(listener, &engine, &runs);
    queues.publish("k", "paid").await;
    running.answered(Reason::Executed, 1).await;
    // The broker did not receive the answer, so it puts the message back into the queue.
    eventually("the message is back in the queue", async || queues.ready(&queues.queue).await == 1)
        .await;
    proxy.refuse(false);
    skipped(queues, running, &runs).await;
}

#[tokio::test]
async fn lst_2_a_consumer_that_dies_between_completion_and_ack_costs_no_second_run() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (runs, completed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (own, counts, done) = (engine.clone(), Arc::clone(&runs), Arc::clone(&completed));
    let running =
        Running::start(queues.listener().build().expect("built"), move |delivery: Delivery| {
            let (engine, runs, done) = (own.clone(), Arc::clone(&counts), Arc::clone(&done));
            async move {
                let _ = counted(&engine, delivery.context().expect("a key"), &runs).await;
                done.add_permits(1);
                std::future::pending().await
            }
        });
    queues.publish("k", "paid").await;
    drop(completed.acquire().await);
    running.die().await;
    let running = Running::counting(queues.listener().build().expect("built"), &engine, &runs);
    skipped(queues, running, &runs).await;
}

#[tokio::test]
async fn lst_2_work_goes_on_while_the_broker_is_away_and_is_not_repeated() {
    let queues = TestQueues::new().await;
    let (proxy, through) = proxied().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let gate = Arc::new(Gate::closed());
    let listener = queues.listener_at(&through);
    // The lease is long enough for heartbeats to be on time on a busy machine. The redelivery is
    // delayed for the rest of the lease.
    let listener = listener.lease(Duration::from_secs(10)).build().expect("built");
    let running = Running::waiting(listener, &engine, &gate);
    queues.publish("k", "paid").await;
    until("it is at work", || gate.begun() == 1).await;
    let lines = proxy.lines();
    proxy.cut();
    eventually("it connects again", async || proxy.lines() > lines).await;
    running.answered(Reason::InFlight, 1).await;
    gate.let_go(1);
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Replayed, 1).await;
    assert_eq!(gate.begun(), 1);
    running.stop().await.expect("stopped");
    queues.clean().await;
}

/// A broker that is short of memory or disk confirms nothing for as long as the shortage lasts.
#[tokio::test]
async fn lst_2_a_copy_that_is_confirmed_late_is_not_published_again() {
    let queues = TestQueues::new().await;
    let (proxy, through) = proxied().await;
    let listener = queues.listener_at(&through).build().expect("built");
    let (stalling, seen) = (Arc::clone(&proxy), AtomicUsize::new(0));
    let running = Running::handling(listener, move |_: Delivery| {
        // The connection for copies is open when the second message comes.
        stalling.stall(seen.fetch_add(1, Ordering::SeqCst) == 1);
        async { Err(Poison::Unreadable) }
    });
    queues.publish("k", "first").await;
    eventually("the first letter", async || queues.ready(&queues.dead()).await == 1).await;
    queues.publish("k", "second").await;
    running.answered(Reason::Poison(Poison::Unreadable), 2).await;
    // Longer than the timeout of a call, and than the pause before another attempt.
    tokio::time::sleep(Duration::from_secs(13)).await;
    proxy.stall(false);
    eventually("the second letter", async || queues.ready(&queues.dead()).await >= 2).await;
    running.stop().await.expect("stopped");
    assert_eq!(queues.ready(&queues.dead()).await, 2, "one letter for each message");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_while_nothing_can_be_moved_a_message_is_held_and_not_counted_as_redelivered() {
    let queues = TestQueues::new().await;
    let (proxy, through) = proxied().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let listener = queues.listener_at(&through).build().expect("built");
    let (refusing, seen) = (Arc::clone(&proxy), Arc::new(std::sync::Mutex::new(Vec::new())));
    let sees = Arc::clone(&seen);
    let running = Running::start(listener, move |delivery: Delivery| {
        let attempt =
            (delivery.failures(), delivery.redelivered(), delivery.header("x-delivery-count"));
        let first = {
            let mut seen = sees.lock().expect("unpoisoned");
            seen.push(attempt);
            seen.len() == 1
        };
        // During the first attempt, the connection for messages stays open, but the connection for
        // copies cannot be opened.
        refusing.refuse(first);
        let call = engine.call(delivery.context().expect("a key"));
        async move {
            Verdict::of(&call.execute(async || if first { Err("away") } else { Ok(1_u8) }).await)
        }
    });
    queues.publish("k", "paid").await;
    running.answered(Reason::Failed, 1).await;
    // Leave enough time for a few attempts, and for a redelivery if the message is given back.
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.refuse(false);
    running.answered(Reason::Executed, 1).await;
    assert_eq!(*seen.lock().expect("unpoisoned"), [(0, false, None), (1, false, None)]);
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_line_cut_again_and_again_loses_and_repeats_nothing_and_leaves_nobody_hanging() {
    let queues = TestQueues::new().await;
    let (proxy, through) = proxied().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    // If a handler hung while it answers, the drain would wait for it for ten minutes, and the test
    // would fail.
    let listener = queues.listener_at(&through).lease(Duration::from_secs(10));
    let listener =
        listener.concurrency(8).drain_timeout(Duration::from_secs(600)).build().expect("built");
    for n in 0..300 {
        queues.publish(&format!("k{n}"), "paid").await;
        queues.publish(&format!("k{n}"), "paid").await;
    }
    let running = Running::counting(listener, &engine, &runs);
    for cut in 0..10 {
        eventually("it works", async || running.counters.read().acks > cut * 10).await;
        proxy.cut();
    }
    eventually("all ran", async || runs.load(Ordering::SeqCst) == 300).await;
    let waits = async || {
        let mut left = queues.ready(&queues.queue).await;
        for seconds in [1, 2, 4, 8, 16] {
            left += queues.ready(&queues.wait(seconds)).await;
        }
        left
    };
    eventually("the queues are empty", async || waits().await == 0).await;
    running.stop().await.expect("stopped");
    // The redelivered messages are already done, so a second listener with the same records runs
    // only the new message.
    let again = Running::counting(queues.listener().build().expect("built"), &engine, &runs);
    queues.publish("last", "paid").await;
    again.answered(Reason::Executed, 1).await;
    again.stop().await.expect("stopped");
    assert_eq!((runs.load(Ordering::SeqCst), queues.ready(&queues.dead()).await), (301, 0));
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_consumer_waits_for_a_broker_that_is_not_there_yet() {
    let queues = TestQueues::new().await;
    let (proxy, through) = proxied().await;
    proxy.refuse(true);
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener_at(&through).build().expect("built");
    let running = Running::counting(listener, &engine, &runs);
    queues.publish("k", "paid").await;
    proxy.refuse(false);
    running.answered(Reason::Executed, 1).await;
    // A listener that is waiting for its broker can be stopped.
    proxy.refuse(true);
    proxy.cut();
    running.stop().await.expect("stopped");
    queues.clean().await;
}
