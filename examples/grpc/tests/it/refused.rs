// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each refusal has the gRPC status that the docs of `retryproof::http::grpc` list for it.

use std::time::Duration;

use grpc_payments::proto::{CHARGE, ChargeRequest, Receipt};
use retryproof::{MemoryStore, SharedStore};
use retryproof_testkit::{FaultStore, Faults, Outage};
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::world::{
    NO_WAIT, POLICY, Refusal, Scripted, charge, client, filter, filter_over, in_time, refusal,
    serve,
};

#[tokio::test]
async fn http_10_in_flight_is_aborted_with_retry_information() {
    let service = Scripted::new();
    let address = serve(&filter(), NO_WAIT, &service).await;
    let mut first = client(address).await;
    let running = tokio::spawn(async move { first.charge("k", &charge("wait", 1)).await });
    service.begun(1).await;
    let mut second = client(address).await;
    let status = in_time(second.charge("k", &charge("wait", 1))).await.expect_err("in flight");
    assert_eq!(status.code(), Code::Aborted);
    let Refusal { reason, retryable, seconds } = refusal(&status);
    assert_eq!((&reason[..], retryable), ("IN_FLIGHT", true));
    assert!(seconds.is_some_and(|seconds| (1..=30).contains(&seconds)), "{seconds:?}");
    service.go_on();
    in_time(running).await.expect("no panic").expect("OK");
    in_time(second.charge("k", &charge("wait", 1))).await.expect("a replay");
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn fp_1_http_11_another_message_under_the_same_key_is_an_invalid_argument() {
    let service = Scripted::new();
    let mut client = client(serve(&filter(), POLICY, &service).await).await;
    in_time(client.charge("k", &charge("alice", 1))).await.expect("OK");
    let status =
        in_time(client.charge("k", &charge("alice", 2))).await.expect_err("another message");
    assert_eq!(status.code(), Code::InvalidArgument);
    let expected =
        Refusal { reason: "FINGERPRINT_MISMATCH".into(), retryable: false, seconds: None };
    assert_eq!(refusal(&status), expected);
    assert!(!format!("{status:?}").contains("alice"), "{status:?}");
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn http_2_http_3_a_call_without_a_well_formed_key_is_an_invalid_argument() {
    let service = Scripted::new();
    let address = serve(&filter(), POLICY, &service).await;
    for (key, reason) in [
        (None, "KEY_MISSING"),
        (Some("a b"), "KEY_INVALID"),
        (Some(&"x".repeat(256)[..]), "KEY_INVALID"),
    ] {
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("a URL");
        let mut grpc = Grpc::new(in_time(channel.connect()).await.expect("the server listens"));
        let mut request = Request::new(charge("alice", 1));
        if let Some(key) = key {
            request.metadata_mut().insert("idempotency-key", key.parse().expect("ASCII"));
        }
        grpc.ready().await.expect("connected");
        let codec = ProstCodec::<ChargeRequest, Receipt>::default();
        let call = grpc.unary(request, CHARGE.parse().expect("a path"), codec);
        let status = in_time(call).await.expect_err("no key");
        assert_eq!(
            (status.code(), refusal(&status).reason),
            (Code::InvalidArgument, reason.to_owned())
        );
    }
    assert_eq!(service.runs(), 0);
}

#[tokio::test]
async fn http_14_a_store_that_is_away_is_unavailable_and_nothing_runs() {
    let service = Scripted::new();
    let faults = Faults::none();
    let store = SharedStore::new(FaultStore::new(MemoryStore::new(), faults.clone()));
    let filter =
        filter_over(store, |config| config.default_wait_timeout = Duration::from_millis(100));
    let mut client = client(serve(&filter, NO_WAIT, &service).await).await;
    faults.begin_outage(Outage::Refuse);
    let status =
        in_time(client.charge("k", &charge("alice", 1))).await.expect_err("the store is away");
    assert_eq!(status.code(), Code::Unavailable);
    let Refusal { reason, retryable, seconds } = refusal(&status);
    assert_eq!((&reason[..], retryable), ("STORE_UNAVAILABLE", true));
    assert!(seconds.is_some_and(|seconds| (1..=5).contains(&seconds)), "{seconds:?}");
    assert_eq!(service.runs(), 0);
    faults.end_outage();
    // The client retries by itself, and succeeds as soon as the circuit breaker lets calls through
    // to the store again.
    in_time(client.charge_surely("k", &charge("alice", 1))).await.expect("OK");
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn http_14_a_server_that_shuts_down_is_unavailable_and_still_replays() {
    let service = Scripted::new();
    let filter = filter();
    let mut client = client(serve(&filter, POLICY, &service).await).await;
    in_time(client.charge("k", &charge("alice", 1))).await.expect("OK");
    assert_eq!(filter.shutdown(Duration::from_secs(60)).await, 0);
    let status = in_time(client.charge("new", &charge("alice", 1))).await.expect_err("closing");
    assert_eq!((status.code(), &refusal(&status).reason[..]), (Code::Unavailable, "SHUTTING_DOWN"));
    in_time(client.charge("k", &charge("alice", 1))).await.expect("a replay");
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn http_4_a_message_over_the_limit_exhausts_a_resource() {
    let service = Scripted::new();
    let filter =
        filter_over(SharedStore::new(MemoryStore::new()), |config| config.web.max_body_bytes = 64);
    let mut client = client(serve(&filter, POLICY, &service).await).await;
    let status =
        in_time(client.charge("k", &charge(&"x".repeat(100), 1))).await.expect_err("too large");
    assert_eq!(
        (status.code(), &refusal(&status).reason[..]),
        (Code::ResourceExhausted, "BODY_TOO_LARGE")
    );
    in_time(client.charge("k", &charge("x", 1))).await.expect("the key is free");
    assert_eq!(service.runs(), 1);
}
