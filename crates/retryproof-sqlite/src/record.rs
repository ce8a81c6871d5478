// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes rows strictly: a row that the store did not write is reported as an error and left
//! unchanged (CMP-8).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{
    Blob, Error, FencingToken, Fingerprint, Identity, OwnerId, Result, StoredResult,
};
use retryproof_store_kit::{Record, RecordPhase, unreadable};
use rusqlite::types::ValueRef;
use rusqlite::{Row, Statement};

use crate::error::classify;

/// `state` of a record whose holder is running or has died.
pub(crate) const IN_PROGRESS: i64 = 0;
/// `state` of a record that has a result.
pub(crate) const COMPLETE: i64 = 1;

/// Why a read failed.
pub(crate) enum ReadError {
    /// An error from SQLite. If the file is locked, a retry may succeed.
    Driver(rusqlite::Error),
    /// The row holds a value that the store does not write.
    Record(Error),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Driver(error)
    }
}

impl ReadError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Driver(error) => classify(error),
            Self::Record(error) => error,
        }
    }
}

/// Reads the record by its key (ID-1, ID-2) with a prepared `Read` or `Peek`. `now` is called after
/// the row is read, so that expiry is never judged by a time from before the row's snapshot.
pub(crate) fn read_record(
    statement: &mut Statement<'_>,
    id: &Identity,
    now: impl FnOnce() -> i64,
) -> Result<Option<Record>, ReadError> {
    let mut rows =
        statement.query((id.scope().as_str().as_bytes(), id.key().expose().as_bytes()))?;
    match rows.next()? {
        Some(row) => decode(row, now()).map(Some).map_err(ReadError::Record),
        None => Ok(None),
    }
}

fn decode(row: &Row<'_>, now: i64) -> Result<Record> {
    let owner = match column(row, 1) {
        Some(ValueRef::Blob(bytes)) => bytes.try_into().ok(),
        _ => None,
    }
    .map(OwnerId::from_bytes)
    .ok_or_else(|| unreadable("owner"))?;
    let token = integer(row, 2, "token")?;
    let token = u64::try_from(token).map(FencingToken::new).map_err(|_| unreadable("token"))?;
    let remaining = integer(row, 3, "expires_at")?.saturating_sub(now);
    let remaining = u64::try_from(remaining).ok().filter(|&us| us > 0).map(Duration::from_micros);
    let phase = match integer(row, 0, "state")? {
        IN_PROGRESS => RecordPhase::InProgress(remaining),
        COMPLETE => RecordPhase::Complete(match remaining {
            Some(remaining) => value(row)?.map(|stored| (stored, remaining)),
            None => None,
        }),
        _ => return Err(unreadable("state")),
    };
    Ok(Record { owner, token, takeovers: 0, holder: None, phase })
}

/// Returns the stored value without opening it; `None` for `Peek`, which does not read the value.
fn value(row: &Row<'_>) -> Result<Option<StoredResult>> {
    let Some(fingerprint) = column(row, 4) else { return Ok(None) };
    let fingerprint = match fingerprint {
        ValueRef::Null => None,
        ValueRef::Blob(bytes) => Some(Fingerprint::new(bytes).map_err(|_| unreadable("fp"))?),
        _ => return Err(unreadable("fp")),
    };
    match column(row, 5) {
        Some(ValueRef::Blob(bytes)) => {
            Ok(Some(StoredResult::new(Blob::from(Arc::<[u8]>::from(bytes)), fingerprint)))
        }
        _ => Err(unreadable("result")),
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
