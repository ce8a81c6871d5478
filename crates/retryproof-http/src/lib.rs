// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP filter of retryproof.

mod answer;
#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod capture;
mod catch;
mod decide;
mod digest;
mod fate;
mod filter;
mod future;
mod guard;
mod headers;
mod key;
mod layer;
mod policy;
mod problem;
mod route;
mod scope;
mod service;
mod stored;

pub use body::{FromReplay, GuardedBody, ReplayBody};
pub use digest::{FIRST_CUSTOM_ALGORITHM, FingerprintRequest, RequestParts};
pub use fate::AnswerFate::{self, Hold, Release};
pub use fate::Fate;
pub use filter::{CallersSaid, CallersUnsaid, FilterBuilder, IdempotencyFilter, IntoCaller, SaysWhoCalls};
pub use future::ResponseFuture;
pub use layer::IdempotencyLayer;
pub use policy::Policy;
pub use problem::{Code, Problem};
pub use service::IdempotencyService;
pub use stored::{Corrupt, StoredResponse};
