// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The engine and the store contract of `retryproof`, which runs a unit of work once per (scope,
//! key).
//!
//! # When to use this crate
//! Applications depend on the facade crate, [`retryproof`](https://docs.rs/retryproof), which
//! re-exports what they need. Depend on `retryproof-core` directly if you write a store, a
//! framework adapter, or a library that should have few dependencies.
//!
//! # Example
//! The first call runs the action and stores its result. A retry with the same key receives that
//! result. A different request under the same key is refused.
//!
//! ```
//! use retryproof_core::{ExecuteError, Fingerprint, IdempotencyContext, IdempotencyEngine, Outcome};
//! use retryproof_memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = IdempotencyEngine::new(MemoryStore::new());
//! let request = |amount: u64| {
//!     IdempotencyContext::builder("payments", "order-17")
//!         .fingerprint(Fingerprint::of(&amount)?)
//!         .build()
//! };
//! let charge = || async { Ok::<_, std::io::Error>("receipt 1".to_owned()) };
//!
//! let first = engine.execute(request(300)?, charge).await?;
//! assert_eq!(first, Outcome::Executed("receipt 1".to_owned()));
//!
//! let retry = engine.execute(request(300)?, charge).await?;
//! assert_eq!(retry, Outcome::Replayed("receipt 1".to_owned()));
//!
//! let other = engine.execute(request(900)?, charge).await;
//! assert!(matches!(other, Err(ExecuteError::Mismatch)));
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go from here
//! | to | read |
//! |---|---|
//! | run work once per (scope, key) | [`IdempotencyEngine`], [`IdempotencyContext`], [`Outcome`] |
//! | commit the record together with a transaction's writes | [`JoinedEngine`], [`HeldLease::complete_in`], [`store::Join`] |
//! | manage a lease manually | [`IdempotencyEngine::try_acquire`], [`HeldLease`], [`Lease`] |
//! | choose how a value is stored | [`Codec`], [`JsonCodec`], [`BytesCodec`], [`NoCodec`] |
//! | write a store | [`store`]: the contract, and a complete small store |
//! | settle a message with its broker | [`listener`]: [`Verdict`](listener::Verdict) |
//! | encrypt stored results | [`seal`], and the crate `retryproof-seal` |
//! | observe leases and outcomes | [`observe`]: [`Observer`] and [`Counters`](observe::Counters) |
//! | change a setting | [`config`]: every setting, its default and its bounds |
//! | work without an async runtime | [`blocking`] |
//!
//! Every promise has a rule id, such as ACQ-2 or CMP-3. SPEC.md in the repository lists all rules.

#[doc(hidden)]
pub mod annotated;
mod attempt;
mod backoff;
mod blob;
pub mod blocking;
pub mod clock;
pub mod codec;
pub mod config;
mod context;
mod engine;
mod error;
mod fingerprint;
mod identity;
#[doc(hidden)]
pub mod internal;
pub mod listener;
mod lock;
pub mod observe;
mod outcome;
mod owner;
mod panics;
mod payload;
pub mod seal;
pub mod store;

pub use attempt::Attempt;
pub use backoff::Backoff;
pub use blob::Blob;
pub use codec::{BytesCodec, Codec, JsonCodec, NoCodec};
pub use config::{CompletionFailurePolicy, FingerprintMode, IdempotencyConfig, WebConfig};
pub use context::{ContextBuilder, IdempotencyContext};
#[doc(hidden)]
pub use engine::{AcquireRest, Acquiring, CallAnswer, EndedAcquire};
pub use engine::{
    Acquisition, Activity, Call, CompletionResult, EngineBuilder, HeldLease, Hook,
    IdempotencyEngine, JoinError, JoinedCall, JoinedEngine, Lease, NoHook, OnDrop, OnFenced,
    PendingCommit, Permit,
};
pub use error::{Error, ErrorKind, Result};
pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use identity::{
    Identity, IdentitySecret, IntoScope, Key, MAX_KEY_BYTES, MAX_SCOPE_BYTES, MIN_SECRET_BYTES,
    Scope,
};
pub use observe::Observer;
pub use outcome::{
    CompletionError, ExecuteError, InFlight, Outcome, Recorded, Rejected, Report, settle,
};
pub use owner::{FencingToken, OwnerId};
pub use payload::{CodecId, Opened, Payload, StoredResult, Tombstone};
pub use store::{IdempotencyStore, SharedStore};

/// Asserts at compile time that the engine and the types it returns are `Send` and `Sync`.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<IdempotencyEngine>();
    crosses_threads::<IdempotencyContext>();
    crosses_threads::<HeldLease>();
    crosses_threads::<Lease>();
    crosses_threads::<SharedStore>();
    crosses_threads::<StoredResult>();
    crosses_threads::<Error>();
};
