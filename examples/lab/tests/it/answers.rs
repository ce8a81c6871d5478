// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers: what is stored, what is not, and how it is replayed (HTTP-7 to HTTP-9, HTTP-13, ANN-6).

use axum::http::StatusCode;
use serde_json::json;

use crate::client::{Answer, Ask, h2, runs};
use crate::server::Lab;

#[tokio::test]
async fn http_7_http_8_whatever_is_returned_is_stored_and_replayed() {
    let lab = Lab::start().await;
    for status in [200, 201, 204, 302, 400, 409, 422, 500, 503] {
        let script = json!({
            "status": status, "body_base64": "AP9i", "headers": [
                ["x-one", "a"], ["x-two", "b"], ["x-one", "base64:6Q=="], ["location", "/here"],
                ["idempotent-replayed", "forged"], ["connection", "x-hop"], ["x-hop", "1"]
            ]
        });
        let script = if status == 204 { json!({ "status": 204, "body": "" }) } else { script };
        let ask = Ask::post("/lab/std").key(format!("s-{status}")).script(&script);
        let first = ask.send(lab.address).await;
        let again = ask.send(lab.address).await;
        assert_eq!(first.status.as_u16(), status);
        assert!(!first.headers.contains_key("idempotent-replayed"), "forged on a first answer");
        assert!(again.is_replay());
        if status != 204 {
            assert_eq!(&first.body[..], b"\0\xffb");
            let lines: Vec<_> =
                again.headers.get_all("x-one").iter().map(|v| v.as_bytes().to_vec()).collect();
            assert_eq!(lines, [b"a".to_vec(), vec![0xe9]]);
            assert!(
                !again.headers.contains_key("x-hop"),
                "a field that Connection names is not stored (HTTP-9)"
            );
        }
        assert_eq!(first.status, again.status);
        assert_eq!(first.body, again.body);
    }
}

#[tokio::test]
async fn http_7_release_hold_and_panic_are_not_stored() {
    let lab = Lab::start().await;
    let ask = |fail: &str| {
        let script = json!({ "tag": fail, "fail": fail, "status": 502 });
        Ask::post("/lab/now").key(fail).script(&script)
    };
    for _ in 0..2 {
        let released = ask("release").send(lab.address).await;
        assert_eq!((released.status.as_u16(), released.is_replay()), (502, false));
        let panicked = ask("panic").send(lab.address).await;
        assert_eq!(panicked.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!panicked.headers.contains_key("idempotent-replayed"));
    }
    assert_eq!(runs(lab.address, "release").await.0, 2);
    assert_eq!(runs(lab.address, "panic").await.0, 2);
    let held = ask("hold").send(lab.address).await;
    assert_eq!(held.status.as_u16(), 502);
    let meanwhile = ask("hold").send(lab.address).await;
    assert_eq!(meanwhile.code(), "in-flight", "the lease runs out");
    assert_eq!(runs(lab.address, "hold").await.0, 1);
}

#[tokio::test]
async fn http_7_a_held_key_is_taken_over_when_its_lease_is_over() {
    let lab = Lab::start().await;
    let hold = Ask::post("/lab/short")
        .key("k")
        .script(&json!({ "tag": "h", "fail": "hold", "status": 504 }));
    assert_eq!(hold.send(lab.address).await.status.as_u16(), 504);
    let retry = Ask::post("/lab/short").key("k").script(&json!({ "tag": "h" }));
    let answer = retry.send(lab.address).await;
    assert_eq!((answer.status, answer.is_replay()), (StatusCode::OK, false));
    assert_eq!(runs(lab.address, "h").await, (2, 2, 0));
}

