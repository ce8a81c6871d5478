// SPDX-License-Identifier: MIT OR Apache-2.0
//! The column "HTTP" of the front page's table, checked with an annotated endpoint.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use retryproof::http::{AnswerFate, IdempotencyFilter, axum::IntoResponse, axum::Response};
use retryproof::{IdempotencyEngine, MemoryStore, idempotent};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::ServiceExt;

/// The body decides how the handler ends.
#[idempotent(http, scope = "promises", lease = "PT30S", wait_timeout = "PT10S")]
async fn pay(Json(order): Json<Value>) -> Response {
    sleep(Duration::from_secs(order["takes"].as_u64().unwrap_or_default())).await;
    let answer = (StatusCode::CREATED, Json(json!({ "charged": order["amount"] })));
    match order["ends"].as_str() {
        None => answer.into_response(),
        Some("declined") => StatusCode::PAYMENT_REQUIRED.into_response(),
        Some("released") => (AnswerFate::Release, answer).into_response(),
        Some("streamed") => {
            ([("content-type", "text/event-stream")], "data: 1\n\n").into_response()
        }
        Some(other) => panic!("{other}"),
    }
}

fn app(store: MemoryStore) -> Router {
    let filter = IdempotencyFilter::builder(IdempotencyEngine::new(store))
        .callers_share_keys()
        .build()
        .unwrap();
    Router::new().route("/payments", post(pay)).with_state(filter)
}

/// Sends an order. Returns the answer's status, whether it is a replay, whether it has
/// `Retry-After`, and its body.
async fn send(app: &Router, order: Value) -> (u16, bool, bool, String) {
    let request = Request::post("/payments")
        .header("idempotency-key", "order-17")
        .header("content-type", "application/json")
        .body(Body::from(order.to_string()));
    let answer = app.clone().oneshot(request.unwrap()).await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let replayed = headers.get("idempotent-replayed").is_some_and(|value| value == "true");
    (
        status,
        replayed,
        headers.contains_key("retry-after"),
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test(start_paused = true)]
async fn http_8_fp_1_first_then_replayed_then_another_request() {
    let app = app(MemoryStore::new());
    let first = send(&app, json!({ "amount": 4_200 })).await;
    assert_eq!((first.0, first.1, first.3.as_str()), (201, false, r#"{"charged":4200}"#));
    let retry = send(&app, json!({ "amount": 4_200 })).await;
    assert_eq!((retry.0, retry.1, retry.3), (201, true, first.3));
    let other = send(&app, json!({ "amount": 99 })).await;
    assert_eq!((other.0, other.1), (422, false));
}

#[tokio::test(start_paused = true)]
async fn http_10_a_duplicate_outlasts_the_first_or_gets_409() {
    for (takes, status, replayed) in [(9, 201, true), (11, 409, false)] {
        let app = app(MemoryStore::new());
        let order = json!({ "takes": takes });
        let first = tokio::spawn({
            let (app, order) = (app.clone(), order.clone());
            async move { send(&app, order).await }
        });
        tokio::task::yield_now().await;
        let duplicate = send(&app, order).await;
        assert_eq!((duplicate.0, duplicate.1, duplicate.2), (status, replayed, !replayed));
        assert_eq!(first.await.unwrap().0, 201);
    }
}

#[tokio::test(start_paused = true)]
async fn http_7_a_returned_402_is_stored_and_a_released_answer_is_not() {
    for (ends, status, replayed) in [("declined", 402, true), ("released", 201, false)] {
        let app = app(MemoryStore::new());
        for again in [false, true] {
            let answer = send(&app, json!({ "ends": ends })).await;
            assert_eq!((answer.0, answer.1), (status, again && replayed), "{ends}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_13_a_result_that_was_not_kept_is_409() {
    let app = app(MemoryStore::new());
    assert_eq!(
        send(&app, json!({ "ends": "streamed" })).await.3,
        "data: 1\n\n",
        "its client gets all of it"
    );
    let again = send(&app, json!({ "ends": "streamed" })).await;
    assert_eq!((again.0, again.2), (409, false));
    assert!(again.3.contains("result-not-replayable"), "{}", again.3);
}

#[tokio::test(start_paused = true)]
async fn http_14_a_store_that_takes_no_key_is_503() {
    let refused = send(&app(MemoryStore::builder().max_records(0).build()), json!({})).await;
    assert_eq!((refused.0, refused.1, refused.2), (503, false, true));
}
