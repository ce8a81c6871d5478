// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
//! The engine, the store contract and the memory store of `retryproof`. Applications use the facade
//! crate; this one is for authors of stores and adapters, who want nothing else in their tree.
//!
//! | to | read |
//! |---|---|
//! | run work once per (scope, key) | [`IdempotencyEngine`], [`IdempotencyContext`], [`Outcome`] |
//! | commit the record with the writes of a transaction | [`JoinedEngine`], [`HeldLease::complete_in`], [`store::Join`] |
//! | hold a lease by hand | [`IdempotencyEngine::try_acquire`], [`HeldLease`], [`Lease`] |
//! | choose how a value is stored | [`Codec`], [`JsonCodec`], [`BytesCodec`], [`NoCodec`] |
//! | write a store | [`store`]: the contract, and a complete small store |
//! | tell a message broker what became of a message | [`listener`]: [`Verdict`](listener::Verdict) |
//! | watch what happens | [`observe`]: [`Observer`], and [`Counters`](observe::Counters) |
//! | change a setting | [`config`]: every key, its default and its bounds |
//! | do without a runtime | [`blocking`] |
//!
//! What is promised has a number, such as ACQ-2 or CMP-3; SPEC.md in the repository lists them all.

#[doc(hidden)]
pub mod annotated;
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
pub mod store;

pub use backoff::Backoff;
pub use blob::Blob;
pub use codec::{BytesCodec, Codec, JsonCodec, NoCodec};
pub use config::{CompletionFailurePolicy, FingerprintMode, IdempotencyConfig, WebConfig};
pub use context::{ContextBuilder, IdempotencyContext};
pub use engine::{
    Acquisition, Activity, Attempt, Call, CompletionResult, EngineBuilder, HeldLease, Hook,
    IdempotencyEngine, JoinError, JoinedCall, JoinedEngine, Lease, NoHook, OnDrop, OnFenced,
    PendingCommit, Permit,
};
pub use error::{Error, ErrorKind, Result};
pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use identity::{Identity, IntoScope, Key, MAX_KEY_BYTES, MAX_SCOPE_BYTES, Scope};
pub use observe::Observer;
pub use outcome::{
    CompletionError, ExecuteError, InFlight, Outcome, Recorded, Rejected, Report, settle,
};
pub use owner::{FencingToken, OwnerId};
pub use payload::{CodecId, Opened, Payload, StoredResult, Tombstone};
pub use store::{IdempotencyStore, MemoryStore, MemoryStoreBuilder, SharedStore};

/// An engine and all that it hands out cross threads.
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
