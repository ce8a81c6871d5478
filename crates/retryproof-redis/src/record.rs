// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes stored bytes strictly. A value that the store did not write causes an error and stays
//! unchanged (CMP-8). A record is one string:
//!
//! | bytes | |
//! |---|---|
//! | 3 | `rp2`: written by this store, in this layout |
//! | 1 | `P`: in progress; `C`: complete; `R`: released (treated as absent, but keeps the last token); `K`: released and kept for its log (REC-3) |
//! | 16 | owner |
//! | 16 | token, decimal digits |
//! | 2 | takeovers since the key was last free, at most 32,767 (ACQ-12) |
//! | 2 | length of the note |
//! | 13 | grace in ms, decimal digits: how long the record outlives its lease (CMP-2, STO-4); the lease has `PTTL - grace` left |
//! | 2 | length of the fingerprint, decimal digits |
//! | any | note about the holder (REC-2); a note over [`HolderNote::MAX_BYTES`] comes from a later version, and is skipped |
//! | 0..=64 | fingerprint |
//! | rest | the value's envelope, if complete; the log, if kept |
//!
//! The takeovers and the note's length are binary, big endian, because two digits would stop at 99.
//! The header's layout is final: a later version can only add data to the note.
//!
//! The scripts in `scripts` read and write the same header.

mod key;

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, HolderNote, LiveLease};
use retryproof_core::{
    Blob, Error, FencingToken, Fingerprint, MAX_FINGERPRINT_BYTES, OwnerId, Result, StoredResult,
};
use retryproof_store_kit::unreadable;

pub(crate) use key::{identity, key};

/// The number of bytes before the note.
pub(crate) const HEADER: usize = 55;
const MAGIC: &[u8] = b"rp2";
const MAX_TAKEOVERS: u16 = 32_767;

/// Returns the error for a record that does not have the form of this version (REC-1, CMP-8).
#[cold]
pub(crate) fn of_another_form() -> Error {
    Error::corrupt(
        "the record does not have the form that this version of retryproof writes; if programs of \
         a newer version use the store, upgrade this program; if another program has written the \
         key, inspect it, or delete it by hand",
    )
    .with("field", "version")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderPhase {
    InProgress,
    Complete,
    /// Every call treats the record as absent, but the record keeps its token (ACQ-10), with or
    /// without a log (REC-3).
    Released,
}

/// The part of a record before the note.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) phase: HeaderPhase,
    owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) takeovers: u16,
    note: usize,
    pub(crate) grace: u64,
    fingerprint: usize,
}

impl Header {
    pub(crate) fn read(value: &[u8]) -> Result<Self> {
        if !MAGIC.starts_with(&value[..value.len().min(MAGIC.len())]) {
            return Err(of_another_form());
        }
        let Some(head) = value.first_chunk::<HEADER>() else { return Err(unreadable("length")) };
        let phase = match head[3] {
            b'P' => HeaderPhase::InProgress,
            b'C' => HeaderPhase::Complete,
            b'R' | b'K' => HeaderPhase::Released,
            _ => return Err(unreadable("state")),
        };
        let mut owner = [0; 16];
        owner.copy_from_slice(&head[4..20]);
        let takeovers = u16::from_be_bytes([head[36], head[37]]);
        if takeovers > MAX_TAKEOVERS {
            return Err(unreadable("takeovers"));
        }
        let fingerprint = usize::try_from(decimal(&head[53..55], "fingerprint")?)
            .ok()
            .filter(|&length| length <= MAX_FINGERPRINT_BYTES)
            .ok_or_else(|| unreadable("fingerprint"))?;
        Ok(Self {
            phase,
            owner: OwnerId::from_bytes(owner),
            token: FencingToken::new(decimal(&head[20..36], "token")?),
            takeovers,
            note: u16::from_be_bytes([head[38], head[39]]).into(),
            grace: decimal(&head[40..53], "grace")?,
            fingerprint,
        })
    }

