// SPDX-License-Identifier: MIT OR Apache-2.0
//! gRPC behind the guard: unary calls of tonic, or of anything else that speaks gRPC over `tower`
//! (HTTP-17).
//!
//! The key is the metadata entry `idempotency-key` (or whatever `web.key-header` names). The first
//! call with a key runs; every retry gets its message, its metadata and its trailers again,
//! `grpc-status` included, with `idempotent-replayed: true`.
//! [`IdempotencyFilter::grpc`](crate::IdempotencyFilter::grpc) makes the layer. In tonic it goes
//! around one service, by `add_service(guard.named_layer(PaymentsServer::new(payments)))`
//! (`tonic::service::LayerExt`), or, by `Server::layer`, around all of them; there keys should be
//! optional (`web.required = false`), for health checks and reflection have none. The program
//! `examples/grpc` of the repository shows both sides. Any other service does as well:
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
//! A refusal is an answer with the HTTP status 200 and one of these, never stored ([`refusal`]):
//!
//! | the call | `grpc-status` | says when to come back |
//! |---|---|---|
//! | has no key, or none that is well-formed | 3 `INVALID_ARGUMENT` | |
//! | repeats a key with another message or method | 3 `INVALID_ARGUMENT` | |
//! | has no caller that the filter's hook finds | 16 `UNAUTHENTICATED` where the filter has a challenge, else 7 `PERMISSION_DENIED` | |
//! | is larger than `web.max-body-bytes` | 8 `RESOURCE_EXHAUSTED` | |
//! | repeats one that runs, for longer than the wait | 10 `ABORTED` | yes |
//! | repeats one whose answer was not kept | 6 `ALREADY_EXISTS`: the work is done, and asking again gets no more | |
//! | meets a store that is away or full, a full or closing service; or broke off | 14 `UNAVAILABLE` | yes |
//! | ran, and its answer broke off or could not be recorded; meets a record that cannot be read, or a server without a scope | 13 `INTERNAL` | |
//!
//! `grpc-status-details-bin` holds a `google.rpc.ErrorInfo` (domain `retryproof`, the reason is the
//! problem's [`Code`](crate::Code) in capitals, such as `IN_FLIGHT`) and, where there is something
//! to wait for, a `google.rpc.RetryInfo`. The same time stands in the metadata `retry-after`
//! (seconds) and `grpc-retry-pushback-ms`, which the retry policies of gRPC clients heed.
//!
//! # What becomes of an answer
//! A status other than `OK` that the handler returns is an answer: it is stored and replayed
//! (HTTP-7). A handler says otherwise by [`AnswerFate`](crate::AnswerFate) in the extensions of its
//! response, or, as a `Status` has none, by the metadata [`FATE`]: `release` when surely nothing
//! happened, `hold` when that is not known, `stream` when it is done and its messages are to flow.
//! The entry does not leave the server. In tonic:
//! `status.metadata_mut().insert(grpc::FATE, MetadataValue::from_static("release"))`.
//!
//! Writes of a [`GuardedTx`](crate::GuardedTx), `GuardedTx::of(request.extensions(), &joined)` in
//! tonic, commit with the record of an answer that is `OK`. Any other status takes them back, and
//! is recorded alone (CMP-7). What is recorded before its status is known commits: a stream, and an
//! answer over `web.max-response-bytes`.
//!
//! # Streams
//! - An answer of more than one message reaches its client whole, and is recorded as "done, not
//!   replayable" as soon as its second message begins, or after `web.collect-timeout` (HTTP-13).
//!   Until then nothing of it is sent. A status that comes after it says its fate too late; one
//!   that comes instead of the first message is an answer like any other.
//! - A method named with [`GrpcLayer::streaming`] is recorded so as soon as it answers, and its
//!   messages flow in both directions at once. Name those that the client talks to while they
//!   answer, and those whose first messages come late. A request of theirs is not read before it
//!   runs, so another one under the same key is not told apart. One that is refused at once, by a
//!   status and nothing else, is an answer like any other.
//! - A stream from the client that is not named so is gathered up to `web.max-body-bytes`, and is
//!   one call like any other.
//!
//! # What to know
//! - **Scope.** A policy without one has the method's: `pay.v1.Payments/Charge`. The client names
//!   the method, also one that is not there; where scopes label metrics, name the scope.
//! - **The fingerprint** is over the encoded message. A retry has to send the same bytes: protobuf
//!   maps whose order is random (`HashMap`) do not; `BTreeMap` does, and so does a request that was
//!   encoded once.
//! - **grpc-web.** The guard belongs inside of `GrpcWebLayer`: there it sees statuses and trailers.
//!   Outside of it answers are replayed as well, but a status is hidden in the body then, so that
//!   writes commit with an error, and a second message does not tell a stream.
//! - **Deadlines.** A duplicate waits for the policy's wait; a client with a shorter deadline sees
//!   that instead.
//! - **A caller hook** that refuses does so with a gRPC status:
//!   `Caller::refuse(Status::unauthenticated("…").into_http::<Bytes>())`.

mod fate;
mod first_message;
mod refusal;
mod service;

pub use first_message::GrpcBody;
pub use refusal::refusal;
pub use service::{GrpcFuture, GrpcLayer, GrpcService};

/// The metadata entry by which a status says its fate: `store`, `release`, `hold` or `stream`
/// (HTTP-7). It is taken off before the answer is stored or sent.
pub const FATE: &str = "retryproof-fate";
