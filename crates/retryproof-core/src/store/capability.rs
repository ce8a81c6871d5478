// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capabilities of a store beyond the contract: [`Purge`] and [`Inspect`]. Two more capabilities,
//! [`Force`](super::Force) and [`Join`](super::Join), have their own files.

use std::future::Future;
use std::time::Duration;

use super::{HolderNote, IdempotencyStore, ScanCursor, ScanPage};
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::FencingToken;

/// Deletes expired records to free space. Correctness does not depend on purging, because an
/// expired record is treated as absent, whether purged or not (CMP-6).
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot delete expired records",
    label = "expected a store that implements `Purge`",
    note = "implement `Purge`, or leave out `with_purge()` if the store removes expired records \
            itself"
)]
pub trait Purge: IdempotencyStore {
    /// Deletes up to `limit` expired records and returns how many it deleted; fewer than `limit`
    /// means that no expired record is left.
    ///
    /// A COMPLETE record expires at the end of its ttl. An IN_PROGRESS record expires when both its
    /// lease and its ttl, measured from the acquire, are over (STO-4). Several instances can purge
    /// concurrently. A dropped call may have deleted some of the records.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached.
    fn purge(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;
}

/// The state of a record, as shown to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    /// A holder is working, or has died and its lease has run out.
    InProgress,
    /// The work is done.
    Complete,
}

/// One record without its value.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordSummary {
    /// The record's state.
    pub state: RecordState,
    /// The token of the last grant.
    pub token: FencingToken,
    /// The time left, by the store's clock, until the end of the lease or of the result's ttl;
    /// `None` if that end has passed.
    pub remaining: Option<Duration>,
    /// The size of the stored value with its envelope, in bytes; 0 while the work is in progress.
    pub value_bytes: usize,
    /// Whether the record has a fingerprint.
    pub has_fingerprint: bool,
    /// The time since the last grant, measured by the store's clock, if the store knows it.
    pub granted_ago: Option<Duration>,
    /// How often the key was taken over since it was last free, if the store knows it. The count
    /// stops at 32,767.
    pub takeovers: Option<u16>,
    /// The note about the holder that was granted the lease last (REC-2).
    pub holder: Option<HolderNote>,
}

impl RecordSummary {
    /// Creates a summary for a store to return.
    #[must_use]
    pub fn new(
        state: RecordState,
        token: FencingToken,
        remaining: Option<Duration>,
        value_bytes: usize,
        has_fingerprint: bool,
    ) -> Self {
        Self {
            state,
            token,
            remaining,
            value_bytes,
            has_fingerprint,
            granted_ago: None,
            takeovers: None,
            holder: None,
        }
    }

    /// Adds what the store knows about the last grant: its age, the takeovers so far, and the note
    /// about its holder.
    #[must_use]
    pub fn with_grant(
        mut self,
        granted_ago: Option<Duration>,
        takeovers: Option<u16>,
        holder: Option<HolderNote>,
    ) -> Self {
        (self.granted_ago, self.takeovers, self.holder) = (granted_ago, takeovers, holder);
        self
    }
}

/// Totals over a whole store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// The number of records, including expired ones.
    pub records: u64,
    /// How many of these records are IN_PROGRESS.
    pub in_progress: u64,
    /// The bytes that the records occupy, as far as the store knows.
    pub bytes: u64,
}

impl StoreStats {
    /// Creates totals for a store to return.
    #[must_use]
    pub fn new(records: u64, in_progress: u64, bytes: u64) -> Self {
        Self { records, in_progress, bytes }
    }
}

/// Lets an operator inspect records, but never shows a value.
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot show its records",
    label = "expected a store that implements `Inspect`",
    note = "implement `Inspect`, or leave out `with_inspect()`"
)]
pub trait Inspect: IdempotencyStore {
    /// Describes one record, expired or not.
    ///
    /// # Errors
    /// The store's errors.
    fn get(&self, id: &Identity) -> impl Future<Output = Result<Option<RecordSummary>>> + Send;

    /// Counts the records. The store may have to scan all of them.
    ///
    /// # Errors
    /// The store's errors.
    fn stats(&self) -> impl Future<Output = Result<StoreStats>> + Send;

    /// Describes one page of all records, expired or not (OPS-1). The scan starts at the first
    /// record, or after the cursor that the previous page returned.
    ///
    /// # Behaviour
    /// The store examines about `limit` records for a page, at least one, and fewer if its own
    /// limit is lower. A page can be empty although more pages follow; the last page has no cursor.
    ///
    /// A scan returns at least once each record that exists during the whole scan. A record that is
    /// created, granted again or deleted during the scan may be missing. A store's documentation
    /// says whether a scan can return a record twice. Each store has its own order.
    ///
    /// A page is found by the position of the cursor, never by counting the records before it, and
    /// without an index that only the scan would need.
    ///
    /// # Errors
    /// `Invalid` for a cursor that the store cannot read; otherwise the store's errors. A record
    /// that cannot be read is not an error: the page counts it (CMP-8).
    fn scan(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> impl Future<Output = Result<ScanPage>> + Send;
}
