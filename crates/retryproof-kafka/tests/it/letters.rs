// SPDX-License-Identifier: MIT OR Apache-2.0
//! LST-2 on librdkafka's mock cluster: dead letters that are too large, and a missing
//! dead-letter topic.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdkafka::Message;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use retryproof_core::ErrorKind;
use retryproof_core::listener::{Poison, Verdict};

use crate::support::{DEAD, Mock, counting, header, start};

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
    assert_eq!(header(&letters[0], "retryproof-body"), None);
}

#[tokio::test]
async fn lst_2_a_dead_letter_that_is_too_large_for_its_topic_goes_there_without_its_body() {
    let mock = Mock::new(1);
    mock.publish(0, "o-1", "not json").await;
    // As a topic with a lower limit would answer.
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[TOO_LARGE]);
    let running = start(mock.listener().build().expect("built"), |_| async {
        Err::<Verdict, _>(Poison::Unreadable)
    });
    mock.until_committed(0, 1).await;
    mock.publish(0, "o-2", "not json either").await;
    mock.until_committed(0, 2).await;
    running.stop().await;
    let letters = mock.letters(2).await;
    let said = |letter: usize, name| header(&letters[letter], name);
    assert_eq!(
        (letters[0].payload().unwrap_or_default(), letters[0].key()),
        (&b""[..], Some(&b"alice"[..]))
    );
    assert_eq!(said(0, "retryproof-body").as_deref(), Some("left out, 8 bytes"));
    assert_eq!(
        (said(0, "event-id").as_deref(), said(0, "retryproof-offset").as_deref()),
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
    let said = |name| header(&letters[0], name);
    assert_eq!((letters[0].key(), said("event-id")), (None, None));
    assert_eq!(
        (said("retryproof-topic").as_deref(), said("retryproof-offset").as_deref()),
        (Some("orders"), Some("0"))
    );
    assert_eq!(said("retryproof-why").as_deref(), Some("unreadable-message"));
}

#[tokio::test]
async fn lst_2_a_listener_without_a_topic_for_its_dead_letters_runs_nothing() {
    let mock = Mock::new(1);
    let runs = Arc::new(AtomicUsize::new(0));
    mock.publish(0, "o-1", "{}").await;
    let missing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    mock.cluster.topic_error(DEAD, missing).expect("missing");
    let ended =
        start(mock.listener().build().expect("built"), counting(&mock, &runs)).ended().await;
    let error = ended.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("topic = orders.dead"), "{error}");
    assert_eq!(runs.load(Ordering::SeqCst), 0);

    // The listener waits for a topic without a leader, but a stop does not.
    let away = RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE;
    mock.cluster.topic_error(DEAD, away).expect("away");
    start(mock.listener().build().expect("built"), counting(&mock, &runs)).stop().await;
    let running = start(mock.listener().build().expect("built"), counting(&mock, &runs));
    mock.cluster.topic_error(DEAD, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).expect("there");
    mock.until_committed(0, 1).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
