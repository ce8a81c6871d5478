// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages that fail however often they are tried: each becomes one complete dead letter, and
//! delays no other message (LST-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use retryproof_core::listener::{Poison, Reason, Verdict, guarded};
use retryproof_core::{ExecuteError, IdempotencyEngine, Outcome};
use retryproof_memory::MemoryStore;
use retryproof_rabbitmq::Delivery;
use serde::Deserialize;

use crate::support::{CANARY, Running, TestQueues};

#[derive(Debug, Deserialize)]
struct Order {
    id: u64,
}

fn under(key: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(key.into())
}

#[tokio::test]
async fn lst_2_no_key_bad_key_and_unreadable_bodies_are_dead_letters_and_run_nothing() {
    let queues = TestQueues::new().await;
    let long_key = {
        let mut headers = FieldTable::default();
        headers.insert("key".into(), AMQPValue::LongString("k".repeat(513).into()));
        BasicProperties::default().with_headers(headers)
    };
    let listener = queues
        .listener()
        .key(|message| message.header("key").or_else(|| message.message_id().map(str::to_owned)));
    let cases: [(&str, BasicProperties, &[u8]); 6] = [
        ("no-key", BasicProperties::default(), b"{\"id\":1}"),
        ("bad-key", long_key, b"{\"id\":2}"),
        ("bad-key", under("a\tb"), b"{\"id\":3}"),
        ("bad-key", under(" "), b"{\"id\":4}"),
        ("unreadable-message", under("k5"), b"not json at all"),
        ("unreadable-message", under("k6"), b"{\"id\":\"\xff\"}"),
    ];
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    // Handle one message at a time, so that the order of the dead letters is known.
    let counts = Arc::clone(&runs);
    let handler = guarded(&engine, move |_: Order, _lease| {
        counts.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ()>(()) }
    });
    let running = Running::handling(listener.concurrency(1).build().expect("built"), handler);
    for (_, properties, body) in &cases {
        queues.send(body, properties.clone()).await;
    }
    for (why, _, body) in &cases {
        let dead = queues.take(&queues.dead()).await;
        assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some(*why), *body));
        assert_eq!(dead.exchange.as_deref(), Some(""));
    }
    let counts = [Poison::NoKey, Poison::BadKey, Poison::Unreadable]
        .map(|poison| running.counters.count_of(Reason::Poison(poison)));
    assert_eq!((counts, runs.load(Ordering::SeqCst)), ([1, 3, 2], 0));
    running.stop().await.expect("stopped");
    assert_eq!(queues.ready(&queues.queue).await, 0);
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_fp_1_a_redelivery_with_another_body_is_a_dead_letter() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let running = Running::counting(queues.listener().build().expect("built"), &engine, &runs);
    queues.publish("k", "10 EUR").await;
    running.answered(Reason::Executed, 1).await;
    queues.publish("k", "99 EUR").await;
    let dead = queues.take(&queues.dead()).await;
    assert_eq!(
        (dead.why.as_deref(), &dead.body[..]),
        (Some("fingerprint-mismatch"), &b"99 EUR"[..])
    );
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    running.stop().await.expect("stopped");
    // With `any_body`, the body does not matter.
    let any =
        Running::counting(queues.listener().any_body().build().expect("built"), &engine, &runs);
    queues.publish("k", "99 EUR").await;
    any.answered(Reason::Replayed, 1).await;
    any.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_queue_full_of_one_poison_message_is_emptied_without_a_loop_and_the_good_one_runs()
{
    let queues = TestQueues::new().await;
    for _ in 0..300 {
        queues.send(CANARY.as_bytes(), under("poison")).await;
    }
    queues.send(b"{\"id\":7}", under("good")).await;
    let ids = Arc::new(AtomicUsize::new(0));
    let sum = Arc::clone(&ids);
    let running =
        Running::handling(queues.listener().build().expect("built"), move |delivery: Delivery| {
            let order = delivery.json::<Order>();
            let id = order.as_ref().map_or(0, |order| order.id);
            sum.fetch_add(usize::try_from(id).unwrap_or(0), Ordering::SeqCst);
            let done = Ok::<_, ExecuteError<()>>(Outcome::Executed(()));
            async move { order.map(|_| Verdict::of(&done)) }
        });
    running.answered(Reason::Executed, 1).await;
    running.answered(Reason::Poison(Poison::Unreadable), 300).await;
    assert_eq!(ids.load(Ordering::SeqCst), 7);
    let counters = running.counters.read();
    assert_eq!(
        (counters.acks, counters.nacks, counters.dead_letters),
        (1, 0, 300),
        "each was delivered once"
    );
    running.stop().await.expect("stopped");
    assert_eq!((queues.ready(&queues.queue).await, queues.ready(&queues.dead()).await), (0, 300));
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_key_function_that_panics_costs_its_message_and_not_the_listener() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = queues.listener().key(|message| {
        let key = message.message_id()?;
        assert_ne!(key, "o-1", "planted");
        Some(key.to_owned())
    });
    let running = Running::counting(listener.build().expect("built"), &engine, &runs);
    for key in ["o-0", "o-1", "o-2"] {
        queues.publish(key, key).await;
    }
    let dead = queues.take(&queues.dead()).await;
    running.answered(Reason::Executed, 2).await;
    assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some("bad-key"), &b"o-1"[..]));
    running.stop().await.expect("stopped");
    queues.clean().await;
}

#[tokio::test]
async fn lst_2_a_message_whose_headers_leave_no_room_for_those_of_a_letter_has_one_without_them() {
    let queues = TestQueues::new().await;
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let runs = Arc::new(AtomicUsize::new(0));
    // Headers must fit into one frame of 128 KiB, so a header of 131,000 bytes leaves little space.
    let mut headers = FieldTable::default();
    headers.insert("trace".into(), AMQPValue::LongString("a".repeat(131_000).into()));
    queues.send(b"paid", BasicProperties::default().with_headers(headers)).await;
    let running = Running::counting(queues.listener().build().expect("built"), &engine, &runs);
    let dead = queues.take(&queues.dead()).await;
    assert_eq!((dead.why.as_deref(), &dead.body[..]), (Some("no-key"), &b"paid"[..]));
    assert_eq!(dead.omitted.as_deref(), Some("headers"));
    running.stop().await.expect("stopped");
    queues.clean().await;
}
