// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store may be able to do beyond the contract: [`Purge`] and [`Inspect`];
//! [`Join`](super::Join) has a file of its own.

use std::future::Future;
use std::time::Duration;

use super::IdempotencyStore;
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::FencingToken;

/// Deletes expired records. Hygiene, never part of correctness: expired counts as absent, purged or
/// not (CMP-6).
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot delete expired records",
    label = "a store that can purge is wanted here",
    note = "implement `Purge`, or leave `with_purge()` out where the store reclaims expired \
            records by itself"
)]
pub trait Purge: IdempotencyStore {
    /// Deletes up to `limit` records: COMPLETE past its ttl, and IN_PROGRESS only when both its
    /// lease and its ttl, counted from the acquire, are over (STO-4). Says how many went; fewer
    /// than `limit` means that none is left.
    ///
    /// Safe from every instance at once. A drop leaves it done in part.
    ///
    /// # Errors
    /// `Unavailable` when the store is away.
    fn purge(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

/// Where a record stands, for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    /// A holder is at work, or died: see whether the lease is over.
    InProgress,
    /// The work is done.
    Complete,
}

/// One record without its value.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordSummary {
    /// Where it stands.
    pub state: RecordState,
    /// The token of its last grant.
    pub token: FencingToken,
    /// What is left of its lease or retention by the store's clock; `None` when it is over.
    pub remaining: Option<Duration>,
    /// Bytes of the stored value, envelope included; 0 while in progress.
    pub value_bytes: usize,
    /// Whether a fingerprint is kept.
    pub has_fingerprint: bool,
}

impl RecordSummary {
    /// A summary as a store read it.
    #[must_use]
    pub fn new(
        state: RecordState,
        token: FencingToken,
        remaining: Option<Duration>,
        value_bytes: usize,
        has_fingerprint: bool,
    ) -> Self {
        Self { state, token, remaining, value_bytes, has_fingerprint }
    }
}

/// Counts over a whole store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Records kept, expired ones included.
    pub records: u64,
    /// Of them, IN_PROGRESS.
    pub in_progress: u64,
    /// Bytes that they take, as far as the store can tell.
    pub bytes: u64,
}

impl StoreStats {
    /// Counts as a store made them.
    #[must_use]
    pub fn new(records: u64, in_progress: u64, bytes: u64) -> Self {
        Self { records, in_progress, bytes }
    }
}

/// Lets an operator look at records. Never shows a value.
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot show its records",
    label = "a store that can be inspected is wanted here",
    note = "implement `Inspect`, or leave `with_inspect()` out"
)]
pub trait Inspect: IdempotencyStore {
    /// Describes one record, expired or not.
    ///
    /// # Errors
    /// Those of the store.
    fn get(&self, id: &Identity) -> impl Future<Output = Result<Option<RecordSummary>>> + Send;

    /// Counts the records. May scan.
    ///
    /// # Errors
    /// Those of the store.
    fn stats(&self) -> impl Future<Output = Result<StoreStats>> + Send;
}
