// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes rows strictly. A row that the store could not have written causes an error and stays
//! unchanged (CMP-8).

use std::str::Split;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, HolderNote, LiveLease, RecordState, RecordSummary};
use retryproof_core::{Blob, FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use retryproof_store_kit::{Record, RecordPhase, unreadable};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

/// The `state` of a record whose holder is running or has died.
const IN_PROGRESS: i64 = 0;
/// The `state` of a completed record.
const COMPLETE: i64 = 1;
/// The `state` of a record that a newer version of the library has released but keeps for its log.
/// Every call treats the record as absent (REC-3).
const KEPT: i64 = 2;
/// The owner id that a release writes into a record.
const NO_OWNER: OwnerId = OwnerId::from_bytes([0; 16]);

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
    let mut head = Head::of(row)?;
    let state = head.number("state")?;
    let (token, takeovers, left) = head.grant()?;
    // A row of one column comes from `Peek`, which does not return the details.
    let (fingerprint, holder) = if row.len() > 1 { head.details()? } else { (None, None) };
    let fingerprint = fingerprint_of(fingerprint)?;
    let phase = match (state, left) {
        (IN_PROGRESS, _) if head.owner == NO_OWNER => RecordPhase::Released,
        (IN_PROGRESS, left) => RecordPhase::InProgress(left),
        (COMPLETE, Some(left)) if row.len() > 1 => {
            RecordPhase::Complete(Some((stored_result(row, fingerprint)?, left)))
        }
        (COMPLETE, _) => RecordPhase::Complete(None),
        (KEPT, _) => RecordPhase::Released,
        _ => return Err(unreadable("state")),
    };
    Ok(Record { owner: head.owner, token, takeovers, holder, fingerprint, phase })
}

/// Reads a row that `Replay` has returned.
pub(crate) fn read_replay(row: &MySqlRow) -> Result<StoredResult> {
    let (fingerprint, holder) = Head::of(row)?.details()?;
    Ok(stored_result(row, fingerprint_of(fingerprint)?)?.with_holder(holder))
}

/// Reads a row that `Summary` or `Scan` has returned. Returns `None` for a released record, even if
/// the table still has its row.
pub(crate) fn read_summary(row: &MySqlRow) -> Result<Option<RecordSummary>> {
    let mut head = Head::of(row)?;
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
    let summary = RecordSummary::new(state, token, left, value_bytes, fingerprint.is_some());
    Ok(Some(summary.with_grant(Some(granted_ago), Some(takeovers), holder)))
}

/// The first column of a row: the owner, numbers, and the details.
struct Head<'r> {
    owner: OwnerId,
    numbers: Split<'r, char>,
    details: &'r [u8],
}

impl<'r> Head<'r> {
    fn of(row: &'r MySqlRow) -> Result<Self> {
        let read = || {
            let (owner, rest) = bytes(row, 0)?.split_first_chunk()?;
            let end = rest.iter().position(|&byte| byte == b';').unwrap_or(rest.len());
            let numbers = str::from_utf8(&rest[..end]).ok()?.split(',');
            let details = rest.get(end + 1..).unwrap_or_default();
            Some(Self { owner: OwnerId::from_bytes(*owner), numbers, details })
        };
        read().ok_or_else(|| unreadable("owner"))
    }

    /// Reads the next number; the error names `field`.
    fn number(&mut self, field: &'static str) -> Result<i64> {
        let digits = self.numbers.next().and_then(|digits| digits.parse().ok());
        digits.ok_or_else(|| unreadable(field))
    }

    /// Reads the token, the number of takeovers, and the time left in the lease or the ttl. The
    /// time is `None` if the lease or the ttl has ended.
    fn grant(&mut self) -> Result<(FencingToken, u16, Option<Duration>)> {
        let token = u64::try_from(self.number("token")?).map_err(|_| unreadable("token"))?;
        let takeovers = u16::try_from(self.number("takeovers")?);
        let takeovers = takeovers.map_err(|_| unreadable("takeovers"))?;
        let left = u64::try_from(self.number("expires_at")?).ok().filter(|&us| us > 0);
        Ok((FencingToken::new(token), takeovers, left.map(Duration::from_micros)))
    }

    /// Reads the bytes of the fingerprint, and the holder note. Ignores a note that belongs to an
    /// earlier grant or cannot be read (REC-2).
    fn details(&mut self) -> Result<(Option<&'r [u8]>, Option<HolderNote>)> {
        let (fingerprint, note) = match usize::try_from(self.number("fp")?) {
            Ok(length) => {
                let (fp, note) =
                    self.details.split_at_checked(length).ok_or_else(|| unreadable("fp"))?;
                (Some(fp), note)
            }
            // The length is negative if there is no fingerprint.
            Err(_) => (None, self.details),
        };
        Ok((fingerprint, HolderNote::of_owner(note, self.owner)))
    }
}

/// Reads the stored value from the second column, without decoding the value.
fn stored_result(row: &MySqlRow, fingerprint: Option<Fingerprint>) -> Result<StoredResult> {
    match bytes(row, 1) {
        Some(bytes) => Ok(StoredResult::new(Blob::from(Arc::<[u8]>::from(bytes)), fingerprint)),
        None => Err(unreadable("result")),
    }
}

fn fingerprint_of(bytes: Option<&[u8]>) -> Result<Option<Fingerprint>> {
    bytes.map(Fingerprint::new).transpose().map_err(|_| unreadable("fp"))
}

fn bytes(row: &MySqlRow, at: usize) -> Option<&[u8]> {
    row.try_get(at).ok()
}

/// Reads an integer column; the error names `field`.
pub(crate) fn integer(row: &MySqlRow, at: usize, field: &'static str) -> Result<i64> {
    row.try_get(at).map_err(|_| unreadable(field))
}
