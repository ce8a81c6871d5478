// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capabilities of a store beyond the contract: [`Purge`] and [`Inspect`]. Three more capabilities,
//! [`Audit`](super::Audit), [`Force`](super::Force) and [`Join`](super::Join), have their own
//! files.

use std::future::Future;
use std::time::Duration;

use super::{HolderNote, IdempotencyStore, ScanCursor, ScanPage};
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::FencingToken;

/// Deletes expired records to free space. Correctness does not depend on purging, because every
/// call treats an expired record as absent (CMP-6).
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot delete expired records",
    label = "expected a store that implements `Purge`",
    note = "implement `Purge`, or leave out `with_purge()` if the store removes expired records \
            itself"
)]
pub trait Purge: IdempotencyStore {
    /// Deletes up to `limit` expired records and returns how many it deleted. A number below
    /// `limit` means that no expired record is left.
    ///
    /// A COMPLETE record expires at the end of its ttl. An IN_PROGRESS record counts as expired for
    /// a purge only when both its lease and its ttl are over. The ttl is measured from the acquire
    /// (STO-4). Several instances can purge concurrently. A dropped call may have deleted some of
    /// the records.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached.
    fn purge(&self, limit: usize) -> impl Future<Output = Result<usize>> + Send;

    /// Claims the purge for `at_most`, so that only one of the processes that share the records
    /// purges (STO-6). Returns whether the caller has the claim.
    ///
    /// A claim ends after `at_most` by the store's clock, and never earlier. A claimer that dies
    /// therefore blocks the purge for at most this time. A claim that would end more than twice
    /// `at_most` from now is ignored, because only a clock that was set back can leave such a
    /// claim. [`purge`](Self::purge) itself does not check for a claim. A dropped call may have
    /// taken the claim.
    ///
    /// The default implementation always returns `true`, which suits a store whose records only one
    /// process sees.
    ///
    /// # Errors
    /// The store's errors. The engine then purges without a claim.
    fn claim_purge(&self, at_most: Duration) -> impl Future<Output = Result<bool>> + Send {
        let _ = at_most;
        async { Ok(true) }
    }
}

