// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes rows strictly. A row that the store could not have written causes an error and stays
//! unchanged (CMP-8).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{HolderNote, RecordState, RecordSummary};
use retryproof_core::{Blob, FencingToken, Fingerprint, Identity, OwnerId, Result, StoredResult};
use retryproof_store_kit::{Record, RecordPhase, time_left, time_since_end, unreadable};
use rusqlite::types::ValueRef;
use rusqlite::{Row, Statement};

use crate::error::Failure;

/// The `state` of a record whose holder is running or has died.
const IN_PROGRESS: i64 = 0;
/// The `state` of a record that has a result.
const COMPLETE: i64 = 1;
/// The `state` of a record that a newer version of the library has released but keeps for its log.
/// Every call treats the record as absent (REC-3).
const RELEASED_WITH_LOG: i64 = 2;

/// Reads the record by its key (ID-1, ID-2) with a prepared `Read` or `Peek`. Calls `now` after
/// reading the row, so the time is never older than the row's snapshot.
pub(crate) fn read_record(
    statement: &mut Statement<'_>,
    id: &Identity,
    now: impl FnOnce() -> i64,
) -> Result<Option<Record>, Failure> {
    let mut rows =
        statement.query((id.scope().as_str().as_bytes(), id.key().expose().as_bytes()))?;
    match rows.next()? {
        Some(row) => decode(row, now()).map(Some).map_err(Failure::Store),
        None => Ok(None),
    }
}

fn decode(row: &Row<'_>, now: i64) -> Result<Record> {
    let owner = owner(row)?;
    let token = token(row)?;
    let remaining = remaining(row, now)?;
    let phase = match integer(row, 0, "state")? {
        IN_PROGRESS => RecordPhase::InProgress(remaining),
        COMPLETE => RecordPhase::Complete(match remaining {
            Some(remaining) => value(row)?.map(|stored| (stored, remaining)),
            None => None,
        }),
        RELEASED_WITH_LOG => RecordPhase::Released,
        _ => return Err(unreadable("state")),
    };
    let fingerprint = match phase {
        RecordPhase::InProgress(_) => fingerprint(row)?,
        _ => None,
    };
    let (takeovers, holder) = (takeovers(row)?, holder(row, owner));
    Ok(Record { owner, token, takeovers, holder, fingerprint, phase })
}

/// Describes a row that `Summary` has read; `None` for a released record.
pub(crate) fn summary(row: &Row<'_>, now: i64) -> Result<Option<RecordSummary>> {
    let state = match integer(row, 0, "state")? {
        IN_PROGRESS => RecordState::InProgress,
        COMPLETE => RecordState::Complete,
        RELEASED_WITH_LOG => return Ok(None),
        _ => return Err(unreadable("state")),
    };
    let token = token(row)?;
    let has_fingerprint = integer(row, 6, "fp")? != 0;
    let bytes = usize::try_from(integer(row, 7, "result")?).unwrap_or(0);
    // A token is the time of its grant, unless the clock has stepped back (ACQ-10).
    let granted_ago = u64::try_from(now).unwrap_or(0).saturating_sub(token.get());
    let summary = RecordSummary::new(state, token, remaining(row, now)?, bytes, has_fingerprint);
    let summary = summary.with_end(time_since_end(micros_left(row, now)?));
    Ok(Some(summary.with_grant(
        Some(Duration::from_micros(granted_ago)),
        Some(takeovers(row)?),
        holder(row, owner(row)?),
    )))
}

fn owner(row: &Row<'_>) -> Result<OwnerId> {
    match column(row, 1) {
        Some(ValueRef::Blob(bytes)) => bytes.try_into().ok(),
        _ => None,
    }
    .map(OwnerId::from_bytes)
    .ok_or_else(|| unreadable("owner"))
}

fn token(row: &Row<'_>) -> Result<FencingToken> {
    let token = integer(row, 2, "token")?;
    u64::try_from(token).map(FencingToken::new).map_err(|_| unreadable("token"))
}

/// Returns the time left in the lease or the ttl; `None` if no time is left.
fn remaining(row: &Row<'_>, now: i64) -> Result<Option<Duration>> {
    micros_left(row, now).map(time_left)
}

/// Returns the microseconds left in the lease or the ttl; not positive if it has ended.
fn micros_left(row: &Row<'_>, now: i64) -> Result<i64> {
    Ok(integer(row, 3, "expires_at")?.saturating_sub(now))
}

/// Converts a duration to microseconds, rounded up, so no lease ends early.
pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// Returns the count of takeovers; 0 for `Peek`, which does not read the count.
fn takeovers(row: &Row<'_>) -> Result<u16> {
    match column(row, 4) {
        None => Ok(0),
        Some(ValueRef::Integer(count)) => u16::try_from(count).map_err(|_| unreadable("takeovers")),
        Some(_) => Err(unreadable("takeovers")),
    }
}

/// Returns the holder note. If the column contains other bytes, or the note of an earlier grant,
/// returns `None` instead of an error (REC-2).
fn holder(row: &Row<'_>, owner: OwnerId) -> Option<HolderNote> {
    match column(row, 5) {
        Some(ValueRef::Blob(note)) => HolderNote::of_owner(note, owner),
        _ => None,
    }
}

/// Returns the stored value without decoding it; `None` for `Peek`, which does not read the value.
fn value(row: &Row<'_>) -> Result<Option<StoredResult>> {
    match column(row, 7) {
        None => Ok(None),
        Some(ValueRef::Blob(bytes)) => {
            Ok(Some(StoredResult::new(Blob::from(Arc::<[u8]>::from(bytes)), fingerprint(row)?)))
        }
        Some(_) => Err(unreadable("result")),
    }
}

/// Returns the fingerprint; `None` for `Peek`, which does not read the fingerprint.
fn fingerprint(row: &Row<'_>) -> Result<Option<Fingerprint>> {
    match column(row, 6) {
        None | Some(ValueRef::Null) => Ok(None),
        Some(ValueRef::Blob(bytes)) => {
            Fingerprint::new(bytes).map(Some).map_err(|_| unreadable("fp"))
        }
        Some(_) => Err(unreadable("fp")),
    }
}

fn column<'r>(row: &'r Row<'_>, at: usize) -> Option<ValueRef<'r>> {
    row.get_ref(at).ok()
}

fn integer(row: &Row<'_>, at: usize, name: &'static str) -> Result<i64> {
    match column(row, at) {
        Some(ValueRef::Integer(value)) => Ok(value),
        _ => Err(unreadable(name)),
    }
}
