// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that run once, and what every retry gets.

use grpc_payments::client::is_replay;
use grpc_payments::proto::Receipt;
use retryproof::http::Policy;
use tonic::Code;

use crate::world::{POLICY, Scripted, charge, client, filter, in_time, serve};

#[tokio::test]
async fn http_8_http_17_a_retried_call_gets_the_same_message_metadata_and_status() {
    let service = Scripted::new();
    let address = serve(&filter(), POLICY, &service).await;
    let request = charge("alice", 42);
    let mut answers = Vec::new();
    // Send the call twice on one connection, and twice on a new connection.
    for _ in 0..2 {
        let mut client = client(address).await;
        for _ in 0..2 {
            answers.push(in_time(client.charge("k", &request)).await.expect("OK"));
        }
    }
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(is_replay(answer), at > 0);
        assert_eq!(*answer.get_ref(), Receipt { number: 1, account: "alice".into(), cents: 42 });
        let metadata = answer.metadata();
        assert_eq!(metadata.get("x-run").expect("metadata"), "1");
        let raw = metadata.get_bin("x-raw-bin").expect("binary metadata");
        assert_eq!(raw.to_bytes().expect("base64"), &[0, 1, 0xfe][..]);
        // tonic merges the trailers into the response's metadata.
        assert_eq!(metadata.get("grpc-status").expect("trailers"), "0");
    }
    let other = in_time(client(address).await.charge("l", &request)).await.expect("OK");
    assert_eq!(other.get_ref().number, 2);
    assert_eq!(service.runs(), 2);
}

#[tokio::test]
async fn http_7_a_status_that_the_service_returns_is_stored_with_its_details() {
    let service = Scripted::new();
    let mut client = client(serve(&filter(), POLICY, &service).await).await;
    for is_replay in [false, true] {
        let status = in_time(client.charge("k", &charge("alice", 0))).await.expect_err("refused");
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "nothing to pay: 0 \u{20ac}")
        );
        assert_eq!(status.details(), [0xff, 0, 1]);
        assert_eq!(status.metadata().get("x-run").expect("metadata"), "1");
        assert_eq!(status.metadata().contains_key("idempotent-replayed"), is_replay);
    }
    assert_eq!(service.runs(), 1);
}

#[tokio::test]
async fn acq_3_concurrent_duplicates_wait_for_the_one_that_runs() {
    let service = Scripted::new();
    let address = serve(&filter(), POLICY, &service).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        calls.spawn(async move {
            client(address)
                .await
                .charge("k", &charge("wait", 1))
                .await
                .map(|answer| is_replay(&answer))
        });
    }
    service.begun(1).await;
    service.go_on();
    let answers = in_time(calls.join_all()).await;
    let replays = answers.into_iter().filter(|answer| *answer.as_ref().expect("OK")).count();
    assert_eq!((replays, service.runs()), (19, 1));
}

#[tokio::test]
async fn http_12_a_client_that_goes_away_loses_no_work_and_its_retry_gets_the_answer() {
    let service = Scripted::new();
    let address = serve(&filter(), POLICY, &service).await;
    let mut first = client(address).await;
    let gone = tokio::spawn(async move { first.charge("k", &charge("wait", 1)).await });
    service.begun(1).await;
    // Aborting the task resets the stream and closes the connection.
    gone.abort();
    assert!(in_time(gone).await.expect_err("it went away").is_cancelled());
    let mut second = client(address).await;
    let retry = tokio::spawn(async move { second.charge("k", &charge("wait", 1)).await });
    service.go_on();
    let answer = in_time(retry).await.expect("no panic").expect("OK");
    assert_eq!((answer.get_ref().number, is_replay(&answer)), (1, true));
    assert_eq!((service.runs(), service.ended()), (1, 1));
}

#[tokio::test]
async fn http_16_the_same_key_for_two_methods_is_two_calls_unless_they_share_a_scope() {
    let service = Scripted::new();
    let mut own = client(serve(&filter(), POLICY, &service).await).await;
    in_time(own.charge("k", &charge("a", 1))).await.expect("OK");
    let mut history = in_time(own.history("k", "a")).await.expect("OK").into_inner();
    assert_eq!(in_time(history.message()).await.expect("OK").expect("a receipt").number, 2);

    let mut shared = client(serve(&filter(), Policy::new("payments"), &service).await).await;
    in_time(shared.charge("k", &charge("a", 1))).await.expect("OK");
    let status = in_time(shared.history("k", "a")).await.expect_err("another request");
    assert_eq!(status.code(), Code::InvalidArgument);
}
