// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod answer;
mod backoff;
mod error;
mod key;
mod middleware;
mod problem;
mod redirect;
mod report;
mod retry_after;
mod verdict;

pub use error::{CallError, ErrorKind};
pub use key::{IdempotencyKey, InvalidKey, NoRandom};
pub use middleware::IdempotencyMiddleware;
pub use middleware::builder::Builder;
pub use redirect::same_origin_redirects;
pub use report::{CallReport, GaveUp, IdempotentRequest, IdempotentResponse, SendOnce, WithoutKey};
/// The versions of reqwest and reqwest-middleware that this crate uses.
pub use {reqwest, reqwest_middleware};

/// Checks at compile time that these types can be shared between threads.
const _: () = {
    const fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<IdempotencyMiddleware>();
    shared::<Builder>();
    shared::<CallReport>();
    shared::<IdempotencyKey>();
    const fn error<T: std::error::Error + Send + Sync + 'static>() {}
    error::<CallError>();
};
