// SPDX-License-Identifier: MIT OR Apache-2.0
//! The full axum stack that the guide shows, end to end: each layer does its part around the guard.

mod app;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, request};
use retryproof::{IdempotencyEngine, MemoryStore};
use tower::ServiceExt as _;

const PAGE: &str = include_str!("../../src/guide/http.md");

/// `4200`, compressed with gzip.
const GZIP: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x33\x31\x32\x30\x00\x00\x4b\x87\x7d\x80\x04\x00\x00\x00";

fn stack() -> Router {
    app::app(IdempotencyEngine::new(MemoryStore::new())).unwrap()
}

fn ask(key: &str) -> request::Builder {
    Request::post("/payments")
        .header("idempotency-key", key)
        .header("authorization", "Bearer ann")
        .header("origin", "https://shop.example")
}

struct Answer {
    status: StatusCode,
    fields: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|value| value.to_str().unwrap())
    }
}

async fn send(app: &Router, ask: request::Builder, body: impl Into<Body>) -> Answer {
    let Ok(response) = app.clone().oneshot(ask.body(body.into()).unwrap()).await;
    let (head, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
    Answer { status: head.status, fields: head.headers, body }
}

#[test]
fn the_guide_shows_the_stack_that_is_tested() {
    let app = include_str!("stack/app.rs").split_once("\n\n").unwrap().1;
    assert!(
        PAGE.contains(&app.replace("pub(crate) fn app", "fn app")),
        "the guide shows another stack"
    );
}

#[tokio::test]
async fn the_stack_replays_and_each_retry_gets_fields_of_its_own() {
    let app = stack();
    for replayed in [None, Some("true")] {
        let answer = send(&app, ask("k"), "4200").await;
        assert_eq!((answer.status, &*answer.body), (StatusCode::CREATED, &b"paid 4200"[..]));
        assert_eq!(answer.field("idempotent-replayed"), replayed);
        assert_eq!(answer.field("access-control-allow-origin"), Some("https://shop.example"));
        let exposed = answer.field("access-control-expose-headers").unwrap();
        assert!(
            exposed.contains("idempotent-replayed") && exposed.contains("retry-after"),
            "{exposed}"
        );
    }
    // The same request with a compressed body is a duplicate.
    let compressed = send(&app, ask("k").header("content-encoding", "gzip"), GZIP).await;
    assert_eq!(compressed.field("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn the_stack_lets_a_page_ask_first_and_read_a_500() {
    let app = stack();
    let preflight = Request::options("/payments")
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "idempotency-key");
    let answer = send(&app, preflight, "").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.field("access-control-allow-headers").unwrap().contains("idempotency-key"));
    let broken = send(&app, ask("p"), "panic").await;
    assert_eq!(broken.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(broken.field("access-control-allow-origin"), Some("https://shop.example"));
    // The key is free: the panic released it.
    assert_eq!(send(&app, ask("p"), "1").await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn the_stack_tells_tenants_apart_and_refuses_strangers_before_the_key() {
    let app = stack();
    assert_eq!(send(&app, ask("k"), "1").await.status, StatusCode::CREATED);
    let stranger = Request::post("/payments").header("idempotency-key", "k");
    assert_eq!(send(&app, stranger, "1").await.status, StatusCode::UNAUTHORIZED);
    let bob = Request::post("/payments")
        .header("idempotency-key", "k")
        .header("authorization", "Bearer bob");
    let answer = send(&app, bob, "1").await;
    assert_eq!((answer.status, answer.field("idempotent-replayed")), (StatusCode::CREATED, None));
}
