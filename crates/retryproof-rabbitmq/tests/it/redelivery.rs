// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that are done are skipped; those that fail are redelivered, up to a limit (LST-1, LST-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use retryproof_core::codec::BytesCodec;
use retryproof_core::listener::{Backoff, Reason, Verdict};
use retryproof_core::{IdempotencyContext, IdempotencyEngine, SharedStore};
use retryproof_memory::MemoryStore;
use retryproof_testkit::broker::{lease_lost, not_recorded};
use retryproof_testkit::{FaultStore, Faults, Outage};
use tokio::sync::Barrier;

use crate::support::{Desk, Running};

const SOON: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));

#[tokio::test]
async fn lst_1_of_messages_published_twice_each_runs_once_side_by_side_and_bounded() {
    let desk = Desk::new().await;
    for _ in 0..2 {
        for n in 0..100 {
            desk.publish(&format!("k{n}"), "paid").await;
        }
    }
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let (runs, now, most) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    // Four have to run at the same time before any of them continues.
    let four = Arc::new(Barrier::new(4));
    let consumer = desk.consumer().prefetch(100).concurrency(4).build().expect("built");
    let (counted, highest) = (Arc::clone(&runs), Arc::clone(&most));
    let running = Running::start(&consumer, move |incoming| {
        let call = engine.call(incoming.ctx);
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
    assert_eq!((desk.ready(&desk.queue).await, desk.ready(&desk.dead()).await), (0, 0));
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_work_that_fails_or_panics_comes_again_until_it_succeeds() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let attempts = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&attempts);
    let consumer = desk.consumer().backoff(SOON).build().expect("built");
    let counters = consumer.counters();
    let stopper = consumer.stopper();
    let running = tokio::spawn(async move {
        consumer
            .run(&engine, move |_: Vec<u8>, _lease| {
                let attempt = tried.fetch_add(1, Ordering::SeqCst);
                async move {
                    assert!(attempt != 1, "the second attempt panics");
                    if attempt == 0 { Err(std::io::Error::other("away")) } else { Ok(attempt) }
                }
            })
            .await
    });
    desk.publish("k", "paid").await;
    crate::support::eventually("it succeeds", async || counters.count_of(Reason::Executed) == 1)
        .await;
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    assert_eq!((counters.count_of(Reason::Failed), counters.count_of(Reason::Panicked)), (1, 1));
    stopper.stop();
    running.await.expect("no panic").expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_work_that_never_succeeds_is_a_dead_letter_after_its_limit() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let consumer = desk.consumer().backoff(SOON).max_attempts(3).build().expect("built");
    let running = Running::start(&consumer, move |incoming| {
        let (call, before) = (engine.call(incoming.ctx), incoming.message.failures());
        async move { Verdict::of(&call.execute(async || Err::<u8, _>(before)).await) }
    });
    desk.publish("k", "paid").await;
    let dead = desk.take(&desk.dead()).await;
    assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some("failed"), &b"paid"[..]));
    assert_eq!(running.counters.count_of(Reason::Failed), 3);
    let counters = running.counters.read();
    assert_eq!((counters.nacks, counters.dead_letters), (2, 1));
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_a_lost_lease_and_a_completion_that_is_not_recorded_spend_an_attempt() {
    for verdict in [lease_lost(), not_recorded().await] {
        let desk = Desk::new().await;
        let consumer = desk.consumer().backoff(SOON).max_attempts(2).build().expect("built");
        let running = Running::start(&consumer, move |_| async move { verdict });
        desk.publish("k", "paid").await;
        let dead = desk.take(&desk.dead()).await;
        assert_eq!(dead.why.as_deref(), Some(verdict.reason().as_str()));
        let counters = running.counters.read();
        assert_eq!((counters.nacks, counters.dead_letters), (1, 1), "{verdict:?}");
        running.stop().await.expect("stopped");
        desk.clean().await;
    }
}

