// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes the columns of a row. They are bytes, so the driver does not convert them.

use std::str::Split;
use std::sync::Arc;

use retryproof_core::store::HolderNote;
use retryproof_core::{Blob, FencingToken, Fingerprint, OwnerId, Result, StoredResult};
use retryproof_store_kit::{Record, RecordPhase, time_left, unreadable};

/// The `state` of a record whose holder is running or has died.
pub(super) const IN_PROGRESS: i64 = 0;
/// The `state` of a completed record.
pub(super) const COMPLETE: i64 = 1;
/// The `state` of a record that a newer version of the library has released but keeps for its log.
/// Every call treats the record as absent (REC-3).
pub(super) const KEPT: i64 = 2;
/// The owner id that a release writes into a record.
pub(super) const NO_OWNER: OwnerId = OwnerId::from_bytes([0; 16]);

/// Decodes the first column of a record. `value` reads the second column, which holds the result.
/// `value` is `None` for a row with one column, which also lacks the details.
pub(crate) fn decode<'r>(
    first: Option<&'r [u8]>,
    value: Option<impl FnOnce() -> Option<&'r [u8]>>,
) -> Result<Record> {
    let mut head = Head::of(first)?;
    let state = head.number("state")?;
    let (token, takeovers, left) = head.grant()?;
    let left = time_left(left);
    let (fingerprint, holder) = if value.is_some() { head.details()? } else { (None, None) };
    let fingerprint = fingerprint_of(fingerprint)?;
    let phase = match (state, left, value) {
        (IN_PROGRESS, _, _) if head.owner == NO_OWNER => RecordPhase::Released,
        (IN_PROGRESS, left, _) => RecordPhase::InProgress(left),
        (COMPLETE, Some(left), Some(value)) => {
            RecordPhase::Complete(Some((stored_result(value(), fingerprint)?, left)))
        }
        (COMPLETE, _, _) => RecordPhase::Complete(None),
        (KEPT, _, _) => RecordPhase::Released,
        _ => return Err(unreadable("state")),
    };
    Ok(Record { owner: head.owner, token, takeovers, holder, fingerprint, phase })
}

/// The first column of a row: the owner, numbers, and the details.
pub(super) struct Head<'r> {
    pub(super) owner: OwnerId,
    numbers: Split<'r, char>,
    details: &'r [u8],
}

impl<'r> Head<'r> {
    pub(super) fn of(column: Option<&'r [u8]>) -> Result<Self> {
        let read = || {
            let (owner, rest) = column?.split_first_chunk()?;
            let end = rest.iter().position(|&byte| byte == b';').unwrap_or(rest.len());
            let numbers = str::from_utf8(&rest[..end]).ok()?.split(',');
            let details = rest.get(end + 1..).unwrap_or_default();
            Some(Self { owner: OwnerId::from_bytes(*owner), numbers, details })
        };
        read().ok_or_else(|| unreadable("owner"))
    }

    /// Reads the next number; the error names `field`.
    pub(super) fn number(&mut self, field: &'static str) -> Result<i64> {
        let digits = self.numbers.next().and_then(|digits| digits.parse().ok());
        digits.ok_or_else(|| unreadable(field))
    }

    /// Reads the token, the number of takeovers, and the microseconds left in the lease or the ttl,
    /// which are not positive if it has ended.
    pub(super) fn grant(&mut self) -> Result<(FencingToken, u16, i64)> {
        let token = u64::try_from(self.number("token")?).map_err(|_| unreadable("token"))?;
        let takeovers = u16::try_from(self.number("takeovers")?);
        let takeovers = takeovers.map_err(|_| unreadable("takeovers"))?;
        Ok((FencingToken::new(token), takeovers, self.number("expires_at")?))
    }

    /// Reads the bytes of the fingerprint, and the holder note. Ignores a note that belongs to an
    /// earlier grant or cannot be read (REC-2).
    pub(super) fn details(&mut self) -> Result<(Option<&'r [u8]>, Option<HolderNote>)> {
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
pub(super) fn stored_result(
    column: Option<&[u8]>,
    fingerprint: Option<Fingerprint>,
) -> Result<StoredResult> {
    match column {
        Some(bytes) => Ok(StoredResult::new(Blob::from(Arc::<[u8]>::from(bytes)), fingerprint)),
        None => Err(unreadable("result")),
    }
}

pub(super) fn fingerprint_of(bytes: Option<&[u8]>) -> Result<Option<Fingerprint>> {
    bytes.map(Fingerprint::new).transpose().map_err(|_| unreadable("fp"))
}
