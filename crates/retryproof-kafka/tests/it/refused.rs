// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings with which a listener does not start.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaRespErr;
use retryproof_core::ErrorKind;
use retryproof_kafka::{KafkaListener, KafkaListenerBuilder};

use crate::support::{DEAD, Mock, counting, start};

fn client() -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("group.id", "invoices").set("sasl.password", "secret");
    client
}

fn refused(builder: KafkaListenerBuilder) -> (ErrorKind, String) {
    let text = format!("{builder:?}");
    assert!(!text.contains("secret"), "{text}");
    let error = builder.build().expect_err("refused");
    (error.kind(), format!("{error} {error:?}"))
}

#[tokio::test]
async fn lst_2_a_listener_has_to_know_the_key_and_a_place_for_dead_letters() {
    let bare = || KafkaListener::builder(client(), &["orders"], "orders.paid");
    let keyed = || bare().key_header("event-id");
    for (builder, why) in [
        (bare().dead_letters("dead"), "no key is set"),
        (keyed(), "no dead-letter topic is set"),
        (keyed().dead_letters("orders"), "use another topic"),
        (
            KafkaListener::builder(client(), &[], "orders.paid")
                .key_header("id")
                .dead_letters("dead"),
            "list of topics is empty",
        ),
        (
            KafkaListener::builder(ClientConfig::new(), &["orders"], "x")
                .key_header("id")
                .dead_letters("dead"),
            "no `group.id`",
        ),
    ] {
        let (kind, text) = refused(builder);
        assert_eq!(kind, ErrorKind::Config);
        assert!(text.contains(why), "{text}");
    }
    let scope =
        KafkaListener::builder(client(), &["orders"], "").key_header("id").dead_letters("dead");
    assert_eq!(refused(scope).0, ErrorKind::Invalid);
    let lease = keyed().dead_letters("dead").lease(Duration::ZERO);
    assert_eq!(refused(lease).0, ErrorKind::Invalid);
}

#[tokio::test]
async fn lst_2_a_pattern_that_could_match_the_dead_letter_topic_is_refused() {
    let builder = KafkaListener::builder(client(), &["payments", "^orders"], "orders.paid")
        .key_header("event-id")
        .dead_letters(DEAD);
    let (kind, text) = refused(builder);
    assert_eq!(kind, ErrorKind::Config);
    assert!(text.contains("pattern") && text.contains("topic = ^orders"), "{text}");
}

#[test]
fn lst_2_a_listener_outside_of_a_runtime_is_refused_and_no_panic() {
    let builder =
        KafkaListener::builder(client(), &["orders"], "x").key_header("id").dead_letters("dead");
    let (kind, text) = refused(builder);
    assert_eq!(kind, ErrorKind::Config);
    assert!(text.contains("inside a tokio runtime"), "{text}");
}

#[tokio::test]
async fn id_4_a_setting_that_is_refused_is_named_without_its_value() {
    let mut client = client();
    client.set("security.protocol", "hunter2");
    let builder =
        KafkaListener::builder(client, &["orders"], "x").key_header("id").dead_letters("dead");
    let (kind, text) = refused(builder);
    assert_eq!(kind, ErrorKind::Config);
    assert!(text.contains("setting = security.protocol") && !text.contains("hunter2"), "{text}");
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

    // While the dead-letter topic has no leader, the listener waits. It can be stopped even then.
    let away = RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE;
    mock.cluster.topic_error(DEAD, away).expect("away");
    start(mock.listener().build().expect("built"), counting(&mock, &runs)).stop().await;
    let running = start(mock.listener().build().expect("built"), counting(&mock, &runs));
    mock.cluster.topic_error(DEAD, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).expect("there");
    mock.until_committed(0, 1).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
