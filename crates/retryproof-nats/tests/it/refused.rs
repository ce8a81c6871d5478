// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings with which a listener does not start.

use std::future::pending;
use std::time::Duration;

use async_nats::jetstream::consumer::AckPolicy;
use async_nats::jetstream::consumer::pull::Config;
use retryproof_core::ErrorKind;
use retryproof_core::listener::Verdict;
use retryproof_nats::{NatsListener, NatsListenerBuilder};
use tokio::time::timeout;

use crate::support::{PATIENCE, TestStreams};

fn refused(builder: NatsListenerBuilder) -> (ErrorKind, String) {
    let error = builder.build().expect_err("refused");
    (error.kind(), error.to_string())
}

/// Returns the error of a listener whose settings the server refuses before the first message.
async fn refused_at_start(builder: NatsListenerBuilder) -> (ErrorKind, String) {
    let listener = builder.build().expect("built");
    let ended = listener.run(|_| async { Ok(Verdict::failed()) }, pending());
    let error = timeout(PATIENCE, ended).await.expect("in time").expect_err("refused");
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn lst_2_a_listener_without_a_place_for_dead_letters_is_refused() {
    let streams = TestStreams::new().await;
    let consumer = streams.consumer(Config::default()).await;
    let bare = || NatsListener::builder(streams.jetstream.clone(), consumer.clone(), "orders.paid");
    let (kind, why) = refused(bare());
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("no subject for dead letters is set"), "{why}");
    let (kind, why) =
        refused_at_start(bare().dead_letters(format!("no.stream.{}", streams.name))).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("no stream captures the dead-letter subject"), "{why}");
    let (kind, why) = refused_at_start(bare().dead_letters(format!("{}.dead", streams.name))).await;
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("use another stream"), "{why}");
    assert_eq!(refused_at_start(bare().dead_letters("not a subject")).await.0, ErrorKind::Config);
    streams.leave().await;
}

#[tokio::test]
async fn lst_2_a_consumer_that_cannot_be_answered_is_refused() {
    let streams = TestStreams::new().await;
    let config = Config { ack_policy: AckPolicy::None, ..Config::default() };
    let (kind, why) = refused(streams.listener(config).await);
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("one by one"), "{why}");
    streams.leave().await;
    let streams = TestStreams::new().await;
    let (kind, why) =
        refused(streams.listener(Config { headers_only: true, ..Config::default() }).await);
    assert_eq!(kind, ErrorKind::Config);
    assert!(why.contains("headers only"), "{why}");
    streams.leave().await;
}

#[tokio::test]
async fn id_3_a_scope_that_is_none_is_refused() {
    let streams = TestStreams::new().await;
    let consumer = streams.consumer(Config::default()).await;
    let builder =
        NatsListener::builder(streams.jetstream.clone(), consumer, "").dead_letters(streams.dead());
    assert_eq!(refused(builder).0, ErrorKind::Invalid);
    streams.leave().await;
}

#[tokio::test]
async fn ctx_2_durations_out_of_bounds_are_refused() {
    let streams = TestStreams::new().await;
    let builder = streams.listener(Config::default()).await.lease(Duration::ZERO);
    assert_eq!(refused(builder).0, ErrorKind::Invalid);
    streams.leave().await;
}
