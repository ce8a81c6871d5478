// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine, the store contract and the memory store of `retryproof`. Use the facade crate.

#[doc(hidden)]
pub mod annotated;
mod blob;
pub mod blocking;
pub mod clock;
pub mod codec;
pub mod config;
mod context;
mod engine;
mod error;
mod fingerprint;
mod heartbeat;
mod identity;
mod lease;
mod lock;
pub mod observe;
mod outcome;
mod owner;
mod payload;
pub mod store;

pub use blob::Blob;
pub use codec::{BytesCodec, Codec, JsonCodec, NoCodec};
pub use config::{CompletionFailurePolicy, FingerprintMode, IdempotencyConfig, WebConfig};
pub use context::{ContextBuilder, IdempotencyContext};
pub use engine::{
    Acquisition, Activity, Call, EngineBuilder, Finished, Held, Hook, IdempotencyEngine, NoHook, OnDrop,
    OnFenced, Permit,
};
pub use error::{Error, ErrorKind, Result};
pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use identity::{Identity, IntoScope, Key, MAX_KEY_BYTES, MAX_SCOPE_BYTES, Scope};
pub use lease::{Attempt, Lease};
pub use observe::Observer;
pub use outcome::{CompletionError, ExecuteError, InFlight, Outcome, Recorded, Rejected, Report, settle};
pub use owner::{FencingToken, OwnerId};
pub use payload::{CodecId, Opened, Payload, StoredResult, Tombstone};
pub use store::{IdempotencyStore, MemoryStore, MemoryStoreBuilder, SharedStore};
