// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2: messages that cannot be handled become complete dead letters, and only then leave their
//! stream.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::listener::{Poison, Reason, Verdict};
use retryproof_core::{ExecuteError, Outcome};
use retryproof_nats::Delivery;
use serde::Deserialize;

use crate::support::{TestStreams, counting, header, start, until};

#[derive(Deserialize)]
struct Order {
    number: u32,
}

#[tokio::test]
async fn lst_2_without_a_key_with_a_bad_one_or_unreadable_is_a_dead_letter_and_runs_nothing() {
    let streams = TestStreams::new().await;
    let mut wire = streams.wire().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (engine, counted) = (streams.engine.clone(), Arc::clone(&runs));
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let counters = listener.counters();
    streams.publish_with(HeaderMap::new(), "{\"number\":1}").await;
    streams.publish(&"k".repeat(513), "{\"number\":2}").await;
    streams.publish("   ", "{\"number\":3}").await;
    streams.publish("o-4", "{\"number\":").await;
    streams.publish("o-5", "{\"number\":5}").await;
    let running = start(listener, move |delivery: Delivery| {
        let (engine, counted) = (engine.clone(), Arc::clone(&counted));
        async move {
            let order: Order = delivery.json()?;
            let work = async || {
                counted.fetch_add(order.number as usize, Ordering::SeqCst);
                Ok::<(), Poison>(())
            };
            Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
        }
    });
    let mut letters = streams.until_letters(4).await;
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 5, "the readable one alone");
    letters.sort_by(|a, b| {
        header(&a.0, "retryproof-sequence").cmp(&header(&b.0, "retryproof-sequence"))
    });
    let found: Vec<_> = letters
        .iter()
        .map(|(headers, body)| (header(headers, "retryproof-reason").expect("why"), body.as_str()))
        .collect();
    let expected = [
        ("no-key", "{\"number\":1}"),
        ("bad-key", "{\"number\":2}"),
        ("bad-key", "{\"number\":3}"),
        ("unreadable-message", "{\"number\":"),
    ];
    assert_eq!(found, expected);
    assert_eq!(counters.read().dead_letters, 4);
    let mut answers: Vec<String> = Vec::new();
    for _ in 0..5 {
        answers.push(wire.answer().await);
    }
    answers.sort_unstable();
    assert_eq!(answers, ["+ACK", "+TERM", "+TERM", "+TERM", "+TERM"]);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_dead_letter_is_whole_and_its_headers_are_no_orders_to_the_server() {
    let streams = TestStreams::new().await;
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "the publisher's");
    headers.insert("Nats-Expected-Stream", streams.name.as_str());
    headers.append("Trace", "a");
    headers.append("Trace", "b");
    streams.publish_with(headers, "the body").await;
    let running = start(listener, |_| async {
        unreachable!("it has no key in the place that this listener reads")
    });
    let letters = streams.until_letters(1).await;
    streams.until_done().await;
    running.stop().await;
    let (headers, body) = &letters[0];
    assert_eq!(body, "the body");
    let of = |name| header(headers, name);
    assert_eq!(of("retryproof-reason"), Some("no-key"));
    assert_eq!(of("retryproof-stream"), Some(streams.name.as_str()));
    assert_eq!(of("retryproof-subject"), Some(streams.subject().as_str()));
    assert_eq!((of("retryproof-sequence"), of("retryproof-deliveries")), (Some("1"), Some("1")));
    assert_eq!(of("retryproof-consumer"), Some("invoices"));
    let id = of("Nats-Msg-Id").expect("an id");
    assert!(id.starts_with(&format!("{}:invoices:1:", streams.name)), "{id}");
    assert_eq!(of("retryproof-original-Nats-Msg-Id"), Some("the publisher's"));
    assert_eq!(of("retryproof-original-Nats-Expected-Stream"), Some(streams.name.as_str()));
    let traces: Vec<_> = headers.get_all("Trace").map(async_nats::HeaderValue::as_str).collect();
    assert_eq!(traces, ["a", "b"]);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_fp_1_another_body_under_a_known_key_is_refused_and_each_of_them_is_kept() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let listener = streams.listener(Config::default()).await.prefetch(1).build().expect("built");
    let counters = listener.counters();
    streams.publish("o-1", "100 euros").await;
    let running = start(listener, counting(&streams, &runs));
    streams.until_done().await;
    for body in ["900 euros", "800 euros", "100 euros"] {
        streams.publish("o-1", body).await;
    }
    let letters = streams.until_letters(2).await;
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let bodies: Vec<_> = letters.iter().map(|(_, body)| body.as_str()).collect();
    assert_eq!(bodies, ["900 euros", "800 euros"]);
    assert_eq!(counters.count_of(Reason::Mismatch), 2);
    assert_eq!((counters.count_of(Reason::Executed), counters.count_of(Reason::Replayed)), (1, 1));
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_queue_full_of_one_poison_message_is_emptied_and_the_good_ones_are_handled() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (engine, counted) = (streams.engine.clone(), Arc::clone(&runs));
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let counters = listener.counters();
    for n in 0..200 {
        streams.publish("the same", "not json").await;
        if n % 20 == 0 {
            streams.publish(&format!("o-{n}"), "{\"number\":1}").await;
        }
    }
    let running = start(listener, move |delivery: Delivery| {
        let (engine, counted) = (engine.clone(), Arc::clone(&counted));
        async move {
            let order: Order = delivery.json()?;
            let work = async || {
                counted.fetch_add(order.number as usize, Ordering::SeqCst);
                Ok::<(), Poison>(())
            };
            Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
        }
    });
    streams.until_done().await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 10);
    assert_eq!(streams.letters().await.len(), 200, "each of them once");
    assert_eq!(
        (counters.read().acks, counters.read().dead_letters, counters.read().nacks),
        (10, 200, 0)
    );
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_no_letter_no_end_the_message_stays_until_its_letter_is_taken() {
    for config in [Config::default(), Config { max_deliver: 1, ..Config::default() }] {
        let last = config.max_deliver == 1;
        let streams = TestStreams::new().await;
        let mut wire = streams.wire().await;
        let listener = streams.listener(config).await.build().expect("built");
        let counters = listener.counters();
        let looked = Arc::new(AtomicUsize::new(0));
        let looks = Arc::clone(&looked);
        let running = start(listener, move |_| {
            let first = looks.fetch_add(1, Ordering::SeqCst) == 0;
            let done = Ok::<_, ExecuteError<()>>(Outcome::Executed(()));
            async move { if first { Ok(Verdict::of(&done)) } else { Err(Poison::Unreadable) } }
        });
        // The listener looks for the dead-letter stream before it handles its first message.
        streams.publish("o-0", "{}").await;
        assert_eq!(wire.answer().await, "+ACK");
        streams.jetstream.delete_stream(streams.dead_stream()).await.expect("removed");
        streams.publish("o-1", "{}").await;
        if last {
            until("a look", || looked.load(Ordering::SeqCst) == 2).await;
        } else {
            assert!(wire.answer().await.starts_with("-NAK"));
        }
        assert_eq!(counters.read().dead_letters, 0);
        streams.restore_dead_stream().await;
        assert_eq!(streams.until_letters(1).await.len(), 1);
        streams.until_done().await;
        running.stop().await;
        assert_eq!(streams.letters().await.len(), 1);
        assert_eq!(counters.read().dead_letters, 1);
        streams.leave().await;
    }
}

