// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guards gRPC: unary calls of tonic, or of any other gRPC service on `tower` (HTTP-17).
//!
//! The key is the metadata entry `idempotency-key` (or the entry that `web.key-header` names). The
//! first call with a key runs. Every retry gets the first call's message, metadata and trailers,
//! including `grpc-status`, and the mark `idempotent-replayed: true`.
//! [`IdempotencyFilter::grpc`](crate::IdempotencyFilter::grpc) creates the layer. In tonic, wrap
//! one service with `add_service(guard.named_layer(PaymentsServer::new(payments)))`
//! (`tonic::service::LayerExt`), or all services with `Server::layer`. To wrap all services, make
//! keys optional (`web.required = false`), because health checks and reflection send no key. The
//! program `examples/grpc` in the repository shows a client and a server. Any other gRPC service
//! works too:
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
//! let payments = service_fn(|_: Request<GuardedBody<Full<Bytes>>>| async {
//!     let answer = Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
//!     Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).unwrap())
//! });
//! let guard = filter.grpc(Policy::unnamed()).streaming("/pay.v1.Payments/Watch");
//! let guarded = guard.layer(payments);
//!
//! let call = Request::post("/pay.v1.Payments/Charge").header("content-type", "application/grpc").body(Full::default())?;
//! let Ok(refused) = guarded.oneshot(call).await;
//! assert_eq!((refused.status(), &refused.headers()["grpc-status"]), (http::StatusCode::OK, &"3".parse()?)); // it has no key
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # What a call gets
//! Refusals are never stored. Each has the HTTP status 200 and one of these gRPC statuses;
//! [`refusal`] renders them:
//!
//! | the call | `grpc-status` | has a retry time |
//! |---|---|---|
//! | has no well-formed key | 3 `INVALID_ARGUMENT` | |
//! | repeats a key with a different message or method | 3 `INVALID_ARGUMENT` | |
//! | has no caller that the filter's hook can find | 16 `UNAUTHENTICATED` if the filter has a challenge, else 7 `PERMISSION_DENIED` | |
//! | is larger than `web.max-body-bytes` | 8 `RESOURCE_EXHAUSTED` | |
//! | repeats a call that still runs after the wait timeout | 10 `ABORTED` | yes |
//! | repeats a call whose response was not kept | 6 `ALREADY_EXISTS`: the work is done, and a retry gets the same refusal | |
//! | finds the store unavailable or full, or finds the service at its limit or shutting down | 14 `UNAVAILABLE` | yes |
//! | breaks off before its message is complete | 14 `UNAVAILABLE` | |
//! | ran, but its response broke off or could not be recorded; or finds an unreadable record, or an endpoint without a scope | 13 `INTERNAL` | |
//!
//! `grpc-status-details-bin` holds a `google.rpc.ErrorInfo` and, if there is a retry time, a
//! `google.rpc.RetryInfo`. The domain of the `ErrorInfo` is `retryproof`. Its reason is the
//! problem's [`Code`](crate::Code) in capitals, such as `IN_FLIGHT`. The metadata entries
//! `retry-after` (in seconds) and `grpc-retry-pushback-ms` give the same time. The retry policies
//! of gRPC clients use `grpc-retry-pushback-ms`.
//!
//! # What happens to a response
//! A status other than `OK` from the handler is stored and replayed (HTTP-7). A handler sets a
//! different fate with an [`AnswerFate`](crate::AnswerFate) in its response's extensions. A
//! `Status` has no extensions, so it carries its fate in the metadata entry [`FATE`]: `release` if
//! it is certain that nothing happened, `hold` if it is not known what happened, `stream` if the
//! work is done and the messages must be streamed. The entry is not sent to the client. In tonic:
//! `status.metadata_mut().insert(grpc::FATE, MetadataValue::from_static("release"))`.
//!
//! Writes in a [`GuardedTx`](crate::GuardedTx) (in tonic,
//! `GuardedTx::of(request.extensions(), &joined)`) commit together with the record of an `OK`
//! response. With any other status, the writes are rolled back, and only the response is recorded
//! (CMP-7). A stream, or a response over `web.max-response-bytes`, is recorded before its status is
//! known, so its writes commit.
//!
//! # Streams
//! - A response of several messages reaches the client whole. It is recorded as "done, not
//!   replayable" when its second message begins, or after `web.collect-timeout` (HTTP-13). No part
//!   of the response is sent before it is recorded. A status that arrives later can no longer set
//!   the fate. A status that comes instead of the first message is treated like any other response.
//! - A call to a method that [`GrpcLayer::streaming`] names is recorded as "done, not replayable"
//!   as soon as the method responds. Its messages flow concurrently in both directions. Name all
//!   bidirectional methods, and all methods whose first message comes late. The guard does not read
//!   the request of a named method before the method runs, so a different request with the same key
//!   is not detected. A response that is only a status is stored like any other response.
//! - Any other stream from the client is read up to `web.max-body-bytes`, and is then guarded like
//!   a unary call.
//!
//! # What to know
//! - **Scope.** Without a scope in the policy, the method is the scope: `pay.v1.Payments/Charge`.
//!   Set the scope in the policy if scopes are metric labels, because a client can also send method
//!   names that do not exist.
//! - **The fingerprint** covers the encoded message, so a retry has to send the same bytes. Do not
//!   keep a Protobuf map in a `HashMap`, whose order can change. Use `BTreeMap`, or encode the
//!   request once.
//! - **grpc-web.** The guard belongs inside `GrpcWebLayer`, where it sees statuses and trailers.
//!   Outside `GrpcWebLayer`, the guard replays responses too, but cannot see their status, which is
//!   in the body. Writes then commit even if the status is an error, and a second message does not
//!   reveal a stream.
//! - **Deadlines.** A duplicate waits up to the policy's wait timeout; a client with a shorter
//!   deadline gets `DEADLINE_EXCEEDED` instead.
//! - **A caller hook** can refuse a call with a gRPC status:
//!   `Caller::refuse(Status::unauthenticated("…").into_http::<Bytes>())`.

mod fate;
mod first_message;
mod refusal;
mod service;

pub use first_message::GrpcBody;
pub use refusal::refusal;
pub use service::{GrpcFuture, GrpcLayer, GrpcService};

/// The metadata entry that sets a status's fate: `store`, `release`, `hold` or `stream` (HTTP-7).
/// The entry is removed before the response is stored or sent.
pub const FATE: &str = "retryproof-fate";
