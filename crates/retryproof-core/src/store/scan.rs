// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ScanPage`] and [`ScanCursor`]: a scan returns all records of a store page by page (OPS-1).
//! [`RecordFilter`] and [`ScopeStats`] work on the pages of every store (OPS-2).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{HolderNote, RecordState, RecordSummary};
use crate::identity::{Identity, Scope};

/// The position at which a scan continues. Only the store that returned a cursor can read it.
/// Another store may refuse the cursor as `Invalid`, or continue at the wrong record.
///
/// The bytes of a cursor can contain a key, so `Debug` prints only their number (ID-4).
#[derive(Clone, PartialEq, Eq)]
pub struct ScanCursor(Box<[u8]>);

impl ScanCursor {
    /// Creates a cursor from the bytes of an earlier cursor, or from other bytes that the store can
    /// read.
    #[must_use]
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes, so that the scan can continue later or in another process.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for ScanCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScanCursor({} bytes)", self.0.len())
    }
}

/// A record that a scan has found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScannedRecord {
    /// The record's identity.
    pub id: Identity,
    /// The record without its value.
    pub summary: RecordSummary,
}

impl ScannedRecord {
    /// Creates a record for a store to return.
    #[must_use]
    pub fn new(id: Identity, summary: RecordSummary) -> Self {
        Self { id, summary }
    }
}

/// One page of a scan. A page can be empty even if more pages follow.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ScanPage {
    /// The records, expired or not.
    pub records: Vec<ScannedRecord>,
    /// The number of records that this version cannot read (CMP-8).
    pub unreadable: u64,
    /// Where the next page starts; `None` after the last page.
    pub next: Option<ScanCursor>,
}

impl ScanPage {
    /// Creates a page for a store to return.
    #[must_use]
    pub fn new(records: Vec<ScannedRecord>, unreadable: u64, next: Option<ScanCursor>) -> Self {
        Self { records, unreadable, next }
    }
}

/// Selects records of a scan. A filter without conditions selects all of them.
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::Scope;
/// use retryproof_core::store::{RecordFilter, RecordState};
///
/// let stuck = RecordFilter::new()
///     .with_scope(Scope::new("payments")?)
///     .with_state(RecordState::InProgress)
///     .with_older_than(Duration::from_secs(600));
/// # let _ = stuck;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct RecordFilter {
    scope: Option<Scope>,
    state: Option<RecordState>,
    older_than: Option<Duration>,
    holder: Option<String>,
}

impl RecordFilter {
    /// Creates a filter that selects all records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects only records of this scope.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Selects only records in this state.
    #[must_use]
    pub fn with_state(mut self, state: RecordState) -> Self {
        self.state = Some(state);
        self
    }

    /// Selects only records whose last grant is at least this long ago. The filter leaves out a
    /// record of unknown age.
    #[must_use]
    pub fn with_older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Selects only records whose holder's label contains this text. The filter leaves out a record
    /// without a readable note.
    #[must_use]
    pub fn with_holder(mut self, text: impl Into<String>) -> Self {
        self.holder = Some(text.into());
        self
    }

    /// Whether the filter selects the record.
    #[must_use]
    pub fn selects(&self, record: &ScannedRecord) -> bool {
        let summary = &record.summary;
        let label = || summary.holder.as_ref().and_then(HolderNote::label);
        self.scope.as_ref().is_none_or(|scope| scope == record.id.scope())
            && self.state.is_none_or(|state| state == summary.state)
            && self.older_than.is_none_or(|age| summary.granted_ago.is_some_and(|ago| ago >= age))
            && self
                .holder
                .as_ref()
                .is_none_or(|text| label().is_some_and(|label| label.contains(text.as_str())))
    }
}

/// The record counts of one scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeCounts {
    /// How many records are in progress, including those whose lease is over.
    pub in_progress: u64,
    /// The number of records in progress whose lease is over. The next acquire of the key takes
    /// such a record over.
    pub abandoned: u64,
    /// How many records are complete, including those past their ttl.
    pub complete: u64,
    /// How many complete records are past their ttl.
    pub expired: u64,
    /// The bytes of all stored values with their envelopes.
    pub value_bytes: u64,
    /// The longest time since any record's last grant. Records of unknown age are left out.
    pub oldest: Option<Duration>,
}

/// Counts the records of each scope, from the pages of a scan.
///
/// To show progress or to stop early, add the pages of a scan one by one.
/// [`SharedStore::stats_by_scope`](super::SharedStore::stats_by_scope) adds all pages in one call.
#[derive(Debug, Clone, Default)]
pub struct ScopeStats {
    scopes: BTreeMap<String, ScopeCounts>,
    unreadable: u64,
}

