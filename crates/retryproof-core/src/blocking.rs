// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine for programs without an async runtime. It has the names and semantics of the async
//! engine, but its calls block.
//!
//! A `blocking::Engine` (feature `blocking`) has a small runtime that runs heartbeats and
//! background work while an action blocks its caller's thread. Inside another runtime, every call
//! returns an error, because blocking would stall that runtime.
//!
//! ```
//! # #[cfg(feature = "blocking")] {
//! use retryproof_core::{IdempotencyContext, Outcome, blocking};
//! use retryproof_memory::MemoryStore;
//!
//! let engine = blocking::Engine::new(MemoryStore::new())?;
//! let ctx = IdempotencyContext::builder("invoices", "2026-11").build()?;
//! let outcome = engine.execute(ctx, || Ok::<_, std::io::Error>(42_u32))?;
//! assert_eq!(outcome, Outcome::Executed(42));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::Cell;

thread_local! {
    static BLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a blocking call. If so, a store can do its work in place instead
/// of on another thread.
#[must_use]
pub fn in_blocking_context() -> bool {
    BLOCKING.get()
}

#[cfg(feature = "blocking")]
pub use engine::{Acquisition, Call, Engine, HeldLease, run};
#[cfg(feature = "blocking")]
pub use joined::{JoinedCall, JoinedEngine, PendingCommit};

#[cfg(feature = "blocking")]
mod engine;
#[cfg(feature = "blocking")]
mod joined;
