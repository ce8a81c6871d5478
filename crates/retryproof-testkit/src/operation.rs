// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Operation`]: names the methods of the store contract.

use std::fmt;

/// One method of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Operation {
    /// [`IdempotencyStore::acquire`](retryproof_core::IdempotencyStore::acquire).
    Acquire,
    /// [`IdempotencyStore::peek`](retryproof_core::IdempotencyStore::peek).
    Peek,
    /// [`IdempotencyStore::wait_for_change`](retryproof_core::IdempotencyStore::wait_for_change).
    WaitForChange,
    /// [`IdempotencyStore::extend`](retryproof_core::IdempotencyStore::extend).
    Extend,
    /// [`IdempotencyStore::complete`](retryproof_core::IdempotencyStore::complete).
    Complete,
    /// [`IdempotencyStore::release`](retryproof_core::IdempotencyStore::release).
    Release,
    /// [`Purge::purge`](retryproof_core::store::Purge::purge) and
    /// [`Purge::claim_purge`](retryproof_core::store::Purge::claim_purge).
    Purge,
}

impl Operation {
    /// Returns the method's name as errors show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Peek => "peek",
            Self::WaitForChange => "wait_for_change",
            Self::Extend => "extend",
            Self::Complete => "complete",
            Self::Release => "release",
            Self::Purge => "purge",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
