// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads rows strictly: a row in a form that the store never writes is an error, and stays
//! unchanged (CMP-8). If an acquire was granted, only the token is read; a negative token marks a
//! takeover.

pub(crate) mod hash;

use std::time::Duration;

use retryproof_core::store::HolderNote;
use retryproof_core::{FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use retryproof_store_kit::{Record, RecordPhase, time_left, unreadable};
use sqlx_core::row::Row as _;
use sqlx_core::value::ValueRef as _;
use sqlx_postgres::PgRow;

/// The `state` of a record whose holder is running or has died.
pub(crate) const IN_PROGRESS: i16 = 0;
/// The `state` of a record that has a result.
pub(crate) const COMPLETE: i16 = 1;
/// The `state` of a record that a newer version of the library has released but keeps for its log.
/// Every call treats the record as absent (REC-3).
pub(crate) const KEPT: i16 = 2;
/// The owner id that a release writes into a record.
pub(crate) const NO_OWNER: [u8; 16] = [0; 16];

/// The row that an acquire returns.
#[expect(
    clippy::large_enum_variant,
    reason = "a row is destructured as soon as it is read, so boxing it would cost more than moving it"
)]
pub(crate) enum AcquireRow {
    Granted {
        token: FencingToken,
        took_over: bool,
    },
    /// Nothing was granted, although no live record prevented a grant. Usually, another caller was
    /// faster.
    Conflict,
    Found(Option<Record>),
}

impl AcquireRow {
    pub(crate) fn read(row: &PgRow) -> Result<Self> {
        match column::<Option<i64>>(row, 7, "token")? {
            // The ttl ended while the row was read, so the statement left the value out. If the
            // value is missing for another reason, a later read fails.
            None | Some(0)
                if column::<Option<i16>>(row, 0, "state")? == Some(COMPLETE)
                    && has_no_value(row)? =>
            {
                Ok(Self::Conflict)
            }
            None => read_record(row).map(Self::Found),
            // Nothing was granted. Call `read_record` only to check the row: it fails on a `state`
            // that the store never writes.
            Some(0) if column::<Option<i16>>(row, 0, "state")?.is_some() => {
                read_record(row).map(|_| Self::Conflict)
            }
            Some(0) => Ok(Self::Conflict),
            Some(granted) => Ok(Self::Granted {
                token: FencingToken::new(granted.unsigned_abs()),
                took_over: granted < 0,
            }),
        }
    }
}

/// Reads a row; `None` for a released record, even if it is kept for its log.
pub(crate) fn read_record(row: &PgRow) -> Result<Option<Record>> {
    let state: i16 = column(row, 0, "state")?;
    if state == KEPT {
        return Ok(None);
    }
    let owner: [u8; 16] = column(row, 1, "owner")?;
    let remaining = remaining(row)?;
    let phase = match state {
        IN_PROGRESS if owner == NO_OWNER => return Ok(None),
        IN_PROGRESS => RecordPhase::InProgress(remaining),
        COMPLETE => RecordPhase::Complete(match remaining {
            Some(remaining) => value(row)?.map(|stored| (stored, remaining)),
            None => None,
        }),
        _ => return Err(unreadable("state")),
    };
    let owner = OwnerId::from_bytes(owner);
    let fingerprint = match phase {
        RecordPhase::InProgress(_) if row.len() > 4 => fingerprint(row)?,
        _ => None,
    };
    let (token, holder) = (token(row)?, holder(row, owner));
    // No statement that returns a `Record` reads the count of takeovers.
    Ok(Some(Record { owner, token, takeovers: 0, holder, fingerprint, phase }))
}

/// Returns the note about the owner's grant; `None` if the row has no note, or if the statement
/// does not return it. A note about another grant counts as missing, and so does an unreadable note
/// (REC-2).
pub(crate) fn holder(row: &PgRow, owner: OwnerId) -> Option<HolderNote> {
    let bytes: Option<Vec<u8>> = row.try_get(6).ok()?;
    HolderNote::of_owner(&bytes?, owner)
}

/// Whether the statement left the value out because the ttl is over.
fn has_no_value(row: &PgRow) -> Result<bool> {
    row.try_get_raw(5).map(|value| value.is_null()).map_err(|_| unreadable("result"))
}

pub(crate) fn token(row: &PgRow) -> Result<FencingToken> {
    let token: i64 = column(row, 2, "token")?;
    u64::try_from(token).map(FencingToken::new).map_err(|_| unreadable("token"))
}

/// Returns the time left in the lease or the ttl; `None` if no time is left.
pub(crate) fn remaining(row: &PgRow) -> Result<Option<Duration>> {
    micros_left(row).map(time_left)
}

/// Reads the microseconds left in the lease or the ttl; not positive if it has ended.
pub(crate) fn micros_left(row: &PgRow) -> Result<i64> {
    column(row, 3, "expires_at")
}

/// Reads the stored value without decoding it; `None` if the statement does not return the value.
fn value(row: &PgRow) -> Result<Option<StoredResult>> {
    if row.len() < 6 {
        return Ok(None);
    }
    let bytes: Vec<u8> = column(row, 5, "result")?;
    Ok(Some(StoredResult::new(bytes, fingerprint(row)?)))
}

fn fingerprint(row: &PgRow) -> Result<Option<Fingerprint>> {
    let bytes: Option<Vec<u8>> = column(row, 4, "fp")?;
    bytes.map(|bytes| Fingerprint::new(&bytes).map_err(|_| unreadable("fp"))).transpose()
}

pub(crate) fn column<T>(row: &PgRow, at: usize, name: &'static str) -> Result<T>
where
    T: for<'r> sqlx_core::decode::Decode<'r, sqlx_postgres::Postgres>
        + sqlx_core::types::Type<sqlx_postgres::Postgres>,
{
    row.try_get(at).map_err(|_| unreadable(name))
}
