// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an acquire returns. Most callers get an [`Acquisition`]. A caller that opens the stored
//! result itself gets an [`EndedAcquire`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::clock::Instant;
use crate::engine::lease::HeldLease;
use crate::error::Result;
use crate::outcome::InFlight;
use crate::payload::StoredResult;

/// The result of
/// [`IdempotencyEngine::try_acquire`](crate::engine::IdempotencyEngine::try_acquire).
#[derive(Debug)]
#[must_use]
pub enum Acquisition {
    /// The caller has the lease, and the lease's heartbeat is running.
    Granted(HeldLease),
    /// The work is done. Open its result with the caller's fingerprint.
    Complete(StoredResult),
    /// Another caller holds the key, and this call does not wait any longer.
    InFlight(InFlight),
    /// Another caller holds the key, under a different fingerprint. Only a scope with
    /// `fingerprint-while-in-flight` gives this answer (FP-6).
    Mismatch,
}

/// An acquire that has ended. If the acquire found a stored result, the code that opens the result
/// reports the outcome (RUN-7), because only that code knows the answer to the call. The engine
/// reports every other outcome.
#[derive(Debug)]
#[must_use]
pub struct EndedAcquire {
    /// The result that
    /// [`try_acquire_tracked`](crate::engine::IdempotencyEngine::try_acquire_tracked) would return.
    pub acquired: Result<Acquisition>,
    /// When the call began.
    pub began: Instant,
}

/// The result of
/// [`IdempotencyEngine::begin_acquire`](crate::engine::IdempotencyEngine::begin_acquire).
#[must_use]
pub enum Acquiring {
    /// The acquire has ended.
    Done(EndedAcquire),
    /// The acquire has to continue, for example because the store did not answer immediately or
    /// there is a holder to wait for.
    Waiting(AcquireRest),
}

/// The rest of an acquire. It is boxed, so that its state takes no space in the future of a request
/// that never waits.
pub type AcquireRest = Pin<Box<dyn Future<Output = EndedAcquire> + Send>>;

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(end) => f.debug_tuple("Done").field(end).finish(),
            Self::Waiting(_) => f.debug_tuple("Waiting").finish_non_exhaustive(),
        }
    }
}
