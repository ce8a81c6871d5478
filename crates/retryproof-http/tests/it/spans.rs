// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each guarded request has one span, in which its handler runs (RUN-10).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use http::Method;
use http::request::Parts;
use parking_lot::Mutex;
use retryproof_core::IdempotencyEngine;
use retryproof_http::{IdempotencyFilter, Policy};
use retryproof_memory::MemoryStore;
use tokio::time::sleep;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::world::{request, send};

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
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let closed = Self::default();
        let writer = closed.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (closed, tracing::subscriber::set_default(subscriber))
    }

    /// The lines for spans that closed since the last call.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        text.lines().filter(|line| line.contains(" close ")).map(str::to_owned).collect()
    }
}

fn app() -> Router {
    let engine = IdempotencyEngine::new(MemoryStore::new());
    let filter = IdempotencyFilter::builder(engine)
        .caller(|_: &Parts| "canary-caller".to_owned())
        .build()
        .unwrap();
    let handler = || async {
        // The handler has to wait, so it continues in a task.
        sleep(Duration::from_millis(1)).await;
        drop(tracing::info_span!("charge"));
        "paid"
    };
    Router::new().route("/pay", any(handler).layer(filter.guard(Policy::new("spans"))))
}

#[tokio::test]
async fn run_10_each_guarded_request_has_one_span_with_its_outcome() {
    let (closed, _guard) = Closed::listen();
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
        // The handler runs inside the span, also in its task.
        assert_eq!(charges.len(), usize::from(outcome == "executed"), "{lines:#?}");
    }
}
