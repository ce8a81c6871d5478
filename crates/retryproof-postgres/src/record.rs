// SPDX-License-Identifier: MIT OR Apache-2.0
//! A row read strictly: whatever we did not write fails closed and stays where it is (CMP-8).

pub(crate) mod hash;

use std::time::Duration;

use retryproof_core::{Error, FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use sqlx_core::row::Row as _;
use sqlx_core::value::ValueRef as _;
use sqlx_postgres::PgRow;

/// `state` of a record whose holder is at work, or died.
pub(crate) const IN_PROGRESS: i16 = 0;
/// `state` of a record whose work is done.
pub(crate) const COMPLETE: i16 = 1;

/// What a row says, judged by the server's clock as it was read.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) phase: Phase,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// In progress; `None` when the lease is over.
    Running(Option<Duration>),
    /// Complete; `None` when the ttl is over, or the value was not asked for.
    Done(Option<(StoredResult, Duration)>),
}

/// The answer to an acquire.
pub(crate) enum Answer {
    Granted {
        token: FencingToken,
        took_over: bool,
    },
    /// What was there was not live, and another was quicker.
    Lost,
    Found(Option<Record>),
}

impl Answer {
    pub(crate) fn read(row: &PgRow) -> Result<Self> {
        match column::<Option<i64>>(row, 6, "token")? {
            // Its ttl ended while it was read. A look tells a value that was never there.
            None | Some(0)
                if column::<Option<i16>>(row, 0, "state")? == Some(COMPLETE) && is_over(row)? =>
            {
                Ok(Self::Lost)
            }
            None => Record::read(row).map(Self::Found),
            // Of a state that we never wrote nothing is granted, and it is told.
            Some(0) if column::<Option<i16>>(row, 0, "state")?.is_some() => {
                Record::read(row).map(|_| Self::Lost)
            }
            Some(0) => Ok(Self::Lost),
            Some(granted) => Ok(Self::Granted {
                token: FencingToken::new(granted.unsigned_abs()),
                took_over: granted < 0,
            }),
        }
    }
}

impl Record {
    /// Reads a row; `None` for the residue of a release.
    pub(crate) fn read(row: &PgRow) -> Result<Option<Self>> {
        let owner: [u8; 16] = column(row, 1, "owner")?;
        let rest = rest(row)?;
        let phase = match column::<i16>(row, 0, "state")? {
            IN_PROGRESS if owner == [0; 16] => return Ok(None),
            IN_PROGRESS => Phase::Running(rest),
            COMPLETE => Phase::Done(match rest {
                Some(rest) => value(row)?.map(|stored| (stored, rest)),
                None => None,
            }),
            _ => return Err(unreadable("state")),
        };
        Ok(Some(Self { owner: OwnerId::from_bytes(owner), token: token(row)?, phase }))
    }
}

/// Whether the value was left out, for its ttl is over.
fn is_over(row: &PgRow) -> Result<bool> {
    row.try_get_raw(5).map(|value| value.is_null()).map_err(|_| unreadable("result"))
}

pub(crate) fn token(row: &PgRow) -> Result<FencingToken> {
    let token: i64 = column(row, 2, "token")?;
    u64::try_from(token).map(FencingToken::new).map_err(|_| unreadable("token"))
}

/// What is left of the lease or the retention.
pub(crate) fn rest(row: &PgRow) -> Result<Option<Duration>> {
    let rest: i64 = column(row, 3, "expires_at")?;
    Ok(u64::try_from(rest).ok().filter(|&us| us > 0).map(Duration::from_micros))
}

/// The stored value, unopened; a standing has no such columns.
fn value(row: &PgRow) -> Result<Option<StoredResult>> {
    if row.len() < 6 {
        return Ok(None);
    }
    let fingerprint = column::<Option<Vec<u8>>>(row, 4, "fp")?
        .map(|bytes| Fingerprint::new(&bytes).map_err(|_| unreadable("fp")))
        .transpose()?;
    let bytes: Vec<u8> = column(row, 5, "result")?;
    Ok(Some(StoredResult::new(bytes, fingerprint)))
}

pub(crate) fn column<T>(row: &PgRow, at: usize, name: &'static str) -> Result<T>
where
    T: for<'r> sqlx_core::decode::Decode<'r, sqlx_postgres::Postgres>
        + sqlx_core::types::Type<sqlx_postgres::Postgres>,
{
    row.try_get(at).map_err(|_| unreadable(name))
}

pub(crate) fn unreadable(column: &'static str) -> Error {
    Error::corrupt(
        "the row of the record holds what this version does not write; look at it, or delete it by hand",
    )
    .with("column", column)
}
