// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes stored bytes strictly: a value that the store did not write is reported as an error and
//! left unchanged (CMP-8). A record is one string:
//!
//! | bytes | |
//! |---|---|
//! | 3 | `rp1`: written by this store, version 1 |
//! | 1 | `P`: in progress; `T`: in progress after a takeover (ACQ-12); `C`: complete; `R`: released, counts as absent but keeps the last token |
//! | 16 | owner |
//! | 16 | token, decimal digits |
//! | 13 | grace in ms, decimal digits: how long the record outlives its lease (CMP-2, STO-4); the lease has `PTTL - grace` left |
//! | 2 | length of the fingerprint, decimal digits |
//! | 0..=64 | fingerprint |
//! | rest | the value's envelope, if complete |
//!
//! The scripts in `scripts` read and write the same header.

use std::time::Duration;

use retryproof_core::{
    Blob, FencingToken, Fingerprint, Identity, MAX_FINGERPRINT_BYTES, OwnerId, Result, StoredResult,
};
use retryproof_store_kit::unreadable;

/// The number of bytes before the fingerprint.
pub(crate) const HEADER: usize = 51;
const MAGIC: &[u8] = b"rp1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderPhase {
    InProgress,
    Complete,
    /// The record counts as absent and keeps its token (ACQ-10).
    Released,
}

/// The part of a record before the fingerprint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) phase: HeaderPhase,
    pub(crate) token: FencingToken,
    grace: u64,
    fingerprint: usize,
}

impl Header {
    pub(crate) fn read(value: &[u8]) -> Result<Self> {
        let Some(head) = value.get(..HEADER) else { return Err(unreadable("length")) };
        if !head.starts_with(MAGIC) {
            return Err(unreadable("version"));
        }
        let phase = match head[3] {
            b'P' | b'T' => HeaderPhase::InProgress,
            b'C' => HeaderPhase::Complete,
            b'R' => HeaderPhase::Released,
            _ => return Err(unreadable("state")),
        };
        let fingerprint = usize::try_from(decimal(&head[49..51], "fingerprint")?)
            .ok()
            .filter(|&length| length <= MAX_FINGERPRINT_BYTES)
            .ok_or_else(|| unreadable("fingerprint"))?;
        Ok(Self {
            phase,
            token: FencingToken::new(decimal(&head[20..36], "token")?),
            grace: decimal(&head[36..49], "grace")?,
            fingerprint,
        })
    }

    /// Returns the time left in the lease if the key has `pttl` ms to live; `None` once the lease
    /// has ended.
    pub(crate) fn remaining(&self, pttl: i64) -> Option<Duration> {
        let left = u64::try_from(pttl).ok()?.checked_sub(self.grace)?;
        (left > 0).then(|| Duration::from_millis(left))
    }

    pub(crate) fn has_fingerprint(&self) -> bool {
        self.fingerprint > 0
    }

    /// The offset of the value's envelope.
    pub(crate) fn value_at(&self) -> usize {
        HEADER + self.fingerprint
    }
}

/// Returns the value of a complete record without opening or copying it.
pub(crate) fn stored_result(header: &Header, value: Vec<u8>) -> Result<StoredResult> {
    let at = header.value_at();
    let Some(fingerprint) = value.get(HEADER..at) else { return Err(unreadable("fingerprint")) };
    let fingerprint = match fingerprint {
        [] => None,
        bytes => Some(Fingerprint::new(bytes).map_err(|_| unreadable("fingerprint"))?),
    };
    Ok(StoredResult::new(Blob::from(value).skip(at), fingerprint))
}

/// The part of a header after the token: grace and fingerprint.
pub(crate) fn tail(grace: u64, fingerprint: Option<&Fingerprint>) -> Vec<u8> {
    let mut tail = Vec::with_capacity(15 + MAX_FINGERPRINT_BYTES);
    add_tail(&mut tail, grace, fingerprint);
    tail
}

fn add_tail(to: &mut Vec<u8>, grace: u64, fingerprint: Option<&Fingerprint>) {
    let bytes = fingerprint.map_or(&[][..], Fingerprint::as_bytes);
    to.extend_from_slice(&padded::<13>(grace));
    to.extend_from_slice(&padded::<2>(bytes.len() as u64));
    to.extend_from_slice(bytes);
}

/// The only argument of the acquire script: a new record without its token.
pub(crate) fn acquire_argument(
    px: u64,
    owner: OwnerId,
    grace: u64,
    fingerprint: Option<&Fingerprint>,
) -> Vec<u8> {
    let all = padded::<20>(px);
    let px = &all[all.iter().position(|&digit| digit != b'0').unwrap_or(19)..];
    let mut argument = Vec::with_capacity(64 + MAX_FINGERPRINT_BYTES);
    argument.push(u8::try_from(px.len()).unwrap_or(0));
    argument.extend_from_slice(px);
    argument.extend_from_slice(owner.as_bytes());
    add_tail(&mut argument, grace, fingerprint);
    argument
}