    /// Like [`read`](Self::read), but fails if `record` does not contain its complete note and
    /// fingerprint.
    pub(crate) fn of_record(record: &[u8]) -> Result<Self> {
        let header = Self::read(record)?;
        if record.len() < header.value_at() {
            return Err(unreadable("length"));
        }
        Ok(header)
    }

    /// Returns the time left in the lease if the key has `pttl` ms to live; `None` if the lease has
    /// ended.
    pub(crate) fn remaining(&self, pttl: i64) -> Option<Duration> {
        let left = u64::try_from(pttl).ok()?.checked_sub(self.grace)?;
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Returns the time from the grant until `now` (in microseconds since 1970). The token is the
    /// time of the grant on the same clock, unless that clock stepped back (ACQ-10).
    pub(crate) fn granted_ago(&self, now: u64) -> Duration {
        Duration::from_micros(now.saturating_sub(self.token.get()))
    }

    pub(crate) fn has_fingerprint(&self) -> bool {
        self.fingerprint > 0
    }

    /// Returns the offset of the value's envelope.
    pub(crate) fn value_at(&self) -> usize {
        HEADER + self.note + self.fingerprint
    }

    /// Returns the recorded owner's note, if `record` contains the whole note.
    pub(crate) fn holder(&self, record: &[u8]) -> Option<HolderNote> {
        HolderNote::of_owner(record.get(HEADER..HEADER + self.note)?, self.owner)
    }

    /// Describes the lease of a record in progress.
    pub(crate) fn live_lease(&self, record: &[u8], remaining: Duration) -> LiveLease {
        LiveLease::new(remaining, self.token).with_holder(self.holder(record))
    }

    /// Returns the fingerprint; `None` if the record has none.
    pub(crate) fn fingerprint_in(&self, record: &[u8]) -> Result<Option<Fingerprint>> {
        let at = self.value_at();
        match record.get(at - self.fingerprint..at) {
            None => Err(unreadable("length")),
            Some([]) => Ok(None),
            Some(bytes) => Fingerprint::new(bytes).map(Some).map_err(|_| unreadable("fingerprint")),
        }
    }
}

/// Returns the result of a complete record without opening or copying its value.
pub(crate) fn stored_result(header: &Header, record: Vec<u8>) -> Result<StoredResult> {
    let at = header.value_at();
    let fingerprint = header.fingerprint_in(&record)?;
    let holder = header.holder(&record);
    Ok(StoredResult::new(Blob::from(record).skip(at), fingerprint).with_holder(holder))
}

/// Builds the only argument of the acquire script: the time to live in ms, and the parts of a new
/// record that the script does not compute.
pub(crate) fn acquire_argument(px: u64, grace: u64, req: &AcquireRequest) -> Vec<u8> {
    let all = padded::<20>(px);
    let px = &all[all.iter().position(|&digit| digit != b'0').unwrap_or(19)..];
    let note = req.holder.as_ref().map_or(&[][..], HolderNote::as_bytes);
    let fingerprint = bytes_of(req.fingerprint.as_ref());
    let mut argument = Vec::with_capacity(1 + px.len() + 33 + note.len() + fingerprint.len());
    argument.push(u8::try_from(px.len()).unwrap_or(0));
    argument.extend_from_slice(px);
    argument.extend_from_slice(req.owner.as_bytes());
    argument.extend_from_slice(&u16::try_from(note.len()).unwrap_or(u16::MAX).to_be_bytes());
    argument.extend_from_slice(&padded::<13>(grace));
    argument.extend_from_slice(&padded::<2>(fingerprint.len() as u64));
    argument.extend_from_slice(note);
    argument.extend_from_slice(fingerprint);
    argument
}

/// Builds the first argument of the completion script. The argument holds the owner, then the part
/// of the header that the completion replaces. A complete record has no grace.
pub(crate) fn complete_argument(owner: OwnerId, fingerprint: Option<&Fingerprint>) -> [u8; 31] {
    let mut argument = [b'0'; 31];
    argument[..16].copy_from_slice(owner.as_bytes());
    argument[29..].copy_from_slice(&padded::<2>(bytes_of(fingerprint).len() as u64));
    argument
}

/// The part of a released record that follows its token.
pub(crate) const RELEASED: &[u8; 19] = b"\0\0\0\0\
    000000000000000";

pub(crate) fn bytes_of(fingerprint: Option<&Fingerprint>) -> &[u8] {
    fingerprint.map_or(&[], Fingerprint::as_bytes)
}

/// Returns the number's last `N` digits, zero-padded. Every acquire calls this function, and the
/// standard formatter would be slower.
fn padded<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    digits
}