impl ScopeStats {
    /// Creates empty counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the records of a page.
    pub fn add(&mut self, page: &ScanPage) {
        self.unreadable += page.unreadable;
        for record in &page.records {
            let scope = record.id.scope().as_str();
            // Try `get_mut` before `entry`, which needs an owned copy of the name. Almost every
            // record's scope is already in the map.
            let counts = match self.scopes.get_mut(scope) {
                Some(counts) => counts,
                None => self.scopes.entry(scope.to_owned()).or_default(),
            };
            counts.add(&record.summary);
        }
    }

    /// Returns each scope with its counts, ordered by the bytes of the scope.
    pub fn scopes(&self) -> impl Iterator<Item = (&str, &ScopeCounts)> {
        self.scopes.iter().map(|(scope, counts)| (scope.as_str(), counts))
    }

    /// Returns the number of records that this version cannot read.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

impl ScopeCounts {
    fn add(&mut self, summary: &RecordSummary) {
        let is_over = u64::from(summary.remaining.is_none());
        match summary.state {
            RecordState::InProgress => {
                self.in_progress += 1;
                self.abandoned += is_over;
            }
            RecordState::Complete => {
                self.complete += 1;
                self.expired += is_over;
            }
        }
        self.value_bytes += summary.value_bytes as u64;
        self.oldest = self.oldest.max(summary.granted_ago);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::{FencingToken, OwnerId};

    fn record(scope: &str, state: RecordState, ago: Option<u64>, label: &str) -> ScannedRecord {
        let id = Identity::of(Scope::new(scope).unwrap(), "key").unwrap();
        let note = HolderNote::new(OwnerId::new(), Duration::from_secs(30), None, label);
        let left = (state == RecordState::Complete).then_some(Duration::from_secs(9));
        let summary = RecordSummary::new(state, FencingToken::new(1), left, 100, false).with_grant(
            ago.map(Duration::from_secs),
            Some(0),
            Some(note),
        );
        ScannedRecord::new(id, summary)
    }

    #[test]
    fn ops_2_a_filter_selects_by_every_condition() {
        let dead = record("pay", RecordState::InProgress, Some(60), "api-7:41");
        let done = record("pay", RecordState::Complete, None, "");
        let all = RecordFilter::new();
        assert!(all.selects(&dead) && all.selects(&done));

        let scope = |scope: &str| RecordFilter::new().with_scope(Scope::new(scope).unwrap());
        assert!(scope("pay").selects(&dead) && !scope("Pay").selects(&dead));
        let running = RecordFilter::new().with_state(RecordState::InProgress);
        assert!(running.selects(&dead) && !running.selects(&done));
        let older = |secs| RecordFilter::new().with_older_than(Duration::from_secs(secs));
        assert!(older(60).selects(&dead) && !older(61).selects(&dead));
        assert!(!older(0).selects(&done), "a record of unknown age should not be selected");
        let holder = |text: &str| RecordFilter::new().with_holder(text);
        assert!(holder("api-7").selects(&dead) && !holder("api-8").selects(&dead));
        assert!(!holder("api").selects(&done));
        // A record must meet all conditions.
        assert!(!scope("pay").with_state(RecordState::Complete).selects(&dead));
    }

    #[test]
    fn ops_2_scopes_are_counted_over_pages() {
        let mut stats = ScopeStats::new();
        let dead = record("pay", RecordState::InProgress, Some(60), "");
        let done = record("pay", RecordState::Complete, Some(70), "");
        let other = record("mail", RecordState::Complete, None, "");
        stats.add(&ScanPage::new(vec![dead, other], 2, Some(ScanCursor::new(*b"x"))));
        stats.add(&ScanPage::default());
        stats.add(&ScanPage::new(vec![done], 1, None));
        assert_eq!(stats.unreadable(), 3);
        let seen: Vec<_> = stats.scopes().collect();
        let mail = ScopeCounts { complete: 1, value_bytes: 100, ..ScopeCounts::default() };
        let pay = ScopeCounts {
            in_progress: 1,
            abandoned: 1,
            complete: 1,
            expired: 0,
            value_bytes: 200,
            oldest: Some(Duration::from_secs(70)),
        };
        assert_eq!(seen, [("mail", &mail), ("pay", &pay)]);
    }

    #[test]
    fn id_4_a_cursor_prints_no_key() {
        let text = format!("{:?}", ScanCursor::new(*b"canary"));
        assert_eq!(text, "ScanCursor(6 bytes)");
    }
}
