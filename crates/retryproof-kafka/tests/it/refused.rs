// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings with which a listener does not start.

use rdkafka::config::ClientConfig;
use retryproof_core::ErrorKind;
use retryproof_kafka::{KafkaListener, KafkaListenerBuilder};

fn client() -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("group.id", "invoices").set("sasl.password", "secret");
    client
}

fn refused(builder: KafkaListenerBuilder) -> (ErrorKind, String) {
    let said = format!("{builder:?}");
    assert!(!said.contains("secret"), "{said}");
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
        let (kind, said) = refused(builder);
        assert_eq!(kind, ErrorKind::Config);
        assert!(said.contains(why), "{said}");
    }
    let scope =
        KafkaListener::builder(client(), &["orders"], "").key_header("id").dead_letters("dead");
    assert_eq!(refused(scope).0, ErrorKind::Invalid);
}

#[test]
fn lst_2_a_listener_outside_of_a_runtime_is_refused_and_no_panic() {
    let builder =
        KafkaListener::builder(client(), &["orders"], "x").key_header("id").dead_letters("dead");
    let (kind, said) = refused(builder);
    assert_eq!(kind, ErrorKind::Config);
    assert!(said.contains("inside a tokio runtime"), "{said}");
}

#[tokio::test]
async fn id_4_a_setting_that_is_refused_is_named_without_its_value() {
    let mut client = client();
    client.set("security.protocol", "hunter2");
    let builder =
        KafkaListener::builder(client, &["orders"], "x").key_header("id").dead_letters("dead");
    let (kind, said) = refused(builder);
    assert_eq!(kind, ErrorKind::Config);
    assert!(said.contains("setting = security.protocol") && !said.contains("hunter2"), "{said}");
}