/// Converts a duration to whole milliseconds, Redis's unit. The result is rounded up, so no lease
/// ends early.
pub(crate) fn millis(time: Duration) -> u64 {
    const MAX: u64 = 9_999_999_999_999;
    let part = u64::from(time.subsec_nanos().div_ceil(1_000_000));
    time.as_secs().saturating_mul(1_000).saturating_add(part).min(MAX)
}

/// Returns the digits of a token in the form that a record contains.
pub(crate) fn token_digits(token: FencingToken) -> [u8; 16] {
    padded(token.get())
}

/// The owner of a released record.
pub(crate) const NO_OWNER: OwnerId = OwnerId::from_bytes([0; 16]);

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

    const OWNER: OwnerId = OwnerId::from_bytes([7; 16]);

    fn note() -> HolderNote {
        HolderNote::new(OWNER, Duration::from_secs(30), None, "host:1")
    }

    /// Builds a record as the scripts write it, from the parts that the scripts receive.
    fn written(state: u8, takeovers: u16, rest: &[u8]) -> Vec<u8> {
        let token = b"0000000000000042";
        [b"rp2", &[state][..], &[7; 16], token, &takeovers.to_be_bytes(), rest].concat()
    }

    fn rest(note: &[u8], grace: u64, fingerprint: &[u8], body: &[u8]) -> Vec<u8> {
        let note_length = u16::try_from(note.len()).unwrap().to_be_bytes();
        let (grace, length) = (padded::<13>(grace), padded::<2>(fingerprint.len() as u64));
        [&note_length[..], &grace, &length, note, fingerprint, body].concat()
    }

    fn field(error: &retryproof_core::Error) -> String {
        let text = error.to_string();
        text.split("field = ").nth(1).unwrap_or_default().trim_end_matches(')').to_owned()
    }

    #[test]
    fn rec_2_a_record_has_the_documented_bytes() {
        let fingerprint = Fingerprint::new(b"abc").unwrap();
        let request = AcquireRequest::new(OWNER, Duration::ZERO, Duration::ZERO);
        let plain = [&b"\x0590000"[..], &[7; 16], &[0, 0], b"000000006000000"].concat();
        assert_eq!(acquire_argument(90_000, 60_000, &request), plain);
        let full = request.with_fingerprint(Some(fingerprint)).with_holder(Some(note()));
        let full = acquire_argument(90_000, 60_000, &full);
        let noted = [&[0, 16][..], b"000000006000003", note().as_bytes(), b"abc"].concat();
        assert_eq!(full, [&plain[..22], &noted[..]].concat());

        assert_eq!(complete_argument(OWNER, None)[..16], [7; 16]);
        assert_eq!(complete_argument(OWNER, Some(&fingerprint))[16..], *b"000000000000003");

        for (record, phase, takeovers, holder, value_at) in [
            (written(b'P', 0, &full[22..]), HeaderPhase::InProgress, 0, Some(note()), 74),
            (written(b'P', 1, &plain[22..]), HeaderPhase::InProgress, 1, None, 55),
            (
                written(b'C', 32_767, &rest(note().as_bytes(), 0, b"abc", b"body")),
                HeaderPhase::Complete,
                32_767,
                Some(note()),
                74,
            ),
            (
                [&written(b'R', 0, b"")[..36], &RELEASED[..]].concat(),
                HeaderPhase::Released,
                0,
                None,
                55,
            ),
            (written(b'K', 2, &rest(b"", 9, b"abc", b"log")), HeaderPhase::Released, 2, None, 58),
        ] {
            let header = Header::of_record(&record).unwrap();
            assert_eq!((header.phase, header.token.get()), (phase, 42));
            assert_eq!((header.takeovers, header.value_at()), (takeovers, value_at));
            assert_eq!(header.holder(&record), holder);
        }
    }

    #[test]
    fn rec_2_a_note_is_skipped_whatever_it_holds() {
        let of_another = HolderNote::new(NO_OWNER, Duration::ZERO, None, "other");
        let full = HolderNote::new(OWNER, Duration::ZERO, None, &"x".repeat(100));
        assert_eq!(full.as_bytes().len(), HolderNote::MAX_BYTES);
        let later = [&[1, 0][..], &[7; 4], &[0; 59]].concat();
        assert_eq!(later.len(), HolderNote::MAX_BYTES + 1);
        for (bytes, holder) in [
            (&b""[..], None),
            (full.as_bytes(), Some(&full)),
            (of_another.as_bytes(), None),
            (b"\xff", None),
            (&later, None),
            (&[0xff; 65_535], None),
        ] {
            let record = written(b'C', 0, &rest(bytes, 0, b"abc", b"body"));
            let header = Header::of_record(&record).unwrap();
            let stored = stored_result(&header, record).unwrap();
            assert_eq!(stored.holder(), holder);
            assert_eq!(stored.fingerprint(), Some(&Fingerprint::new(b"abc").unwrap()));
            let record = written(b'P', 0, &rest(bytes, 0, b"abc", b""));
            let header = Header::of_record(&record).unwrap();
            let lease = header.live_lease(&record, Duration::ZERO);
            let held = header.fingerprint_in(&record).unwrap();
            assert_eq!(held, Fingerprint::new(b"abc").ok(), "FP-6");
            assert_eq!(lease.holder.as_ref(), holder);
        }
    }

    #[test]
    fn cmp_8_a_record_is_read_strictly() {
        let fingerprint = Fingerprint::new(&[1, 2, 3]).unwrap();
        let good = written(b'C', 1, &rest(note().as_bytes(), 0, fingerprint.as_bytes(), b"body"));
        let header = Header::of_record(&good).unwrap();
        assert!(header.has_fingerprint());
        assert_eq!(stored_result(&header, good.clone()).unwrap().fingerprint(), Some(&fingerprint));
        for (at, bad, says) in [
            (0, b'R', "version"),
            (2, b'1', "version"),
            (2, b'3', "version"),
            (3, b'X', "state"),
            (3, b'T', "state"),
            (20, b'-', "token"),
            (20, b':', "token"),
            (35, b'x', "token"),
            (36, 0x80, "takeovers"),
            (36, 0xff, "takeovers"),
            (40, b' ', "grace"),
            (52, 0, "grace"),
            (53, b'9', "fingerprint"),
            (54, b'x', "fingerprint"),
        ] {
            let mut other = good.clone();
            other[at] = bad;
            assert_eq!(field(&Header::read(&other).unwrap_err()), says, "byte {at}");
        }
        // The lengths in these records point past the end of the record.
        for (at, bad) in [(38, 0x01), (38, 0xff), (39, 0xff), (53, b'6')] {
            let mut other = good.clone();
            other[at] = bad;
            assert!(Header::read(&other).is_ok(), "byte {at}");
            assert_eq!(field(&Header::of_record(&other).unwrap_err()), "length", "byte {at}");
        }
        for cut in 0..HEADER {
            assert_eq!(field(&Header::read(&good[..cut]).unwrap_err()), "length", "{cut} bytes");
        }
        for cut in HEADER..header.value_at() {
            let error = Header::of_record(&good[..cut]).unwrap_err();
            assert_eq!(field(&error), "length", "{cut} bytes");
            assert!(stored_result(&header, good[..cut].to_vec()).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn acq_7_the_lease_has_what_the_key_has_beyond_the_grace() {
        let value = written(b'P', 0, &rest(b"", 1_000, b"", b""));
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
        assert_eq!(padded::<13>(millis(Duration::MAX)), *b"9999999999999");
        assert_eq!(millis(Duration::new(7, 999_000_001)), 8_000);
    }
}
