// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stored bytes to [`Record`], strictly: a row that the store did not write is an error, and stays
//! as it is (CMP-8).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{Blob, FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use retryproof_store_kit::unreadable;
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

/// `state` of a record whose holder runs, or died.
pub(crate) const IN_PROGRESS: i64 = 0;
/// `state` of a completed record.
pub(crate) const COMPLETE: i64 = 1;
/// The owner of a released record.
const NO_OWNER: [u8; 16] = [0; 16];

/// A row, judged by the server's clock when the statement began.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    /// Whether its last grant took over an expired lease.
    pub(crate) took_over: bool,
    pub(crate) phase: RecordPhase,
}

#[derive(Debug)]
pub(crate) enum RecordPhase {
    /// In progress; `None` once the lease has ended.
    InProgress(Option<Duration>),
    /// Complete; `None` once the ttl has ended, or where the statement does not read the value.
    Complete(Option<StoredResult>),
    /// Released: the record counts as absent and keeps its token (ACQ-10).
    Released,
}

/// What a record means to a caller that does not hold it.
pub(crate) enum RecordStatus {
    Complete(StoredResult),
    Busy {
        remaining: Duration,
        token: FencingToken,
    },
    /// The record counts as absent; its last token if the row is still there.
    Absent(Option<FencingToken>),
}

impl RecordStatus {
    pub(crate) fn of(record: Option<Record>) -> Self {
        let Some(Record { token, phase, .. }) = record else { return Self::Absent(None) };
        match phase {
            RecordPhase::Complete(Some(stored)) => Self::Complete(stored),
            RecordPhase::InProgress(Some(remaining)) => Self::Busy { remaining, token },
            RecordPhase::InProgress(None) | RecordPhase::Complete(None) | RecordPhase::Released => {
                Self::Absent(Some(token))
            }
        }
    }
}

impl Record {
    /// Reads a row of the statements ENTER, GRANT, FIND and PEEK.
    pub(crate) fn of(row: &MySqlRow) -> Result<Self> {
        let (owner, mut numbers) = head(row).ok_or_else(|| unreadable("owner"))?;
        let mut number = |name| numbers.next().flatten().ok_or_else(|| unreadable(name));
        let state = number("state")?;
        let token = u64::try_from(number("token")?)
            .map(FencingToken::new)
            .map_err(|_| unreadable("token"))?;
        let took_over = number("taken")? != 0;
        let left = remaining(number("expires_at")?);
        let phase = match state {
            IN_PROGRESS if owner == NO_OWNER => RecordPhase::Released,
            IN_PROGRESS => RecordPhase::InProgress(left),
            COMPLETE if left.is_some() => RecordPhase::Complete(if row.len() > 1 {
                Some(stored_result(row, 1)?)
            } else {
                None
            }),
            COMPLETE => RecordPhase::Complete(None),
            _ => return Err(unreadable("state")),
        };
        Ok(Self { owner: OwnerId::from_bytes(owner), token, took_over, phase })
    }
}

/// The time that is left by the server's clock, from microseconds; `None` once it is over.
pub(crate) fn remaining(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().filter(|&us| us > 0).map(Duration::from_micros)
}

/// The first column: the owner's bytes, then numbers.
fn head(row: &MySqlRow) -> Option<([u8; 16], impl Iterator<Item = Option<i64>>)> {
    let (owner, numbers) = bytes(row, 0)?.split_first_chunk()?;
    Some((*owner, str::from_utf8(numbers).ok()?.split(',').map(|digits| digits.parse().ok())))
}

/// The stored value, unopened, from the column `fp` and the one after it.
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

/// An integer column; an error names `field`.
pub(crate) fn integer(row: &MySqlRow, at: usize, field: &'static str) -> Result<i64> {
    row.try_get(at).map_err(|_| unreadable(field))
}
