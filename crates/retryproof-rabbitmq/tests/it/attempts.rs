// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that fail are redelivered, up to a limit; an unavailable store uses up no attempt
//! (LST-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::listener::{Backoff, Reason, Verdict, guarded};
use retryproof_core::{IdempotencyEngine, SharedStore};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Delivery;
use retryproof_testkit::broker::{counted, lease_lost, not_recorded};
use retryproof_testkit::{FaultStore, Faults, Outage};

use crate::support::{Running, TestQueues};

const SOON: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));

#[tokio::test]
async fn lst_2_work_that_fails_or_panics_comes_again_until_it_succeeds() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let attempts = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&attempts);
    let listener = queues.listener().backoff(SOON).build().expect("built");
    let running = Running::handling(
        listener,
        guarded(&engine, move |paid: String, _lease| {
            let attempt = tried.fetch_add(1, Ordering::SeqCst);
            async move {
                assert_eq!(paid, "o-1");
                assert!(attempt != 1, "the second attempt panics");
                if attempt == 0 { Err(std::io::Error::other("away")) } else { Ok(attempt) }
            }
        }),
    );
    queues.publish("k", "\"o-1\"").await;
    running.answered(Reason::Executed, 1).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    let count_of = |reason| running.counters.count_of(reason);
    assert_eq!((count_of(Reason::Failed), count_of(Reason::Panicked)), (1, 1));
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_work_that_never_succeeds_is_a_dead_letter_after_its_limit() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let listener = queues.listener().backoff(SOON).max_attempts(3).build().expect("built");
    let running = Running::start(listener, move |delivery: Delivery| {
        let (call, before) = (engine.call(delivery.context().expect("a key")), delivery.failures());
        async move { Verdict::of(&call.execute(async || Err::<u8, _>(before)).await) }
    });
    queues.publish("k", "paid").await;
    let dead = queues.take(&queues.dead()).await;
    assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some("failed"), &b"paid"[..]));
    assert_eq!((dead.failures, running.counters.count_of(Reason::Failed)), (Some(3), 3));
    let counters = running.counters.read();
    assert_eq!((counters.nacks, counters.dead_letters), (2, 1));
    // An operator moves the letter back, with its headers. It gets as many attempts again.
    queues.send(&dead.body, dead.properties).await;
    let again = queues.take(&queues.dead()).await;
    assert_eq!((again.failures, running.counters.count_of(Reason::Failed)), (Some(3), 6));
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_lost_lease_and_a_completion_that_is_not_recorded_spend_an_attempt() {
    for verdict in [lease_lost(), not_recorded().await] {
        let queues = TestQueues::new().await;
        let listener = queues.listener().backoff(SOON).max_attempts(2).build().expect("built");
        let running = Running::start(listener, move |_| async move { verdict });
        queues.publish("k", "paid").await;
        let dead = queues.take(&queues.dead()).await;
        assert_eq!(dead.why.as_deref(), Some(verdict.reason().as_str()));
        let counters = running.counters.read();
        assert_eq!((counters.nacks, counters.dead_letters), (1, 1), "{verdict:?}");
        running.stop().await.expect("stopped");
        queues.clean().await;
    }
}

