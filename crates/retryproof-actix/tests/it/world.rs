// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filters, requests and answers for the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::header::HeaderName;
use actix_web::test::TestRequest;
use actix_web::{Error, test};
use bytes::Bytes;
use retryproof_core::IdempotencyEngine;
use retryproof_http::{IdempotencyFilter, Policy};
use retryproof_memory::MemoryStore;

pub(crate) const POLICY: Policy = Policy::new("orders");

pub(crate) fn engine() -> IdempotencyEngine {
    IdempotencyEngine::new(MemoryStore::new())
}

pub(crate) fn filter() -> IdempotencyFilter {
    filter_on(&engine())
}

pub(crate) fn filter_on(engine: &IdempotencyEngine) -> IdempotencyFilter {
    IdempotencyFilter::builder(engine.clone()).callers_share_keys().build().unwrap()
}

/// Counts the runs of a handler.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// Counts a run, and returns the number of runs so far.
    pub(crate) fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A response, with its whole body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The fields, sorted by name; the lines of one field keep their order.
    pub(crate) lines: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn new<'a>(
        status: u16,
        lines: impl Iterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
    ) -> Self {
        let mut lines: Vec<_> =
            lines.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
        lines.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self { status, lines, body }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let line = self.lines.iter().find(|(own, _)| own == name);
        line.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.field("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem");
        problem["code"].as_str().expect("a code").to_owned()
    }

    /// Removes the fields that a framework adds, and the marks of a replay.
    pub(crate) fn repeated(mut self) -> Self {
        let own = ["idempotent-replayed", "cache-control", "date", "content-length"];
        self.lines.retain(|(name, _)| !own.contains(&name.as_str()));
        self
    }
}

/// Creates a request with a key.
pub(crate) fn post(path: &str, key: &str) -> TestRequest {
    TestRequest::post().uri(path).insert_header((HeaderName::from_static("idempotency-key"), key))
}

pub(crate) async fn send<S, R, B>(app: &S, request: R) -> Answer
where
    S: Service<R, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    read(test::call_service(app, request).await).await
}

pub(crate) async fn read<B: MessageBody>(response: ServiceResponse<B>) -> Answer {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = test::read_body(response).await;
    Answer::new(status, headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())), body)
}

/// An app with one guarded resource.
macro_rules! app {
    ($filter:expr, $handler:expr) => {
        actix_web::test::init_service(
            actix_web::App::new().service(
                actix_web::web::resource("/orders")
                    .wrap(retryproof_actix::Idempotency::new($filter, $crate::world::POLICY))
                    .to($handler),
            ),
        )
        .await
    };
}
pub(crate) use app;