fn not_replayable(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(answer.code(), "result-not-replayable");
    assert_eq!(answer.json()["retryable"], false);
    assert!(!answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn http_13_streams_large_and_broken_bodies_are_tombstones() {
    let lab = Lab::start().await;
    let large = 9 << 20;
    for (key, script, status) in [
        ("sse", json!({ "tag": "t", "sse": true }), 200),
        (
            "large",
            json!({ "tag": "t", "pad": large, "status": 201, "headers": [["location", "/made/1"]] }),
            201,
        ),
        ("chunked", json!({ "tag": "t", "pad": large, "chunked": true }), 200),
        ("broken", json!({ "tag": "t", "fail": "body_error" }), 500),
    ] {
        let ask = Ask::post("/lab/std").key(key).script(&script);
        let first = ask.send(lab.address).await;
        assert_eq!(first.status.as_u16(), status, "{key}");
        match key {
            "sse" => assert!(first.body.ends_with(b"data: six\n\n")),
            "broken" => assert_eq!(first.code(), "response-failed"),
            _ => assert_eq!(first.body.len(), large, "all of it reaches its client"),
        }
        let again = ask.send(lab.address).await;
        not_replayable(&again);
        if key == "large" {
            assert_eq!(again.json()["original-status"], 201);
            assert_eq!(again.json()["location"], "/made/1");
        }
        let other = ask.body("another").send(lab.address).await;
        assert_eq!(other.code(), "fingerprint-mismatch", "judged first");
    }
    assert_eq!(runs(lab.address, "t").await.0, 4);
}

#[tokio::test]
async fn http_9_trailers_come_back_over_both_protocols() {
    let lab = Lab::start().await;
    let script = json!({ "trailers": [["x-sum", "42"]], "chunked": true, "body": "with trailers" });
    let ask = Ask::post("/lab/std").key("k").script(&script).header("te", "trailers");
    let first = ask.send(lab.address).await;
    assert_eq!(first.trailers.as_ref().expect("trailers")["x-sum"], "42");
    let again = ask.send(lab.address).await;
    assert!(again.is_replay());
    assert_eq!(again.headers["trailer"], "x-sum", "made anew");
    assert_eq!(again.repeated(), first.repeated());
    let connection = h2(lab.address).await;
    let over_h2 = ask.send_h2(lab.address, &connection).await;
    assert!(over_h2.is_replay());
    assert_eq!(over_h2.trailers.expect("trailers")["x-sum"], "42");
}

#[tokio::test]
async fn ann_6_a_refusing_extractor_stands_before_a_replay_and_is_never_stored() {
    let lab = Lab::start().await;
    let script = json!({ "tag": "auth", "auth": true });
    let stranger = Ask::post("/lab/std").key("k").script(&script);
    let user = stranger.clone().header("x-user", "alice");
    assert_eq!(stranger.send(lab.address).await.status, StatusCode::UNAUTHORIZED);
    let first = user.send(lab.address).await;
    assert_eq!(
        (first.status, first.is_replay()),
        (StatusCode::OK, false),
        "the 401 was not stored"
    );
    let refused = stranger.send(lab.address).await;
    assert_eq!((refused.status, refused.is_replay()), (StatusCode::UNAUTHORIZED, false));
    assert!(user.send(lab.address).await.is_replay());
    assert_eq!(runs(lab.address, "auth").await, (1, 1, 0));
    // Inside the layer, an extractor is part of the handler, so its 401 is an answer like any other
    // and is stored.
    let behind = Ask::post("/lab/layered").key("k").script(&script);
    assert_eq!(behind.send(lab.address).await.status, StatusCode::UNAUTHORIZED);
    assert!(behind.send(lab.address).await.is_replay());
}

#[tokio::test]
async fn http_17_http_1_and_h2c_share_records() {
    let lab = Lab::start().await;
    let ask = Ask::post("/lab/std").key("k").script(&json!({ "tag": "two" }));
    let first = ask.send(lab.address).await;
    let connection = h2(lab.address).await;
    let again = ask.send_h2(lab.address, &connection).await;
    assert!(again.is_replay());
    assert_eq!(again.repeated(), first.repeated());
}
