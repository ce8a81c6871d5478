// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a listener stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::{Reason, Verdict};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Delivery;
use tokio::sync::Notify;

use crate::support::{Running, TestQueues, eventually, proxied};

#[tokio::test]
async fn run_5_a_stopped_consumer_ends_its_work_and_gives_back_the_rest() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notifies, gate, of_engine) = (Arc::clone(&begun), Arc::clone(&go), engine.clone());
    let listener = queues.listener().concurrency(1).build().expect("built");
    let running = Running::start(listener, move |delivery: Delivery| {
        let (call, notifies, gate) = (
            of_engine.call(delivery.context().expect("a key")),
            Arc::clone(&notifies),
            Arc::clone(&gate),
        );
        async move {
            let run = async || {
                notifies.notify_one();
                gate.notified().await;
                Ok::<_, std::io::Error>(())
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    for n in 0..10 {
        queues.publish(&format!("k{n}"), "paid").await;
    }
    begun.notified().await;
    running.ask_to_stop().await;
    go.notify_one();
    let counters = Arc::clone(&running.counters);
    running.stop().await.expect("stopped");
    assert_eq!(counters.read().acks, 1);
    let runs = Arc::new(AtomicUsize::new(0));
    let rest = Running::counting(queues.listener().build().expect("built"), &engine, &runs);
    rest.answered(Reason::Executed, 9).await;
    rest.stop().await.expect("stopped");
    assert_eq!(runs.load(Ordering::SeqCst), 9);
    queues.clean().await;
}

#[tokio::test]
async fn run_5_a_stopped_consumer_gives_back_nothing_that_would_count_as_redelivered() {
    let queues = TestQueues::new().await;
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&go));
    let begins = Arc::clone(&begun);
    for n in 0..10 {
        queues.publish(&format!("k{n}"), "paid").await;
    }
    let (proxy, through) = proxied().await;
    let listener = queues.listener_at(&through).concurrency(2).build().expect("built");
    let done = || {
        Verdict::of(&Ok::<_, retryproof_core::ExecuteError<()>>(
            retryproof_core::Outcome::Executed(()),
        ))
    };
    let running = Running::start(listener, move |_| {
        begins.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.expect("open").forget();
            done()
        }
    });
    eventually("two are in work", async || begun.load(Ordering::SeqCst) == 2).await;
    let flights = proxy.flights();
    running.ask_to_stop().await;
    eventually(
        "it receives no more messages, and its consumer is cancelled at the broker",
        async || proxy.flights() > flights,
    )
    .await;
    go.add_permits(10);
    running.stop().await.expect("stopped");
    assert_eq!((begun.load(Ordering::SeqCst), queues.ready(&queues.queue).await), (2, 8));
    let again = Arc::new(AtomicUsize::new(0));
    let redelivered = Arc::clone(&again);
    let rest =
        Running::start(queues.listener().build().expect("built"), move |delivery: Delivery| {
            redelivered.fetch_add(usize::from(delivery.redelivered()), Ordering::SeqCst);
            async move { done() }
        });
    rest.answered(Reason::Executed, 8).await;
    assert_eq!(again.load(Ordering::SeqCst), 0);
    rest.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn run_5_work_that_outlasts_the_drain_is_dropped_and_comes_again() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let begun = Arc::new(Notify::new());
    let (notifies, of_engine) = (Arc::clone(&begun), engine.clone());
    let listener =
        queues.listener().lease(Duration::from_secs(1)).drain_timeout(Duration::from_millis(50));
    let running = Running::start(listener.build().expect("built"), move |delivery: Delivery| {
        let (call, notifies) =
            (of_engine.call(delivery.context().expect("a key")), Arc::clone(&notifies));
        async move {
            let run = async || {
                notifies.notify_one();
                std::future::pending::<Result<(), ()>>().await
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    queues.publish("k", "paid").await;
    begun.notified().await;
    running.stop().await.expect("stopped");
    let runs = Arc::new(AtomicUsize::new(0));
    let next = Running::counting(queues.listener().build().expect("built"), &engine, &runs);
    next.answered(Reason::Executed, 1).await;
    next.stop().await.expect("stopped");
    queues.clean().await;
}
