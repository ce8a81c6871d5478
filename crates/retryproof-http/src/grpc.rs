// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC behind the guard: unary calls of tonic, or of any other gRPC service over `tower` (HTTP-17).
//!
//! The key is the metadata entry `idempotency-key` (or whatever `web.key-header` names). The first
//! call with a key runs; every retry gets its message, its metadata and its trailers again,
//! `grpc-status` included, with `idempotent-replayed: true`.
//! [`IdempotencyFilter::grpc`](crate::IdempotencyFilter::grpc) makes the layer. In tonic it goes
//! around one service, by `add_service(guard.named_layer(PaymentsServer::new(payments)))`
//! (`tonic::service::LayerExt`), or, by `Server::layer`, around all of them. Make keys optional there
//! (`web.required = false`), because health checks and reflection have none. The program
//! `examples/grpc` of the repository shows both sides. Any other service works too:
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
//! A refusal is a response with the HTTP status 200 and one of these statuses. It is never stored
//! ([`refusal`]):
//!
//! | the call | `grpc-status` | has a retry time |
//! |---|---|---|
//! | has no key, or none that is well-formed | 3 `INVALID_ARGUMENT` | |
//! | repeats a key with another message or method | 3 `INVALID_ARGUMENT` | |
//! | has no caller that the filter's hook finds | 16 `UNAUTHENTICATED` where the filter has a challenge, else 7 `PERMISSION_DENIED` | |
//! | is larger than `web.max-body-bytes` | 8 `RESOURCE_EXHAUSTED` | |
//! | repeats one that runs, for longer than the wait | 10 `ABORTED` | yes |
//! | repeats one whose response was not kept | 6 `ALREADY_EXISTS`: the work is done, and a retry gets no more | |
//! | reaches a store that is away or full, or a service that is full or shutting down; or broke off | 14 `UNAVAILABLE` | yes |
//! | ran, and its response broke off or could not be recorded; reaches a record that cannot be read, or a server without a scope | 13 `INTERNAL` | |
//!
//! `grpc-status-details-bin` holds a `google.rpc.ErrorInfo` (domain `retryproof`, the reason is the
//! problem's [`Code`](crate::Code) in capitals, such as `IN_FLIGHT`) and, if there is a retry time, a
//! `google.rpc.RetryInfo`. The metadata `retry-after` (seconds) and `grpc-retry-pushback-ms` have the
//! same time; the retry policies of gRPC clients use it.
//!
//! # What happens to a response
//! A status other than `OK` that the handler returns is stored and replayed (HTTP-7). A handler sets
//! another fate by [`AnswerFate`](crate::AnswerFate) in the extensions of its response. A `Status`
//! has no extensions, so it uses the metadata [`FATE`]: `release` when certainly nothing happened,
//! `hold` when that is not known, `stream` when the work is done and the messages have to flow. The
//! entry does not leave the server. In tonic:
//! `status.metadata_mut().insert(grpc::FATE, MetadataValue::from_static("release"))`.
//!
//! Writes of a [`GuardedTx`](crate::GuardedTx), `GuardedTx::of(request.extensions(), &joined)` in
//! tonic, commit with the record of a response that is `OK`. Any other status rolls them back, and
//! is recorded alone (CMP-7). A response that is recorded before its status is known commits: a
//! stream, and a response over `web.max-response-bytes`.
//!
//! # Streams
//! - A response of more than one message reaches its client whole, and is recorded as "done, not
//!   replayable" as soon as its second message begins, or after `web.collect-timeout` (HTTP-13).
//!   Until then nothing of it is sent. The fate of a status after that has no effect; a status
//!   instead of the first message is a response like any other.
//! - A method named with [`GrpcLayer::streaming`] is recorded as "done, not replayable" as soon as it
//!   responds, and its messages flow in both directions at once. Name bidirectional methods, and
//!   methods whose first message comes late. Their requests are not read before they run, so another
//!   request under the same key is not detected. A response of a status alone is stored like any
//!   other.
//! - Any other stream from the client is read up to `web.max-body-bytes`, and is one call like any
//!   other.
//!
//! # What to know
//! - **Scope.** A policy without a scope gets that of the method: `pay.v1.Payments/Charge`. The client
//!   chooses the method, also one that does not exist; if scopes label metrics, name the scope.
//! - **The fingerprint** is over the encoded message, so a retry has to send the same bytes. Protobuf
//!   maps in a `HashMap` change their order; use `BTreeMap`, or encode the request once.
//! - **grpc-web.** The guard belongs inside of `GrpcWebLayer`, where it sees statuses and trailers.
//!   Outside of it responses are replayed too, but their status is hidden in the body, so writes
//!   commit with an error, and a second message does not show a stream.
//! - **Deadlines.** A duplicate waits for up to the policy's wait; a client with a shorter deadline
//!   gets `DEADLINE_EXCEEDED` instead.
//! - **A caller hook** that refuses does so with a gRPC status:
//!   `Caller::refuse(Status::unauthenticated("…").into_http::<Bytes>())`.

mod fate;
mod first_message;
mod refusal;
mod service;

pub use first_message::GrpcBody;
pub use refusal::refusal;
pub use service::{GrpcFuture, GrpcLayer, GrpcService};

/// The metadata entry with the fate of a status: `store`, `release`, `hold` or `stream` (HTTP-7). It
/// is removed before the response is stored or sent.
pub const FATE: &str = "retryproof-fate";
