// SPDX-License-Identifier: MIT OR Apache-2.0
//! A row read strictly: whatever we did not write fails closed and stays where it is (CMP-8).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{Blob, Error, FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

/// `state` of a record whose holder is at work, or died.
pub(crate) const IN_PROGRESS: i64 = 0;
/// `state` of a record whose work is done.
pub(crate) const COMPLETE: i64 = 1;
/// The owner of what a release leaves: nobody.
const NOBODY: [u8; 16] = [0; 16];

/// What a row says, judged by the server's clock at the instant of the statement.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    /// Whether its last grant took over an expired lease.
    pub(crate) taken: bool,
    pub(crate) phase: Phase,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// In progress; `None` when the lease is over.
    Running(Option<Duration>),
    /// Complete; `None` when the ttl is over, or the value was not asked for.
    Done(Option<StoredResult>),
    /// Released: counts as absent, and remembers the token (ACQ-10).
    Released,
}

impl Record {
    /// Reads the rows of the statements ENTER, GRANT, FIND and STANDING.
    pub(crate) fn of(row: &MySqlRow) -> Result<Self> {
        let (owner, mut numbers) = head(row).ok_or_else(|| unreadable("owner"))?;
        let mut number = |name| numbers.next().flatten().ok_or_else(|| unreadable(name));
        let state = number("state")?;
        let token = u64::try_from(number("token")?)
            .map(FencingToken::new)
            .map_err(|_| unreadable("token"))?;
        let taken = number("taken")? != 0;
        let left = remaining(number("expires_at")?);
        let phase = match state {
            IN_PROGRESS if owner == NOBODY => Phase::Released,
            IN_PROGRESS => Phase::Running(left),
            COMPLETE if left.is_some() => {
                Phase::Done(if row.len() > 1 { Some(value(row, 1)?) } else { None })
            }
            COMPLETE => Phase::Done(None),
            _ => return Err(unreadable("state")),
        };
        Ok(Self { owner: OwnerId::from_bytes(owner), token, taken, phase })
    }
}

/// What is left by the server's clock, which speaks in microseconds; `None` when it is over.
pub(crate) fn remaining(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().filter(|&us| us > 0).map(Duration::from_micros)
}

/// The first column: the owner's bytes, and the numbers behind it.
fn head(row: &MySqlRow) -> Option<([u8; 16], impl Iterator<Item = Option<i64>>)> {
    let (owner, numbers) = bytes(row, 0)?.split_first_chunk()?;
    Some((*owner, str::from_utf8(numbers).ok()?.split(',').map(|digits| digits.parse().ok())))
}

/// The stored value, unopened, of which `fp` is the first column.
pub(crate) fn value(row: &MySqlRow, fp: usize) -> Result<StoredResult> {
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

/// An integer column; `name` is for the error.
pub(crate) fn integer(row: &MySqlRow, at: usize, name: &'static str) -> Result<i64> {
    row.try_get(at).map_err(|_| unreadable(name))
}

pub(crate) fn unreadable(column: &'static str) -> Error {
    Error::corrupt(
        "the row of the record holds what this version does not write; look at it, or delete it by hand",
    )
    .with("column", column)
}
