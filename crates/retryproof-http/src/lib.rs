// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The HTTP filter of retryproof: `Idempotency-Key` for [tower](https://docs.rs/tower) and
//! [axum](https://docs.rs/axum), on HTTP/1.1 and HTTP/2. Use it through the facade crate
//! `retryproof`: in the examples, replace `retryproof_http::…` with `retryproof::http::…`, and
//! `retryproof_core::…` with `retryproof::…`.
//!
//! The first request with a key runs the handler once, even if the client disconnects. The response
//! is recorded before its first byte is sent. Every retry gets that response again, marked
//! `Idempotent-Replayed: true`.
//!
//! ```sh
//! cargo add retryproof --features axum
//! cargo add axum@0.8
//! ```
//!
//! The filter works with axum 0.8 and tower 0.5. Its gRPC layer is tested with tonic 0.14.
//!
//! # Which front end
//!
//! | to guard | use |
//! |---|---|
//! | your own axum handler | the attribute `#[idempotent(http)]`: the handler then cannot be mounted unguarded |
//! | routes of a `Router`, or any tower service | the [layer](IdempotencyFilter::guard) |
//! | a gRPC service | the [gRPC layer](#grpc), with the feature `grpc` |
//! | an actix-web handler | the crate `retryproof-actix`, with the same filter |
//!
//! ## A layer
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::post};
//! use retryproof_core::IdempotencyEngine;
//! use retryproof_memory::MemoryStore;
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
//!
//! ## An annotated handler
//!
//! The router's state holds the filter, and the attribute sets the policy:
//!
//! ```ignore
//! #[retryproof::idempotent(http, scope = "refunds")]
//! async fn refund(order: String) -> String {
//!     format!("refunded {order}")
//! }
//!
//! let app: Router = Router::new().route("/refunds", post(refund)).with_state(filter);
//! ```
//!
//! ## gRPC
//!
//! ```ignore
//! let guard = filter.grpc(Policy::unnamed());
//! Server::builder().add_service(guard.named_layer(PaymentsServer::new(payments)));
//! ```
//!
//! ## actix-web
//!
//! ```ignore
//! web::resource("/refunds")
//!     .wrap(retryproof::actix::Idempotency::new(&filter, Policy::new("refunds")))
//!     .route(web::post().to(refund))
//! ```
//!
//! # What a request gets
//!
//! | the request | response |
//! |---|---|
//! | has no key | 400 `key-missing`; with optional keys (`web.required = false`) the handler runs unguarded |
//! | has a malformed key | 400 `key-invalid` |
//! | has no caller that the filter's hook can find | 401 `caller-missing` if the filter has a challenge, else 403 |
//! | has a body over `web.max-body-bytes` | 413 `body-too-large`; if the declared length is over the limit, none of the body is read |
//! | is the first with its key | the handler runs; its response is stored and sent |
//! | repeats a completed request | the stored response, `Idempotent-Replayed: true`, `Cache-Control: no-store` |
//! | repeats the key with a different method, path, query or body | 422 `fingerprint-mismatch`, or 409 if so configured |
//! | repeats a running request | the response of the running request once it completes; 409 `in-flight` with `Retry-After` if the wait times out |
//! | repeats a request whose response was not kept | 409 `result-not-replayable`, with `original-status` and `location` |
//! | finds the store unavailable or full, or the service at its limit or shutting down | 503 with `Retry-After`; completed requests are still replayed while the store works |
//! | finds a record that cannot be read, or hits another store error | 500, and nothing runs |
//!
//! The filter's own responses are RFC 9457 problems; [`Code`] lists them. A problem never contains
//! the key. Every response that leaves the guard carries the extension [`Served`], by which an
//! outer layer can count responses.
//!
//! A layer guards every method except GET, HEAD, OPTIONS and TRACE, unless [`Policy::methods`]
//! names others. Requests that match no route pass unguarded, unless [`Policy::with_unmatched`] is
//! set (HTTP-1). An annotated handler guards every request.
//!
//! # What happens to the handler's response
//!
//! | the handler | its record | its client |
//! |---|---|---|
//! | returns a response without a mark, with any status, including an axum `Err` | stored for the ttl, unless a hook, the policy or the configuration releases this status | gets the response |
//! | is a router behind a layer, and returns 405 | deleted; the next request runs | gets the response |
//! | returns a response marked [`Release`], because it is certain that nothing happened | deleted; the next request runs | gets the response |
//! | returns a response marked [`Hold`], because it is not known what happened | held until the lease runs out; the next run is a takeover | gets the response |
//! | panics, or its service fails | deleted; the next request runs | gets the outer layers' response to the panic or error, as without the guard |
//! | returns a response marked [`Stream`], because the work is done and the body is endless or slow | "done, not replayable" | gets the body as it is produced |
//! | returns a body that does not end within `web.collect-timeout` | "done, not replayable" | gets what was read, then the rest as it is produced |
//! | returns an event stream, an upgrade, or more than `web.max-response-bytes` | "done, not replayable" | gets the whole response |
//! | returns a body that breaks off, or ends before its own `size_hint` | "done, not replayable" | 500 `response-failed` |
//! | returns, but the store cannot record its response | held until the lease runs out | gets the response with the extension [`Recorded`](retryproof_core::Recorded), or 500 `completion-failed`; the completion failure policy decides |
//! | returns after its lease was lost to another run | the other run's record | gets what a duplicate would get, usually the other run's response |
//!
//! An error type states its fate through [`Fate`]. No error type except [`TxError`] becomes
//! [`Release`] automatically. A filter can have a [hook](FilterBuilder::fate) for responses without
//! a mark. The guard removes each mark that it reads, so the mark does not affect an outer guarded
//! call that returns the same response.
//!
//! If a handler does its work *while* its body streams, the guard records the work as done before
//! it happens. Do the work first, then respond. A handler that has to wait continues in its own
//! task. That task has the current tracing span and the request's extensions, but not the
//! connection's task-locals.
//!
//! # Layer order
//!
//! From outermost to innermost: trace and request id, panic catcher, CORS, timeout, compression,
//! request decompression, authentication, rate limit, **guard**, concurrency limit, handler. Each
//! `Router::layer` call wraps the layers added before it, so add the guard before the layers that
//! belong outside it. The guard of an annotated handler is always innermost.
//!
//! | layer | outside: right | inside: wrong |
//! |---|---|---|
//! | timeout | the timeout's response; the work completes, and the retry gets the work's response | the timeout's response is stored for the ttl |
//! | panic catcher | 500, record released | 500 stored and replayed |
//! | compression | each replay is negotiated anew | gzip replayed to a client that cannot read it |
//! | CORS, request id | computed per request | another origin's values replayed |
//! | body limit | 413, not stored; axum's `DefaultBodyLimit` applies if it is smaller than `web.max-body-bytes` | 413 stored |
//! | authentication | refuses before the key is used, and supplies the caller | 401 stored |
//! | request decompression | fingerprint and limit apply to the plain bytes | a retry that is compressed differently gets 422 |
//! | concurrency limit | does not count work whose client disconnected | limits the work itself, so this layer does belong inside, in its own `Router::layer` call; or set `max-running` |
//!
//! Like every tower service, the guard reserves a slot in the inner service before it reads the
//! request. In a `ServiceBuilder`, the guard keeps the slot while the body arrives and while a
//! duplicate waits for the holder. If a concurrency limit is directly inside the guard, duplicates
//! with the same key can take all slots of the limit. Requests with other keys, even replays, then
//! wait for a slot. To prevent this, use `max-running` instead, or a wait timeout of zero. A
//! `Router` reserves the slot within the call, after the grant.
//!
//! **Extractors.** Behind the *layer*, extractors are part of the handler, so their rejections are
//! stored as responses, unless the handler is annotated. Authenticate outside the layer. For an
//! *annotated* handler, all arguments except the body are extracted on every call, before the key
//! is looked up, and no rejection is stored. An extractor that authenticates therefore also runs
//! before a replay.
//!
//! # Callers
//!
//! Two tenants that choose the same key must not see each other's responses. So `build()` does not
//! compile until one of two methods is called. [`FilterBuilder::caller`] sets a hook that finds the
//! tenant of a request, and the filter adds the tenant to the key. With
//! [`FilterBuilder::callers_share_keys`], the application must ensure that keys differ. If the hook
//! finds no caller, the request is refused with `caller-missing`. The status is 401 if the filter has
//! a [challenge](FilterBuilder::challenge), and 403 otherwise.
//!
//! # Shutting down
//!
//! A server's graceful shutdown waits for connections, not for handlers whose client disconnected.
//! Call [`IdempotencyFilter::shutdown`] afterwards.
//!
//! # Without axum
//!
//! Any tower stack works. The guard must be able to create the request body from buffered bytes
//! ([`FromReplay`]). If the service takes hyper's own body, wrap that body in a [`GuardedBody`].
//! Name a scope in the policy, because without a router there is no route to serve as the default
//! scope:
//!
//! ```
//! use std::convert::Infallible;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use retryproof_core::IdempotencyEngine;
//! use retryproof_memory::MemoryStore;
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
//! The feature `axum` adds the module `axum` (annotated handlers, extractors for key and lease). It
//! also derives the default scope from the matched route, and makes [`AnswerFate`] usable in
//! response tuples.
//!
//! The feature `grpc` adds the module `grpc`. The module guards unary calls of tonic and other gRPC
//! services, and refuses calls with gRPC statuses.

#[doc(hidden)]
pub mod adapter;
#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod call;
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
mod served;
mod switches;
mod tower;
mod transaction;
mod window;

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
pub use served::Served;
pub use tower::{IdempotencyLayer, IdempotencyService, ResponseFuture};
pub use transaction::{GuardedTx, OpenTx, TxError};

/// Makes compilation fail here, not in a user's program, if one of these types stops being `Send`
/// or `Sync`.
const _: () = {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<IdempotencyFilter>();
    shared::<IdempotencyLayer>();
    shared::<IdempotencyService<()>>();
    shared::<Policy>();
    shared::<StoredResponse>();
};
