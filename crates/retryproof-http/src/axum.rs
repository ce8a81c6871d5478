// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard in axum: annotated handlers, and extractors for the key, the lease and the transaction.
//!
//! `#[idempotent(http)]` makes a handler a unit struct whose `Handler` implementation calls
//! [`run_endpoint`]; so `post(pay)` is the guarded handler and cannot be anything else (ANN-3). All
//! arguments but the body are extracted before the key is looked up, on every call (ANN-6): an
//! extractor that authenticates runs before a replay too.
//!
//! # When to use
//! Annotate a handler if it is yours: the guard cannot be forgotten, and no rejection of an argument
//! is stored. Use the layer, [`IdempotencyFilter::guard`](crate::IdempotencyFilter::guard), for
//! handlers of other crates, for whole routers, and where one policy covers several routes. The
//! extractors work behind both:
//!
//! ```
//! use axum::{Router, routing::post};
//! use retryproof_core::IdempotencyEngine;
//! use retryproof_http::{IdempotencyFilter, Policy, axum::{IdempotencyKey, Lease}};
//! use retryproof_memory::MemoryStore;
//!
//! async fn refund(key: IdempotencyKey, lease: Lease) -> String {
//!     // The same for a run that takes over: pass it to the payment provider.
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
