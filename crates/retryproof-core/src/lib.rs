// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine, the store contract and the memory store of `retryproof`. Use the facade crate.

mod blob;
pub mod clock;
mod error;
mod fingerprint;
mod identity;
mod owner;
mod payload;
pub mod store;

#[path = "store/memory.rs"]
mod memory;

pub use blob::Blob;
pub use error::{Error, ErrorKind, Result};
pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use identity::{Identity, IntoScope, Key, MAX_KEY_BYTES, MAX_SCOPE_BYTES, Scope};
pub use memory::MemoryStore;
pub use owner::{FencingToken, OwnerId};
pub use payload::{CodecId, Opened, Payload, StoredResult, Tombstone};
pub use store::{IdempotencyStore, SharedStore};