#[tokio::test]
async fn lst_2_while_the_store_is_away_nothing_runs_and_the_message_comes_again() {
    let queues = TestQueues::new().await;
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener().backoff(SOON).build().expect("built");
    faults.begin_outage(Outage::Refuse);
    let running = Running::counting(listener, &engine, &runs);
    queues.publish("k", "paid").await;
    running.answered(Reason::Store, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    faults.end_outage();
    running.answered(Reason::Executed, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_store_that_is_away_spends_none_of_a_messages_attempts_however_long_it_is() {
    let queues = TestQueues::new().await;
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener().backoff(SOON).max_attempts(2).build().expect("built");
    faults.begin_outage(Outage::Refuse);
    let running = Running::counting(listener, &engine, &runs);
    queues.publish("k", "paid").await;
    running.answered(Reason::Store, 4).await;
    assert_eq!(running.counters.read().dead_letters, 0);
    faults.end_outage();
    running.answered(Reason::Executed, 1).await;
    assert_eq!((runs.load(Ordering::SeqCst), queues.ready(&queues.dead()).await), (1, 0));
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_while_the_store_is_away_no_more_messages_are_taken() {
    let queues = TestQueues::new().await;
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let runs = Arc::new(AtomicUsize::new(0));
    let long = Backoff::new(Duration::from_secs(600), Duration::from_secs(600));
    let listener = queues.listener().backoff(long).concurrency(1).build().expect("built");
    for n in 0..50 {
        queues.publish(&format!("k{n}"), "paid").await;
    }
    faults.begin_outage(Outage::Refuse);
    let running = Running::counting(listener, &engine, &runs);
    running.answered(Reason::Store, 1).await;
    // The listener pauses while the store is unavailable. Without that pause, it would move all 50
    // messages to a wait queue within this second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(running.counters.count_of(Reason::Store), 1);
    running.stop().await.expect("the listener can be stopped during an outage of the store");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_message_that_cannot_be_moved_is_held_and_given_back_and_not_lost() {
    let queues = TestQueues::new().await;
    // Declare a queue with different arguments under the name of the wait queue.
    let taken = queues.wait(1);
    let options = lapin::options::QueueDeclareOptions::durable();
    queues
        .channel
        .queue_declare(taken.as_str().into(), options, Default::default())
        .await
        .expect("made");
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let failed = Arc::new(AtomicBool::new(false));
    let listener = queues.listener().backoff(SOON).build().expect("built");
    let running = Running::start(listener, move |delivery: Delivery| {
        let (call, failed) = (engine.call(delivery.context().expect("a key")), Arc::clone(&failed));
        async move {
            let first = || !failed.swap(true, Ordering::SeqCst);
            Verdict::of(&call.execute(async || if first() { Err("once") } else { Ok(1_u8) }).await)
        }
    });
    queues.publish("k", "paid").await;
    running.answered(Reason::Executed, 1).await;
    assert_eq!(queues.ready(&taken).await, 0);
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_wait_queue_that_was_deleted_is_made_again_and_the_message_is_not_lost() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    let listener = queues.listener().backoff(SOON).build().expect("built");
    let running = Running::start(listener, move |delivery: Delivery| {
        let (call, failures) =
            (engine.call(delivery.context().expect("a key")), Arc::clone(&counted));
        async move {
            // The first attempt for each key fails.
            let first = delivery.failures() == 0 && !delivery.redelivered();
            let run = async || {
                failures.fetch_add(usize::from(first), Ordering::SeqCst);
                if first { Err("once") } else { Ok(1_u8) }
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    queues.publish("a", "paid").await;
    running.answered(Reason::Executed, 1).await;
    let gone = queues.wait(1);
    queues.channel.queue_delete(gone.as_str().into(), Default::default()).await.expect("deleted");
    queues.publish("b", "paid").await;
    running.answered(Reason::Executed, 2).await;
    queues.publish("c", "paid").await;
    running.answered(Reason::Executed, 3).await;
    assert_eq!(failures.load(Ordering::SeqCst), 3);
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_decoder_that_panics_is_a_failure_of_the_message_and_not_of_the_consumer() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener().backoff(SOON).max_attempts(2).prefetch(1);
    let counts = Arc::clone(&runs);
    let running = Running::start(listener.build().expect("built"), move |delivery: Delivery| {
        let (engine, runs) = (engine.clone(), Arc::clone(&counts));
        async move {
            assert!(delivery.payload() != b"odd", "the decoder has a bug");
            counted(&engine, delivery.context().expect("a key"), &runs).await
        }
    });
    queues.publish("a", "odd").await;
    queues.publish("b", "even").await;
    running.answered(Reason::Executed, 1).await;
    let dead = queues.take(&queues.dead()).await;
    assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some("panicked"), &b"odd"[..]));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop().await.expect("stopped");
    queues.clean().await;
}
