// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes rows strictly. A row that the store could not have written causes an error and stays
//! unchanged (CMP-8).

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, LiveLease, RecordState, RecordSummary};
use retryproof_core::{Result, StoredResult};
use retryproof_store_kit::{Record, RecordPhase, time_left, time_since_end, unreadable};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

mod columns;

use columns::{COMPLETE, Head, IN_PROGRESS, KEPT, NO_OWNER, fingerprint_of, stored_result};

/// The status of a record for a caller that does not hold it.
pub(crate) enum RecordStatus {
    Complete(StoredResult),
    Busy(LiveLease),
    /// There is no record, or the record has expired or was released. If a row still exists, the
    /// value is the row's last lease, with no time left.
    Absent(Option<LiveLease>),
}

impl RecordStatus {
    /// Returns the record's status for the caller that sent `req`.
    pub(crate) fn of(record: Option<Record>, req: &AcquireRequest) -> Self {
        let Some(Record { token, holder, fingerprint, phase, .. }) = record else {
            return Self::Absent(None);
        };
        match phase {
            RecordPhase::Complete(Some((stored, _))) => Self::Complete(stored.with_holder(holder)),
            RecordPhase::InProgress(Some(remaining)) => {
                let lease = LiveLease::new(remaining, token).with_holder(holder);
                Self::Busy(lease.with_mismatch(req.differs_from(fingerprint.as_ref())))
            }
            RecordPhase::InProgress(None) | RecordPhase::Complete(None) | RecordPhase::Released => {
                Self::Absent(Some(LiveLease::new(Duration::ZERO, token).with_holder(holder)))
            }
        }
    }
}

/// Reads a row that `Enter`, `Grant`, `Find` or `Peek` has returned.
pub(crate) fn read_record(row: &MySqlRow) -> Result<Record> {
    // A row of one column comes from `Peek`, which does not return the details.
    columns::decode(bytes(row, 0), (row.len() > 1).then_some(|| bytes(row, 1)))
}

/// Reads a row that `Replay` has returned.
pub(crate) fn read_replay(row: &MySqlRow) -> Result<StoredResult> {
    let (fingerprint, holder) = Head::of(bytes(row, 0))?.details()?;
    let stored = stored_result(bytes(row, 1), fingerprint_of(fingerprint)?)?;
    Ok(stored.with_holder(holder))
}

/// Reads a row that `Summary` or `Scan` has returned. Returns `None` for a released record, even if
/// the table still has its row.
pub(crate) fn read_summary(row: &MySqlRow) -> Result<Option<RecordSummary>> {
    let mut head = Head::of(bytes(row, 0))?;
    let state = match head.number("state")? {
        IN_PROGRESS if head.owner == NO_OWNER => return Ok(None),
        IN_PROGRESS => RecordState::InProgress,
        COMPLETE => RecordState::Complete,
        KEPT => return Ok(None),
        _ => return Err(unreadable("state")),
    };
    let (token, takeovers, left) = head.grant()?;
    let (fingerprint, holder) = head.details()?;
    // If the record is in progress, ignore the `bytes` column, because a grant does not clear the
    // length of the former result.
    let value_bytes = match state {
        RecordState::Complete => usize::try_from(integer(row, 1, "bytes")?).unwrap_or(0),
        RecordState::InProgress => 0,
    };
    // A token is the time of its grant in microseconds, or a later time if the server's clock has
    // stepped back (ACQ-10).
    let now = u64::try_from(integer(row, 2, "now")?).unwrap_or(0);
    let granted_ago = Duration::from_micros(now.saturating_sub(token.get()));
    let summary =
        RecordSummary::new(state, token, time_left(left), value_bytes, fingerprint.is_some())
            .with_end(time_since_end(left));
    Ok(Some(summary.with_grant(Some(granted_ago), Some(takeovers), holder)))
}

fn bytes(row: &MySqlRow, at: usize) -> Option<&[u8]> {
    row.try_get(at).ok()
}

/// Reads an integer column; the error names `field`.
pub(crate) fn integer(row: &MySqlRow, at: usize, field: &'static str) -> Result<i64> {
    row.try_get(at).map_err(|_| unreadable(field))
}
