// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each guarded request has one span, in which its handler runs (RUN-10).

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{any, post as on_post};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use retryproof_core::IdempotencyEngine;
use retryproof_http::{IdempotencyFilter, Policy};
use retryproof_memory::MemoryStore;
use tokio::time::sleep;
use tower::{Layer as _, ServiceExt as _};
use tracing::Instrument as _;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::world::{Annotated, STD, filter, post, request, send};

static POLICY: Policy = STD;

/// The part of the log that shows a span opened by a handler.
const IN_ACTION: &str = "}:idempotency.action:charge: ";

#[derive(Clone, Default)]
struct Closed(Arc<Mutex<Vec<u8>>>);

impl io::Write for Closed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Closed {
    /// Collects the log lines that the tracing filter `filter`, such as `info`, lets through.
    fn listen(filter: &str) -> (Self, tracing::subscriber::DefaultGuard) {
        let closed = Self::default();
        let writer = closed.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (closed, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the lines for spans that closed since the last call.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        text.lines().filter(|line| line.contains(" close ")).map(str::to_owned).collect()
    }
}

/// Does the work of a handler, and opens the span `charge`.
async fn charge() -> &'static str {
    // The sleep suspends the handler, which then continues in a separate task.
    sleep(Duration::from_millis(1)).await;
    drop(tracing::info_span!("charge"));
    "paid"
}

fn app() -> Router {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let filter = IdempotencyFilter::builder(engine)
        .caller(|_: &Parts| "canary-caller".to_owned())
        .build()
        .unwrap();
    Router::new().route("/pay", any(charge).layer(filter.guard(Policy::new("spans"))))
}

#[tokio::test]
async fn run_10_each_guarded_request_has_one_span_with_its_outcome() {
    let (closed, _guard) = Closed::listen("info");
    let app = app();
    let pay = |body: &'static str| {
        request(Method::POST, "/pay", &[("idempotency-key", "canary-17")], body)
    };
    for (body, outcome) in [("17", "executed"), ("17", "replayed"), ("18", "mismatch")] {
        send(&app, pay(body)).await;
        let lines = closed.take();
        let (charges, calls): (Vec<&String>, Vec<&String>) =
            lines.iter().partition(|line| line.contains("}:charge"));
        let [call] = &calls[..] else { panic!("one span for each request: {lines:#?}") };
        assert!(call.contains("idempotency.call{scope=spans "), "{call}");
        assert!(call.contains(&format!("outcome=\"{outcome}\"")), "{call}");
        assert!(!call.contains("canary"), "ID-4: {call}");
        // The handler runs inside the span, even after it has moved to a separate task.
        assert_eq!(charges.len(), usize::from(outcome == "executed"), "{lines:#?}");
    }
}

#[tokio::test]
async fn run_10_a_handler_runs_in_the_span_of_an_action() {
    let (closed, _guard) = Closed::listen("debug");
    let filter = filter();
    let expect_inside = |front_end: &str| {
        let lines = closed.take();
        let inside = |line: &String| line.contains("std#") && line.contains(IN_ACTION);
        let charges: Vec<_> = lines.iter().filter(|line| line.contains(":charge: ")).collect();
        assert!(matches!(charges[..], [line] if inside(line)), "{front_end}: {lines:#?}");
        let actions = lines.iter().filter(|line| line.contains(":idempotency.action: "));
        assert_eq!(actions.count(), 1, "{front_end}: {lines:#?}");
    };
    let layered = Router::new().route("/pay", on_post(charge).layer(filter.guard(STD)));
    assert_eq!(send(&layered, post("/pay", "layered", "")).await.text(), "paid");
    expect_inside("axum, layered");
    let annotated = on_post(Annotated(&POLICY, |_: String| charge()));
    let annotated = Router::new().route("/pay", annotated).with_state(filter.clone());
    assert_eq!(send(&annotated, post("/pay", "annotated", "")).await.text(), "paid");
    expect_inside("axum, annotated");
    let service = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::from(charge().await)))
    });
    let answered = filter.guard(STD).layer(service).oneshot(post("/pay", "tower", "")).await;
    assert_eq!(answered.unwrap().status(), StatusCode::OK);
    expect_inside("tower");
    #[cfg(feature = "grpc")]
    {
        let method = tower::service_fn(|_| async {
            let response = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.body(Body::from(charge().await)).unwrap())
        });
        let answered = filter.grpc(STD).layer(method).oneshot(post("/pay", "grpc", "")).await;
        assert_eq!(answered.unwrap().status(), StatusCode::OK);
        expect_inside("gRPC");
    }
}

#[tokio::test]
async fn run_10_a_request_that_waits_does_so_inside_its_span() {
    let (closed, _guard) = Closed::listen("debug");
    let app = Router::new().route("/pay", on_post(charge).layer(filter().guard(STD)));
    let (first, second) =
        tokio::join!(send(&app, post("/pay", "k", "")), send(&app, post("/pay", "k", "")));
    assert!(first.is_replay() != second.is_replay(), "one of them waits");
    let lines = closed.take();
    let waits: Vec<_> = lines.iter().filter(|line| line.contains("idempotency.wait: ")).collect();
    let inside = |line: &String| line.contains("idempotency.call{") && line.contains("std#");
    assert!(matches!(waits[..], [line] if inside(line)), "{lines:#?}");
}

#[tokio::test]
async fn run_10_where_the_spans_of_calls_are_off_a_handler_stays_in_the_span_of_its_request() {
    let (closed, _guard) = Closed::listen("info,retryproof::call=off");
    let app = Router::new().route("/pay", on_post(charge).layer(filter().guard(STD)));
    send(&app, post("/pay", "k", "")).instrument(tracing::info_span!("request")).await;
    let lines = closed.take();
    let is_inside = lines.iter().any(|line| line.contains("request:charge: "));
    assert!(is_inside, "also in its task: {lines:#?}");
}