#[tokio::test]
async fn lst_2_while_the_store_is_away_nothing_runs_and_the_message_comes_again() {
    let desk = Desk::new().await;
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let runs = Arc::new(AtomicUsize::new(0));
    let consumer = desk.consumer().backoff(SOON).build().expect("built");
    faults.begin_outage(Outage::Refuse);
    let running = Running::counting(&consumer, &engine, &runs);
    desk.publish("k", "paid").await;
    running.answered(Reason::Store, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    faults.end_outage();
    running.answered(Reason::Executed, 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_a_store_that_is_away_spends_none_of_a_messages_attempts_however_long_it_is() {
    let desk = Desk::new().await;
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let runs = Arc::new(AtomicUsize::new(0));
    let consumer = desk.consumer().backoff(SOON).max_attempts(2).build().expect("built");
    faults.begin_outage(Outage::Refuse);
    let running = Running::counting(&consumer, &engine, &runs);
    desk.publish("k", "paid").await;
    running.answered(Reason::Store, 4).await;
    assert_eq!(running.counters.read().dead_letters, 0);
    faults.end_outage();
    running.answered(Reason::Executed, 1).await;
    assert_eq!((runs.load(Ordering::SeqCst), desk.ready(&desk.dead()).await), (1, 0));
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_while_the_store_is_away_no_more_messages_are_taken() {
    let desk = Desk::new().await;
    let faults = Faults::none();
    let engine = IdempotencyEngine::new(SharedStore::new(FaultStore::new(
        MemoryStore::new(),
        faults.clone(),
    )));
    let runs = Arc::new(AtomicUsize::new(0));
    let long = Backoff::new(Duration::from_secs(600), Duration::from_secs(600));
    let consumer = desk.consumer().backoff(long).concurrency(1).build().expect("built");
    for n in 0..50 {
        desk.publish(&format!("k{n}"), "paid").await;
    }
    faults.begin_outage(Outage::Refuse);
    let running = Running::counting(&consumer, &engine, &runs);
    running.answered(Reason::Store, 1).await;
    // Enough time to move all of them.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(running.counters.count_of(Reason::Store), 1);
    running.stop().await.expect("it can be stopped meanwhile");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_a_message_that_cannot_be_moved_is_held_and_given_back_and_not_lost() {
    let desk = Desk::new().await;
    // Another queue has the name of the wait queue.
    let taken = desk.wait(1);
    let options = lapin::options::QueueDeclareOptions::durable();
    desk.channel
        .queue_declare(taken.as_str().into(), options, Default::default())
        .await
        .expect("made");
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let failed = Arc::new(AtomicBool::new(false));
    let consumer = desk.consumer().backoff(SOON).build().expect("built");
    let running = Running::start(&consumer, move |incoming| {
        let (call, failed) = (engine.call(incoming.ctx), Arc::clone(&failed));
        async move {
            let first = || !failed.swap(true, Ordering::SeqCst);
            Verdict::of(&call.execute(async || if first() { Err("once") } else { Ok(1_u8) }).await)
        }
    });
    desk.publish("k", "paid").await;
    running.answered(Reason::Executed, 1).await;
    assert_eq!(desk.ready(&taken).await, 0);
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_a_wait_queue_that_was_deleted_is_made_again_and_the_message_is_not_lost() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    let consumer = desk.consumer().backoff(SOON).build().expect("built");
    let running = Running::start(&consumer, move |incoming| {
        let (call, failures) = (engine.call(incoming.ctx), Arc::clone(&counted));
        async move {
            // Each key fails once.
            let first = incoming.message.failures() == 0 && !incoming.message.redelivered();
            let run = async || {
                failures.fetch_add(usize::from(first), Ordering::SeqCst);
                if first { Err("once") } else { Ok(1_u8) }
            };
            Verdict::of(&call.execute(run).await)
        }
    });
    desk.publish("a", "paid").await;
    running.answered(Reason::Executed, 1).await;
    let gone = desk.wait(1);
    desk.channel.queue_delete(gone.as_str().into(), Default::default()).await.expect("deleted");
    desk.publish("b", "paid").await;
    running.answered(Reason::Executed, 2).await;
    desk.publish("c", "paid").await;
    running.answered(Reason::Executed, 3).await;
    assert_eq!(failures.load(Ordering::SeqCst), 3);
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_a_decoder_that_panics_is_a_failure_of_the_message_and_not_of_the_consumer() {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let consumer = desk.consumer().backoff(SOON).max_attempts(2).prefetch(1);
    let consumer = consumer.decode(|message| {
        assert!(message.body() != b"odd", "the decoder has a bug");
        Ok(message.body().len())
    });
    let running = Running::counting(&consumer.build().expect("built"), &engine, &runs);
    desk.publish("a", "odd").await;
    desk.publish("b", "even").await;
    running.answered(Reason::Executed, 1).await;
    let dead = desk.take(&desk.dead()).await;
    assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some("panicked"), &b"odd"[..]));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop().await.expect("stopped");
    desk.clean().await;
}

#[tokio::test]
async fn lst_2_cmp_8_a_result_that_cannot_be_read_is_acknowledged_or_buried_where_it_is_to_be_sent_on()
 {
    let desk = Desk::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    // A record of another version of this program, which stored bytes.
    let ctx = IdempotencyContext::builder("rabbitmq.tests", "k").build().expect("a context");
    let call = engine.call(ctx).codec(BytesCodec);
    let done = call.execute(async || Ok::<_, ()>(b"done".to_vec())).await;
    assert!(done.expect("executed").is_executed());
    for replies in [false, true] {
        let of_engine = engine.clone();
        let running = Running::start(&desk.consumer().build().expect("built"), move |incoming| {
            let call = of_engine.call(incoming.ctx);
            async move {
                let verdict = Verdict::of(&call.execute(async || Ok::<u8, ()>(1)).await);
                if replies { verdict.replying() } else { verdict }
            }
        });
        desk.publish("k", "paid").await;
        running.answered(Reason::Unreadable, 1).await;
        let counters = running.counters.read();
        assert_eq!((counters.acks, counters.dead_letters), if replies { (0, 1) } else { (1, 0) });
        running.stop().await.expect("stopped");
    }
    assert_eq!(desk.take(&desk.dead()).await.why.as_deref(), Some("record-unreadable"));
    desk.clean().await;
}