#[tokio::test]
async fn lst_2_a_key_closure_that_panics_costs_its_message_and_not_the_listener() {
    let streams = TestStreams::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let builder = streams.listener(Config::default()).await.key(|message| {
        let key = header(message.headers.as_ref()?, "Event-Id")?;
        assert_ne!(key, "o-1", "planted");
        Some(key.to_owned())
    });
    let listener = builder.build().expect("built");
    let counters = listener.counters();
    for key in ["o-0", "o-1", "o-2"] {
        streams.publish(key, key).await;
    }
    let running = start(listener, counting(&streams, &runs));
    let letters = streams.until_letters(1).await;
    streams.until_done().await;
    running.stop().await;
    assert_eq!(
        (runs.load(Ordering::SeqCst), counters.read().acks, counters.read().dead_letters),
        (2, 2, 1)
    );
    assert_eq!(
        (header(&letters[0].0, "retryproof-reason"), letters[0].1.as_str()),
        (Some("bad-key"), "o-1")
    );
    streams.leave().await;
}

/// Two consumers read one stream, and share one stream of dead letters.
#[tokio::test]
async fn lst_2_each_consumer_has_a_dead_letter_of_its_own_of_one_message() {
    let streams = TestStreams::new().await;
    let first = streams.consumer(Config::default()).await;
    let config = Config { durable_name: Some("receipts".into()), ..Config::default() };
    let second = streams
        .jetstream
        .create_consumer_on_stream(config, streams.name.clone())
        .await
        .expect("made");
    streams.publish("o-1", "neither reads this").await;
    let mut running = Vec::new();
    for consumer in [first, second] {
        let listener = streams.builder(streams.jetstream.clone(), consumer).build().expect("built");
        running.push(start(listener, |_| async { Ok(Verdict::poison(Poison::Unreadable)) }));
    }
    let letters = streams.until_letters(2).await;
    for running in running {
        running.stop().await;
    }
    let mut of: Vec<_> =
        letters.iter().map(|(headers, _)| header(headers, "retryproof-consumer")).collect();
    of.sort_unstable();
    assert_eq!(of, [Some("invoices"), Some("receipts")]);
    streams.leave().await;
}

