// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads stored bytes into a [`Record`] strictly: a row that the store did not write is an error,
//! and stays unchanged (CMP-8).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{Blob, FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use retryproof_store_kit::{Record, RecordPhase, unreadable};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

/// The `state` of a record whose holder is running or has died.
pub(crate) const IN_PROGRESS: i64 = 0;
/// The `state` of a completed record.
pub(crate) const COMPLETE: i64 = 1;
/// The owner of a released record.
const NO_OWNER: [u8; 16] = [0; 16];

/// What a record means to a caller that does not hold it.
pub(crate) enum RecordStatus {
    Complete(StoredResult),
    Busy {
        remaining: Duration,
        token: FencingToken,
    },
    /// The record counts as absent. If its row still exists, this is its last token.
    Absent(Option<FencingToken>),
}

impl RecordStatus {
    pub(crate) fn of(record: Option<Record>) -> Self {
        let Some(Record { token, phase, .. }) = record else { return Self::Absent(None) };
        match phase {
            RecordPhase::Complete(Some((stored, _))) => Self::Complete(stored),
            RecordPhase::InProgress(Some(remaining)) => Self::Busy { remaining, token },
            RecordPhase::InProgress(None) | RecordPhase::Complete(None) | RecordPhase::Released => {
                Self::Absent(Some(token))
            }
        }
    }
}

/// Reads a row that ENTER, GRANT, FIND or PEEK has returned.
pub(crate) fn read_record(row: &MySqlRow) -> Result<Record> {
    read_grant(row).map(|(record, _)| record)
}

/// Like [`read_record`], but also returns whether the last grant took over an expired lease.
pub(crate) fn read_grant(row: &MySqlRow) -> Result<(Record, bool)> {
    let (owner, mut numbers) = head(row).ok_or_else(|| unreadable("owner"))?;
    let mut number = |name| numbers.next().flatten().ok_or_else(|| unreadable(name));
    let state = number("state")?;
    let token =
        u64::try_from(number("token")?).map(FencingToken::new).map_err(|_| unreadable("token"))?;
    let took_over = number("taken")? != 0;
    let phase = match (state, remaining(number("expires_at")?)) {
        (IN_PROGRESS, _) if owner == NO_OWNER => RecordPhase::Released,
        (IN_PROGRESS, left) => RecordPhase::InProgress(left),
        (COMPLETE, Some(left)) if row.len() > 1 => {
            RecordPhase::Complete(Some((stored_result(row, 1)?, left)))
        }
        (COMPLETE, _) => RecordPhase::Complete(None),
        _ => return Err(unreadable("state")),
    };
    let owner = OwnerId::from_bytes(owner);
    Ok((Record { owner, token, takeovers: took_over.into(), holder: None, phase }, took_over))
}

/// Converts a remaining time, measured in microseconds by the server's clock; `None` if no time is
/// left.
pub(crate) fn remaining(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().filter(|&us| us > 0).map(Duration::from_micros)
}

/// Reads the first column: the owner's bytes, then numbers.
fn head(row: &MySqlRow) -> Option<([u8; 16], impl Iterator<Item = Option<i64>>)> {
    let (owner, numbers) = bytes(row, 0)?.split_first_chunk()?;
    Some((*owner, str::from_utf8(numbers).ok()?.split(',').map(|digits| digits.parse().ok())))
}

/// Reads the fingerprint from the column with the index `fp`, and the stored value, without
/// decoding it, from the next column.
pub(crate) fn stored_result(row: &MySqlRow, fp: usize) -> Result<StoredResult> {
    let fingerprint = match row.try_get::<Option<&[u8]>, _>(fp) {
        Ok(None) => None,
        Ok(Some(bytes)) => Some(Fingerprint::new(bytes).map_err(|_| unreadable("fp"))?),
        Err(_) => return Err(unreadable("fp")),
    };
    match bytes(row, fp + 1) {
        Some(bytes) => Ok(StoredResult::new(Blob::from(Arc::<[u8]>::from(bytes)), fingerprint)),
        None => Err(unreadable("result")),
    }
}

fn bytes(row: &MySqlRow, at: usize) -> Option<&[u8]> {
    row.try_get(at).ok()
}

/// Reads an integer column; the error names `field`.
pub(crate) fn integer(row: &MySqlRow, at: usize, field: &'static str) -> Result<i64> {
    row.try_get(at).map_err(|_| unreadable(field))
}