/// The state of a record, as shown to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    /// The work has no recorded result. The holder may still be running it, or may have died.
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
    /// The time left on the lease, or on the ttl of a complete record, by the store's clock; `None`
    /// if no time is left.
    pub remaining: Option<Duration>,
    /// The size of the stored value with its envelope, in bytes; 0 while the work is in progress.
    pub value_bytes: usize,
    /// Whether the record has a fingerprint.
    pub has_fingerprint: bool,
    /// The time since the last grant by the store's clock, or `None` if it is unknown.
    pub granted_ago: Option<Duration>,
    /// How many times the key has been taken over since it was last free, or `None` if the number
    /// is unknown. The count stops at 32,767.
    pub takeovers: Option<u16>,
    /// The note about the holder that was granted the lease last (REC-2).
    pub holder: Option<HolderNote>,
    /// The time since the lease, or the ttl of a complete record, ended, by the store's clock;
    /// `None` if it has not ended, or if the store cannot determine its end.
    pub ended_ago: Option<Duration>,
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
            ended_ago: None,
        }
    }

    /// Adds the time since the lease or the ttl ended.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use retryproof_core::FencingToken;
    /// use retryproof_core::store::{RecordState, RecordSummary};
    ///
    /// # let token = FencingToken::new(7);
    /// let ended = Some(Duration::from_secs(252));
    /// let summary =
    ///     RecordSummary::new(RecordState::InProgress, token, None, 0, false).with_end(ended);
    /// assert_eq!(summary.ended_ago, ended);
    /// ```
    #[must_use]
    pub fn with_end(mut self, ended_ago: Option<Duration>) -> Self {
        self.ended_ago = ended_ago;
        self
    }

    /// Adds what the store has recorded about the last grant: its age, the takeovers so far, and
    /// the note about its holder.
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

    /// Returns the time since the last heartbeat, or since the grant if there was no heartbeat;
    /// `None` if the record is complete, or if the length or the end of its lease is unknown.
    #[must_use]
    pub fn last_beat_ago(&self) -> Option<Duration> {
        let lease = self.lease().filter(|_| self.state == RecordState::InProgress)?;
        // Each heartbeat renews the lease to its full length. The time since the last heartbeat is
        // therefore the part of the lease that has passed, and the time since the lease ended.
        match self.remaining {
            Some(left) => Some(lease.saturating_sub(left)),
            None => Some(lease.saturating_add(self.ended_ago?)),
        }
    }

    /// Whether a record in progress lacks heartbeats: its lease is over, or less than half of the
    /// lease is left. A working holder extends the lease to its full length each time half of it
    /// has passed.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let beats_are_missing = match (self.lease(), self.remaining) {
            (Some(lease), Some(left)) => left < lease / 2,
            (None, Some(_)) => false,
            (_, None) => true,
        };
        self.state == RecordState::InProgress && beats_are_missing
    }

    fn lease(&self) -> Option<Duration> {
        self.holder.as_ref().and_then(HolderNote::lease)
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
    /// The bytes that the records occupy, as far as the store can determine.
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

    /// Counts the records. The store may have to scan all records.
    ///
    /// # Errors
    /// The store's errors.
    fn stats(&self) -> impl Future<Output = Result<StoreStats>> + Send;

    /// Describes one page of all records, expired or not (OPS-1). The scan starts at the first
    /// record, or after the cursor that the previous page returned.
    ///
    /// # Behaviour
    /// For each page, the store examines about `limit` records, but at least one, and no more than
    /// its own limit. A page can be empty even if more pages follow; the last page has no cursor.
    ///
    /// A scan returns every record that exists during the whole scan, at least once. A record that
    /// is created, granted again or deleted during the scan may be missing. A store's documentation
    /// says whether a scan can return a record twice. The order of the records depends on the
    /// store.
    ///
    /// The store finds a page by the position of the cursor. The store never counts the records
    /// before the page, and needs no index that only a scan would use.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::OwnerId;

    fn record(state: RecordState, left: Option<u64>, lease: Option<u64>) -> RecordSummary {
        let left = left.map(Duration::from_secs);
        let note = lease
            .map(|lease| HolderNote::new(OwnerId::new(), Duration::from_secs(lease), None, "pod"));
        RecordSummary::new(state, FencingToken::new(7), left, 0, false).with_grant(None, None, note)
    }

    #[test]
    fn ops_2_a_record_is_stuck_if_half_of_its_lease_is_over() {
        let running = RecordState::InProgress;
        assert!(record(running, None, None).is_stuck());
        assert!(record(running, Some(14), Some(30)).is_stuck());
        assert!(!record(running, Some(15), Some(30)).is_stuck());
        assert!(!record(running, Some(1), None).is_stuck(), "the length of the lease is unknown");
        assert!(!record(RecordState::Complete, None, None).is_stuck());
    }

    #[test]
    fn rec_2_the_last_heartbeat_is_as_long_ago_as_the_lease_is_shorter() {
        let ago = |state, left, lease| record(state, left, lease).last_beat_ago();
        let running = RecordState::InProgress;
        assert_eq!(ago(running, Some(12), Some(30)), Some(Duration::from_secs(18)));
        assert_eq!(ago(running, Some(40), Some(30)), Some(Duration::ZERO));
        assert_eq!(ago(running, None, Some(30)), None, "the end of the lease is unknown");
        let ended = |state| record(state, None, Some(30)).with_end(Some(Duration::from_secs(12)));
        assert_eq!(ended(running).last_beat_ago(), Some(Duration::from_secs(42)));
        assert_eq!(ended(RecordState::Complete).last_beat_ago(), None);
        assert_eq!(ago(running, Some(12), None), None);
        assert_eq!(ago(RecordState::Complete, Some(12), Some(30)), None);
    }
}
