// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings with which a listener does not start.

use async_nats::jetstream::consumer::AckPolicy;
use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::ErrorKind;
use retryproof_nats::{NatsListener, NatsListenerBuilder};

use crate::support::Place;

async fn refused(builder: NatsListenerBuilder) -> (ErrorKind, String) {
    let error = builder.build().await.expect_err("refused");
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn lst_2_a_listener_without_a_place_for_dead_letters_is_refused() {
    let place = Place::new().await;
    let consumer = place.consumer(Config::default()).await;
    let bare = || NatsListener::builder(place.jetstream.clone(), consumer.clone(), "orders.paid");
    let (kind, why) = refused(bare()).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("no subject for dead letters is set"), "{why}");
    let (kind, why) = refused(bare().dead_letters(format!("nobody.{}", place.name))).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("no stream takes the subject"), "{why}");
    let (kind, why) = refused(bare().dead_letters(format!("{}.dead", place.name))).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("use another stream"), "{why}");
    assert_eq!(refused(bare().dead_letters("not a subject")).await.0, ErrorKind::Config);
    place.leave().await;
}

#[tokio::test]
async fn lst_2_a_consumer_that_cannot_be_answered_is_refused() {
    let place = Place::new().await;
    let config = Config { ack_policy: AckPolicy::None, ..Config::default() };
    let (kind, why) = refused(place.listener(config).await).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("one by one"), "{why}");
    place.leave().await;
    let place = Place::new().await;
    let (kind, why) =
        refused(place.listener(Config { headers_only: true, ..Config::default() }).await).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("headers only"), "{why}");
    place.leave().await;
}

#[tokio::test]
async fn id_3_a_scope_that_is_none_is_refused() {
    let place = Place::new().await;
    let consumer = place.consumer(Config::default()).await;
    let builder =
        NatsListener::builder(place.jetstream.clone(), consumer, "").dead_letters(place.dead());
    assert_eq!(refused(builder).await.0, ErrorKind::Invalid);
    place.leave().await;
}
