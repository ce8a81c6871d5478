// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The HTTP filter of retryproof: `Idempotency-Key` for [tower](https://docs.rs/tower) and
//! [axum](https://docs.rs/axum), on HTTP/1.1 and HTTP/2. Use it through the facade crate
//! `retryproof`, where `retryproof_http::…` of the examples is `retryproof::http::…` and
//! `retryproof_core::…` is `retryproof::…`.
//!
//! The first request with a key runs the handler, once, whatever happens to its client; its answer
//! is recorded before the first byte of it goes out; every retry gets that answer again, marked
//! `Idempotent-Replayed: true`.
//!
//! ```sh
//! cargo add retryproof --features axum
//! cargo add axum@0.8
//! ```
//!
//! It stands on axum 0.8 and tower 0.5; its gRPC form is tested with tonic 0.14. In a program,
//! `retryproof_http` of the examples is `retryproof::http`, and `retryproof_core` is `retryproof`.
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::post};
//! use retryproof_core::{IdempotencyEngine, MemoryStore};
//! use retryproof_http::{IdempotencyFilter, Policy};
//!
//! async fn refund(order: String) -> String {
//!     format!("refunded {order}")
//! }
//!
//! let engine = IdempotencyEngine::new(MemoryStore::new());
//! let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
//! let app: Router = Router::new().route("/refunds", post(refund).route_layer(filter.guard(Policy::new("refunds"))));
//! # }
//! # Ok::<(), retryproof_core::Error>(())
//! ```
//! In axum the attribute `#[idempotent(http)]` says the same in the handler's own place, and then
//! the handler cannot be mounted without its guard. Behind the attribute stands
//! `axum::run_endpoint`.
//!
//! # What a request gets
//!
//! | the request, and the record of its key | answer |
//! |---|---|
//! | has no key | 400 `key-missing`; where keys are optional (`web.required = false`): the handler, untouched |
//! | has no well-formed key | 400 `key-invalid` |
//! | has no caller that the filter's hook finds | 401 `caller-missing` with the filter's challenge, else 403 |
//! | has a body over `web.max-body-bytes` | 413 `body-too-large`, by its declared length before a byte is read |
//! | is the first | the handler runs; its answer is stored and sent |
//! | repeats one that is done | the stored answer, `Idempotent-Replayed: true`, `Cache-Control: no-store` |
//! | repeats the key, with another method, path, query or body | 422 `fingerprint-mismatch` |
//! | repeats one that runs | waits for it, then as above; past the wait 409 `in-flight` with `Retry-After` |
//! | repeats one whose answer was not kept | 409 `result-not-replayable`, with `original-status` and `location` |
//! | meets a store that is away or full, a full or closing service | 503 with `Retry-After`; what is done is still replayed while the store answers |
//! | meets a record that cannot be read, or another store error | 500, and nothing runs |
//!
//! Answers of the filter's own are RFC 9457 problems; [`Code`] lists them. They never repeat the
//! key.
//!
//! A layer guards every method but GET, HEAD, OPTIONS and TRACE, unless [`Policy::methods`] names
//! others, and lets pass what the router matched no route for, unless [`Policy::with_unmatched`]
//! says otherwise (HTTP-1). An annotated handler guards all that it gets.
//!
//! # What becomes of the handler's answer
//!
//! | the handler | its record | its client |
//! |---|---|---|
//! | returns, with any status, an axum `Err` included | stored for the ttl | gets the answer |
//! | behind a layer, is a router that answers 405 | gone; the next request runs | gets the answer |
//! | returns an answer marked [`Release`]: surely nothing happened | gone; the next request runs | gets the answer |
//! | returns an answer marked [`Hold`]: nobody knows what happened | taken until the lease runs out; the next run is a takeover | gets the answer |
//! | panics, or its service fails | gone; the next request runs | sees the panic or the error, as without the guard |
//! | returns an answer marked [`Stream`]: done, and its body is endless or slow | "done, not replayable" | gets the body as it comes |
//! | answers with a body that does not end within `web.collect-timeout` | "done, not replayable" | gets what was collected, then the rest as it comes |
//! | answers with an event stream, an upgrade, or more than `web.max-response-bytes` | "done, not replayable" | gets the answer whole |
//! | answers with a body that breaks off | "done, not replayable" | 500 `response-failed` |
//! | returns, and the store fails to record it | taken until the lease runs out | by policy: the answer (a response extension, [`Recorded`](retryproof_core::Recorded), tells), or 500 `completion-failed` |
//! | returns after its lease was lost to another run | the other run's | gets the other run's answer |
//!
//! An error type states its own fate through [`Fate`]; nothing turns an error into [`Release`] by
//! itself. For answers without a mark a filter may have a [hook](FilterBuilder::fate). A mark is
//! taken off when it is read: an outer guarded call that returns the answer does not see it.
//!
//! A handler whose effect happens *while* its body streams is recorded as done before it is: do the
//! work first, then answer. The handler runs on a task of its own once its lease is granted and it
//! first waits, so task-locals of the connection are not there; the current tracing span is, and so
//! are the request's extensions.
//!
//! # Layer order
//!
//! Outermost to innermost: trace and request id, panic catcher, CORS, timeout, compression, request
//! decompression, authentication, rate limit, **guard**, concurrency limit, handler.
//! `Router::layer` puts later calls outside, and an annotated handler is innermost, so the right
//! order is the default one.
//!
//! | layer | outside: right | inside: wrong |
//! |---|---|---|
//! | timeout | 408, the action completes, the retry replays | 408 stored for the ttl |
//! | panic catcher | 500, record released | 500 stored and replayed |
//! | compression | each replay is negotiated anew | gzip replayed to a client that cannot read it |
//! | CORS, request id | computed per request | another origin's values replayed |
//! | body limit | 413, unstored; axum's `DefaultBodyLimit` holds where it is smaller than `web.max-body-bytes` | 413 stored |
//! | authentication | refuses before the key is touched, and supplies the caller | 401 stored |
//! | request decompression | fingerprint and limit on plain bytes | retries compressed differently are 422 |
//! | concurrency limit | does not see work whose client left | bounds the work itself: this one belongs inside, by a `Router::layer` of its own (or set `max-running`) |
//!
//! In a `ServiceBuilder` the guard asks what is inside for a place before it looks at the request,
//! as every service of tower does, and keeps it while the body comes and while a duplicate waits
//! for the holder: duplicates of one key could fill a limit directly inside, and then other keys
//! and replays queue behind them. There use `max-running`, or a wait of zero. A `Router` takes the
//! place within the call, after the grant.
//!
//! **Extractors.** Behind the *layer* they are part of the handler: their rejections are answers,
//! and are stored. Authenticate outside. At an *annotated* handler all arguments but the body are
//! extracted before the key is looked up, on every call, and any rejection is unstored: an
//! extractor that authenticates stands before a replay too.
//!
//! # Who is asking
//!
//! Two tenants that choose the same key must not see each other's answers, so a filter is not built
//! without a word on it: [`FilterBuilder::caller`] folds the tenant into every key,
//! [`FilterBuilder::callers_share_keys`] says that the application sees to it. A request whose
//! caller the hook does not find is refused: 401 `caller-missing` with the
//! [challenge](FilterBuilder::challenge) of the filter, or 403 without one.
//!
//! # Shutting down
//!
//! A server's graceful shutdown waits for connections, not for handlers whose client went away.
//! Call [`IdempotencyFilter::shutdown`] after it.
//!
//! # Without axum
//!
//! Any tower stack will do. The request body has to be one that can carry buffered bytes
//! ([`FromReplay`]); a service on hyper's own body wraps it first, and names its scope, for there
//! is no router to ask:
//!
//! ```
//! use std::convert::Infallible;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use retryproof_core::{IdempotencyEngine, MemoryStore};
//! use retryproof_http::{GuardedBody, IdempotencyFilter, Policy};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let engine = IdempotencyEngine::new(MemoryStore::new());
//! let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
//! let service = service_fn(|_: Request<GuardedBody<Full<Bytes>>>| async {
//!     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("charged"))))
//! });
//! let guarded = filter.guard(Policy::new("charges")).layer(service)
//!     .map_request(|request: Request<Full<Bytes>>| request.map(GuardedBody::inner));
//! for replayed in [None, Some("true")] {
//!     let request = Request::post("/charge").header("idempotency-key", "order-17").body(Full::default())?;
//!     let Ok(response) = guarded.clone().oneshot(request).await;
//!     let mark = response.headers().get("idempotent-replayed");
//!     assert_eq!(mark.map(|mark| mark.as_bytes()), replayed.map(str::as_bytes));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Features
//!
//! `axum`: the module `axum` (annotated handlers, extractors for key and lease), the default scope
//! from the matched route, [`AnswerFate`] as a part of response tuples.
//!
//! `grpc`: the module `grpc` (unary calls of tonic and others behind the guard, refusals as gRPC
//! statuses).

