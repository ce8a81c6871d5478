// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: a filter on a memory store, requests, and responses with their whole
//! bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::handler::Handler;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use retryproof_core::{IdempotencyConfig, IdempotencyEngine};
use retryproof_http::axum::{EndpointFuture, HasFilter, LastArgument, run_endpoint};
use retryproof_http::{IdempotencyFilter, Policy};
use retryproof_memory::MemoryStore;
use tower::ServiceExt as _;

/// A policy with three different values: a ttl of 1 h, a lease of 5 s and a wait timeout of 2 s.
pub(crate) const STD: Policy = Policy::new("std")
    .with_ttl(Duration::from_secs(3600))
    .with_lease(Duration::from_secs(5))
    .with_wait_timeout(Duration::from_secs(2));

/// Creates a filter on a fresh memory store, with settings changed by `with`.
pub(crate) fn filter_with(with: impl FnOnce(&mut IdempotencyConfig)) -> IdempotencyFilter {
    let mut config = IdempotencyConfig::default();
    with(&mut config);
    let engine = IdempotencyEngine::builder(MemoryStore::new())
        .config(config)
        .build()
        .expect("valid settings");
    IdempotencyFilter::builder(engine).callers_share_keys().build().expect("valid settings")
}

pub(crate) fn filter() -> IdempotencyFilter {
    filter_with(|_| {})
}

/// Counts the runs of a handler.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub(crate) fn run(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Creates the request `POST path` with a key.
pub(crate) fn post(path: &str, key: &str, body: impl Into<Body>) -> Request<Body> {
    request(Method::POST, path, &[("idempotency-key", key)], body)
}

pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body.into()).expect("a well-formed request")
}

/// A response, with its whole body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn of<B>(response: Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the body comes whole");
        let trailers = body.trailers().cloned();
        Self { status: parts.status, headers: parts.headers, body: body.to_bytes(), trailers }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a readable header"))
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Returns the `code` of a problem.
    pub(crate) fn code(&self) -> &str {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self:?}");
        let (_, rest) = self.text().split_once("\"code\":\"").expect("a problem has a code");
        rest.split('"').next().unwrap_or_default()
    }
}

/// Sends one request through the router.
pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    let Ok(response) = app.clone().oneshot(request).await;
    Answer::of(response).await
}

/// Mounts a closure as the attribute's expansion mounts a function:
/// `on_post(Annotated(&POLICY, handler))`.
#[derive(Clone)]
pub(crate) struct Annotated<F>(pub(crate) &'static Policy, pub(crate) F);

impl<S, M, A1, F, Fut, R> Handler<(M, A1), S> for Annotated<F>
where
    S: HasFilter + Send + Sync + 'static,
    A1: LastArgument<S, M>,
    F: FnOnce(A1) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoResponse + 'static,
{
    type Future = EndpointFuture;

    fn call(self, request: axum::extract::Request, state: S) -> EndpointFuture {
        run_endpoint::<S, M, (), A1, _, _, _>(self.0, request, state, |(), a1| (self.1)(a1))
    }
}

impl<S, M, A1, A2, F, Fut, R> Handler<(M, A1, A2), S> for Annotated<F>
where
    S: HasFilter + Send + Sync + 'static,
    A1: FromRequestParts<S> + Send + 'static,
    A2: LastArgument<S, M>,
    F: FnOnce(A1, A2) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoResponse + 'static,
{
    type Future = EndpointFuture;

    fn call(self, request: axum::extract::Request, state: S) -> EndpointFuture {
        run_endpoint::<S, M, (A1,), A2, _, _, _>(self.0, request, state, |(a1,), a2| {
            (self.1)(a1, a2)
        })
    }
}
