// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard in axum: annotated handlers, and extractors for the key, the lease and the
//! transaction.
//!
//! `#[idempotent(http)]` turns a handler into a unit struct whose `Handler` implementation calls
//! [`run_endpoint`], so `post(pay)` can only mount the guarded handler (ANN-3). All arguments
//! except the body are extracted on every call, before the key is looked up (ANN-6), so an
//! extractor that authenticates also runs before a replay.
//!
//! # When to use
//! Annotate your own handlers: the guard then cannot be forgotten, and an extractor's rejection is
//! never stored. Use the layer, [`IdempotencyFilter::guard`](crate::IdempotencyFilter::guard), for
//! handlers from other crates, for whole routers, and for several routes under one policy. The
//! extractors work in annotated handlers, and in handlers behind the layer:
//!
//! ```
//! use axum::{Router, routing::post};
//! use retryproof_core::IdempotencyEngine;
//! use retryproof_http::{IdempotencyFilter, Policy, axum::{IdempotencyKey, Lease}};
//! use retryproof_memory::MemoryStore;
//!
//! async fn refund(key: IdempotencyKey, lease: Lease) -> String {
//!     // A takeover gets the same key: pass it to the payment provider.
//!     let downstream = lease.downstream_key("refund");
//!     format!("{} bytes of key, {} of the provider's key", key.as_str().len(), downstream.len())
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = IdempotencyEngine::new(MemoryStore::new());
//! let filter = IdempotencyFilter::builder(engine).callers_share_keys().build()?;
//! let app: Router =
//!     Router::new().route("/refund", post(refund).layer(filter.guard(Policy::new("refunds"))));
//! # Ok(())
//! # }
//! ```

mod endpoint;
mod extract;
pub(crate) mod limit;

pub use axum::handler::Handler;
pub use axum_core::extract::{FromRequest, FromRequestParts, Request};
pub use axum_core::response::{IntoResponse, Response};

pub use endpoint::{EndpointFuture, HasFilter, LastArgument, ViaParts, ViaRequest, run_endpoint};
pub use extract::{GuardedTxRejection, HasJoinedEngine, IdempotencyKey, Lease, NotGuarded};