#[doc(hidden)]
pub mod adapter;
#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod call;
mod catch;
mod duplicate;
mod end;
mod fate;
mod filter;
#[cfg(feature = "grpc")]
pub mod grpc;
mod guard;
mod head;
mod header_map;
mod policy;
mod prepare;
mod protocol;
mod record;
mod response;
mod run;
mod then;
mod tower;
mod transaction;

pub use body::{FromReplay, GuardedBody, ReplayBody};
pub use fate::AnswerFate::{self, Hold, Release, Stream};
pub use fate::Fate;
pub use filter::{
    Caller, CallerConfigured, CallerSet, CallersShareKeys, FilterBuilder, IdempotencyFilter,
    IntoCaller, NoCaller,
};
pub use policy::{Methods, Policy};
pub use protocol::fingerprint::{FIRST_CUSTOM_ALGORITHM, FingerprintRequest, RequestParts};
pub use protocol::problem::{Code, Problem};
pub use protocol::stored::{Corrupt, StoredResponse};
pub use tower::{IdempotencyLayer, IdempotencyService, ResponseFuture};
pub use transaction::{GuardedTx, OpenTx, TxError};

/// Whoever shares them between threads finds out here, not in a user's program.
const _: () = {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<IdempotencyFilter>();
    shared::<IdempotencyLayer>();
    shared::<IdempotencyService<()>>();
    shared::<Policy>();
    shared::<StoredResponse>();
};
