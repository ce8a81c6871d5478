// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2 on librdkafka's mock cluster: messages that cannot be handled become complete dead letters
//! before the offset moves on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdkafka::Message;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use retryproof_core::listener::{Poison, Verdict};
use retryproof_kafka::Delivery;
use serde::Deserialize;

use crate::support::{Mock, TOPIC, header, start};

#[derive(Deserialize)]
struct Order {
    number: usize,
}

const TOO_LARGE: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;

#[tokio::test]
async fn lst_2_a_dead_letter_is_as_large_as_its_message() {
    let mock = Mock::new(1);
    mock.publish(0, "o-1", &"x".repeat(2_000_000)).await;
    let running = start(mock.listener().build().expect("built"), |_| async {
        Err::<Verdict, _>(Poison::Unreadable)
    });
    mock.until_committed(0, 1).await;
    running.stop().await;
    let letters = mock.letters(1).await;
    assert_eq!(letters[0].payload().map(<[u8]>::len), Some(2_000_000));
    assert_eq!(header(&letters[0], "retryproof-omitted"), None);
}

#[tokio::test]
async fn lst_2_a_dead_letter_that_is_too_large_for_its_topic_goes_there_without_its_body() {
    let mock = Mock::new(1);
    mock.publish(0, "o-1", "not json").await;
    // The broker refuses the first dead letter, as if its topic had a lower size limit.
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[TOO_LARGE]);
    let running = start(mock.listener().build().expect("built"), |_| async {
        Err::<Verdict, _>(Poison::Unreadable)
    });
    mock.until_committed(0, 1).await;
    mock.publish(0, "o-2", "not json either").await;
    mock.until_committed(0, 2).await;
    running.stop().await;
    let letters = mock.letters(2).await;
    let header_of = |letter: usize, name| header(&letters[letter], name);
    assert_eq!(
        (letters[0].payload().unwrap_or_default(), letters[0].key()),
        (&b""[..], Some(&b"alice"[..]))
    );
    assert_eq!(header_of(0, "retryproof-omitted").as_deref(), Some("body"));
    assert_eq!(
        (header_of(0, "event-id").as_deref(), header_of(0, "retryproof-offset").as_deref()),
        (Some("o-1"), Some("0"))
    );
    assert_eq!(letters[1].payload(), Some(&b"not json either"[..]), "the next one is whole");
}

#[tokio::test]
async fn lst_2_a_dead_letter_whose_headers_are_too_large_says_where_its_message_lies() {
    let mock = Mock::new(1);
    mock.publish(0, "o-1", "not json").await;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[TOO_LARGE; 2]);
    let running = start(mock.listener().build().expect("built"), |_| async {
        Err::<Verdict, _>(Poison::Unreadable)
    });
    mock.until_committed(0, 1).await;
    running.stop().await;
    let letters = mock.letters(1).await;
    let header_of = |name| header(&letters[0], name);
    assert_eq!((letters[0].key(), header_of("event-id")), (None, None));
    assert_eq!(
        (header_of("retryproof-topic").as_deref(), header_of("retryproof-offset").as_deref()),
        (Some("orders"), Some("0"))
    );
    assert_eq!(header_of("retryproof-omitted").as_deref(), Some("body, headers"));
    assert_eq!(header_of("retryproof-reason").as_deref(), Some("unreadable-message"));
}

#[tokio::test]
async fn lst_2_poison_and_mismatch_are_dead_letters_before_the_offset_moves_on() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    mock.publish_with(0, OwnedHeaders::new(), "{\"number\":1}").await;
    mock.publish(0, &"k".repeat(513), "{\"number\":2}").await;
    let bytes =
        OwnedHeaders::new().insert(Header { key: "event-id", value: Some(&[0xff_u8, 0xfe][..]) });
    mock.publish_with(0, bytes, "{\"number\":3}").await;
    mock.publish(0, "o-4", "{\"number\":").await;
    mock.publish(0, "o-5", "{\"number\":5}").await;
    mock.publish(0, "o-5", "{\"number\":6}").await;
    let listener = mock.listener().build().expect("built");
    let (counters, engine, counted) = (listener.counters(), mock.engine.clone(), Arc::clone(&runs));
    let running = start(listener, move |delivery: Delivery| {
        let (engine, counted) = (engine.clone(), Arc::clone(&counted));
        async move {
            let order: Order = delivery.json()?;
            let work = async || {
                counted.fetch_add(order.number, Ordering::SeqCst);
                Ok::<(), Poison>(())
            };
            Ok(Verdict::of(&engine.execute(delivery.context()?, work).await))
        }
    });
    mock.until_committed(0, 6).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 5, "the readable one alone");
    let letters = mock.letters(5).await;
    let found: Vec<_> =
        letters.iter().map(|letter| header(letter, "retryproof-reason").expect("why")).collect();
    assert_eq!(
        found,
        ["no-key", "bad-key", "bad-key", "unreadable-message", "fingerprint-mismatch"]
    );
    let (last, of) = (&letters[4], |name| header(&letters[4], name));
    assert_eq!((last.payload(), last.key()), (Some(&b"{\"number\":6}"[..]), Some(&b"alice"[..])));
    assert_eq!(of("event-id").as_deref(), Some("o-5"));
    assert_eq!(of("retryproof-topic").as_deref(), Some(TOPIC));
    assert_eq!(
        (of("retryproof-partition"), of("retryproof-offset")),
        (Some("0".into()), Some("5".into()))
    );
    assert_eq!((mock.dead_letter_count().await, counters.read().dead_letters), (5, 5));
}

#[tokio::test]
async fn lst_2_a_dead_letter_that_is_not_taken_holds_its_message() {
    let mock = Mock::new(1);
    mock.publish(0, "o-1", "not json").await;
    mock.publish(0, "o-2", "not json").await;
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[refusal; 3]);
    let listener = mock.listener().build().expect("built");
    let counters = listener.counters();
    let running = start(listener, |_| async { Err::<Verdict, _>(Poison::Unreadable) });
    mock.until_committed(0, 2).await;
    running.stop().await;
    assert_eq!((mock.dead_letter_count().await, counters.read().dead_letters), (2, 2), "each once");
}