/// A stream that is created again numbers its messages from 1. Their dead letters must not count as
/// duplicates of those of the deleted stream.
#[tokio::test]
async fn lst_2_a_stream_made_anew_has_dead_letters_of_its_own() {
    let streams = TestStreams::new().await;
    for round in 1..=2 {
        let listener = streams.listener(Config::default()).await.build().expect("built");
        let running = start(listener, |_| async { Ok(Verdict::poison(Poison::Unreadable)) });
        streams.publish("o-1", "{}").await;
        streams.until_letters(round).await;
        running.stop().await;
        streams.recreate().await;
    }
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_message_too_large_for_a_letter_has_one_without_its_body_or_headers() {
    let streams = TestStreams::new().await;
    let most = streams.client.max_payload();
    let listener = streams.listener(Config::default()).await.build().expect("built");
    let headers = |large: usize| {
        let mut headers = HeaderMap::new();
        headers.insert("Trace", "a".repeat(large).as_str());
        headers
    };
    // Each message has the maximum size in total, the maximum size of its headers (64 KiB), or
    // both, so no header can be added.
    let framing = "NATS/1.0\r\nTrace: \r\n\r\n".len();
    let most_headers = usize::from(u16::MAX) - framing;
    streams.publish_with(headers(1), &"b".repeat(most - framing - 1)).await;
    streams.publish_with(headers(most_headers), "small").await;
    streams.publish_with(headers(most_headers), &"b".repeat(most - framing - most_headers)).await;
    let running = start(listener, |_| async { unreachable!("none has a key") });
    let mut letters = streams.until_letters(3).await;
    streams.until_done().await;
    running.stop().await;
    letters.sort_by_key(|letter| header(&letter.0, "retryproof-sequence").map(str::to_owned));
    let found = letters.iter().map(|(headers, body)| {
        let of = |name| header(headers, name);
        (of("retryproof-reason"), of("retryproof-omitted"), of("Trace"), body.as_str())
    });
    let why = Some("no-key");
    let expected = [
        (why, Some("body"), Some("a"), ""),
        (why, Some("headers"), None, "small"),
        (why, Some("body, headers"), None, ""),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_message_too_large_for_the_stream_of_the_letters_has_one_without_its_body() {
    let streams = TestStreams::new().await;
    let listener = streams.listener(Config::default()).await.build().expect("built");
    streams.limit_dead_stream(2_000).await;
    streams.publish("   ", &"b".repeat(3_000)).await;
    let running = start(listener, |_| async { unreachable!("it has no valid key") });
    let letters = streams.until_letters(1).await;
    streams.until_done().await;
    running.stop().await;
    let of = |name| header(&letters[0].0, name);
    assert_eq!((of("retryproof-omitted"), letters[0].1.as_str()), (Some("body"), ""));
    streams.leave().await;
}

/// A dead letter has a `Nats-Msg-Id` of its own. Moved back, it still has the key of its message.
#[tokio::test]
async fn lst_1_a_dead_letter_that_is_moved_back_has_its_old_key() {
    let streams = TestStreams::new().await;
    let builder = streams.listener(Config::default()).await.key_header("Nats-Msg-Id");
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let running =
        start(builder.max_deliveries(1).build().expect("built"), move |delivery: Delivery| {
            let key = delivery.key().expect("a key").expose().to_owned();
            seen.lock().expect("not poisoned").push(key);
            async { Err(Poison::Unreadable) }
        });
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "o-1");
    streams.publish_with(headers, "{}").await;
    for times in 2..=3 {
        let (letter, body) = streams.until_letters(times - 1).await.pop().expect("a letter");
        let originals = letter.get_all("retryproof-original-Nats-Msg-Id");
        let originals: Vec<_> = originals.map(async_nats::HeaderValue::as_str).collect();
        assert_eq!(originals, ["o-1"], "also in the letter of a letter");
        streams.publish_with(letter, &body).await;
        until("handled", || keys.lock().expect("not poisoned").len() == times).await;
    }
    streams.until_done().await;
    // A letter of a message without a key has none either.
    streams.publish_with(HeaderMap::new(), "{}").await;
    let (letter, body) = streams.until_letters(4).await.pop().expect("a letter");
    streams.publish_with(letter, &body).await;
    let (letter, _) = streams.until_letters(5).await.pop().expect("a letter");
    assert_eq!(header(&letter, "retryproof-reason"), Some("no-key"));
    running.stop().await;
    assert_eq!(*keys.lock().expect("not poisoned"), ["o-1"; 3]);
    streams.leave().await;
}