/// Returns the number's last `N` digits, zero-padded. Avoids the slower formatter, because every
/// acquire calls this function.
fn padded<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    digits
}

/// Converts to whole milliseconds, Redis's unit, rounding up so that no lease ends early.
pub(crate) fn millis(time: Duration) -> u64 {
    const MAX: u64 = 9_999_999_999_999;
    let part = u64::from(time.subsec_nanos().div_ceil(1_000_000));
    time.as_secs().saturating_mul(1_000).saturating_add(part).min(MAX)
}

/// The owner of a released record.
pub(crate) const NO_OWNER: OwnerId = OwnerId::from_bytes([0; 16]);

/// The key of a record, which is also the name of its channel: `prefix:{scope length:scope:key}`.
/// The scope's length keeps identities distinct (ID-2). In a cluster, the text in braces would
/// select the slot.
pub(crate) fn key(prefix: &str, id: &Identity) -> Vec<u8> {
    let (scope, key) = (id.scope().as_str(), id.key().expose());
    let mut out = Vec::with_capacity(prefix.len() + scope.len() + key.len() + 8);
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(b":{");
    out.extend_from_slice(scope.len().to_string().as_bytes());
    for part in [scope, key] {
        out.push(b':');
        out.extend_from_slice(part.as_bytes());
    }
    out.push(b'}');
    out
}

pub(crate) fn decimal(bytes: &[u8], field: &'static str) -> Result<u64> {
    let next = |number: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    };
    bytes.iter().try_fold(0, next).ok_or_else(|| unreadable(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(state: u8, token: &str, rest: &[u8]) -> Vec<u8> {
        [b"rp1", &[state][..], &[7; 16], token.as_bytes(), rest].concat()
    }

    #[test]
    fn cmp_8_a_record_is_read_strictly() {
        let fingerprint = Fingerprint::new(&[1, 2, 3]).unwrap();
        let mut good = written(b'C', "0000000000000042", &tail(0, Some(&fingerprint)));
        good.extend_from_slice(b"body");
        let header = Header::read(&good).unwrap();
        assert_eq!(
            (header.phase, header.token.get(), header.has_fingerprint()),
            (HeaderPhase::Complete, 42, true)
        );
        assert_eq!(stored_result(&header, good.clone()).unwrap().fingerprint(), Some(&fingerprint));
        for (at, bad) in
            [(0, b'R'), (2, b'2'), (3, b'X'), (20, b'-'), (36, b' '), (49, b'9'), (50, b'x')]
        {
            let mut other = good.clone();
            other[at] = bad;
            if at == 49 {
                assert!(Header::read(&other).is_err(), "a fingerprint of 93 bytes");
            }
            assert!(Header::read(&other).is_err(), "byte {at}");
        }
        for cut in 0..HEADER {
            assert!(Header::read(&good[..cut]).is_err(), "{cut} bytes");
        }
        let header = Header::read(&good).unwrap();
        assert!(
            stored_result(&header, good[..HEADER + 2].to_vec()).is_err(),
            "the fingerprint is cut"
        );
    }

    #[test]
    fn acq_7_the_lease_has_what_the_key_has_beyond_the_grace() {
        let value = written(b'P', "0000000000000042", &tail(1_000, None));
        let header = Header::read(&value).unwrap();
        for (pttl, left) in [
            (-2, None),
            (-1, None),
            (0, None),
            (1_000, None),
            (1_001, Some(1)),
            (5_000, Some(4_000)),
        ] {
            assert_eq!(header.remaining(pttl), left.map(Duration::from_millis), "{pttl}");
        }
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(10)), 10);
        assert_eq!(tail(millis(Duration::MAX), None).len(), 15);
        assert_eq!(millis(Duration::new(7, 999_000_001)), 8_000);
        let fingerprint = Fingerprint::new(b"abc").unwrap();
        assert_eq!(tail(1_234, Some(&fingerprint)), b"000000000123403abc");
        let opening = [&b"\x0590000"[..], NO_OWNER.as_bytes(), b"000000006000000"].concat();
        assert_eq!(acquire_argument(90_000, NO_OWNER, 60_000, None), opening);
    }

    #[test]
    fn id_2_keys_of_distinct_identities_are_distinct() {
        let of = |scope: &'static str, key: &str| key_of(scope, key);
        assert_ne!(of("a:b", "c"), of("a", "b:c"));
        assert_ne!(of("1:a", "b"), of("1", "a:b"));
        assert_ne!(of("a", "b}"), of("a", "b"));
        assert_eq!(of("pay", "k 1"), b"p:{3:pay:k 1}");
    }

    fn key_of(scope: &'static str, text: &str) -> Vec<u8> {
        key("p", &Identity::of(scope, text).unwrap())
    }
}
