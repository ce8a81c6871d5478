// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Done`], a COMPLETE record: one immutable allocation.

use std::ops::Range;
use std::sync::Arc;

use retryproof_core::store::{Completion, HolderNote};
use retryproof_core::{Blob, Fingerprint, Key, OwnerId, StoredResult};

use crate::busy::Extra;

/// A COMPLETE record: owner, token, expiry, key, fingerprint and value in one shared allocation. A
/// replay returns a slice of this allocation, which copies nothing and only increments the
/// reference count.
///
/// If the record has takeovers or a note, they are stored between the key and the fingerprint.
pub(crate) struct Done(Arc<[u8]>);

const TOKEN: usize = 16;
const EXPIRES: usize = TOKEN + 8;
const KEY_LEN: usize = EXPIRES + 8;
const FINGERPRINT_LEN: usize = KEY_LEN + 2;
const HEADER: usize = FINGERPRINT_LEN + 1;
/// This bit, in the byte for the fingerprint's length, is set if an [`Extra`] follows the key. If
/// that byte is 0, the record has neither a fingerprint nor an `Extra`.
const HAS_EXTRA: u8 = 0x80;
/// The bytes before the note: 2 for the count of takeovers, and 1 for the note's length.
const EXTRA_HEADER: usize = 3;

impl Done {
    /// Builds a record without its token, which the shard sets with [`set_token`](Self::set_token).
    #[inline]
    pub(crate) fn build(owner: OwnerId, expires: u64, key: &Key, done: &Completion) -> Self {
        Self::build_with(owner, expires, key, done, None)
    }

    /// Like [`build`](Self::build), for a record that can have an [`Extra`].
    #[inline(always)]
    pub(crate) fn build_with(
        owner: OwnerId,
        expires: u64,
        key: &Key,
        done: &Completion,
        extra: Option<&Extra>,
    ) -> Self {
        let key = key.expose().as_bytes();
        let fingerprint = done.fingerprint.as_ref().map_or(&[][..], Fingerprint::as_bytes);
        let extra_len = extra.map_or(0, |extra| EXTRA_HEADER + extra.note_bytes().len());
        let size = HEADER + key.len() + extra_len + fingerprint.len() + done.value.len();
        // Make one allocation, zero it, and fill it in place. Collecting an iterator over the parts
        // would copy byte by byte.
        let mut whole: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
        if let Some(buffer) = Arc::get_mut(&mut whole) {
            let (header, rest) = buffer.split_at_mut(HEADER);
            header[..TOKEN].copy_from_slice(owner.as_bytes());
            header[EXPIRES..KEY_LEN].copy_from_slice(&expires.to_le_bytes());
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a key has at most 512 bytes (ID-3), a fingerprint at most 64"
            )]
            let (key_len, fingerprint_len) = (key.len() as u16, fingerprint.len() as u8);
            header[KEY_LEN..FINGERPRINT_LEN].copy_from_slice(&key_len.to_le_bytes());
            header[FINGERPRINT_LEN] = fingerprint_len;
            let (place, mut rest) = rest.split_at_mut(key.len());
            place.copy_from_slice(key);
            if let Some(extra) = extra {
                header[FINGERPRINT_LEN] |= HAS_EXTRA;
                let note = extra.note_bytes();
                let (place, behind) = rest.split_at_mut(EXTRA_HEADER + note.len());
                place[..2].copy_from_slice(&extra.takeovers.to_le_bytes());
                #[expect(clippy::cast_possible_truncation, reason = "a note has at most 64 bytes")]
                let note_len = note.len() as u8;
                place[2] = note_len;
                place[EXTRA_HEADER..].copy_from_slice(note);
                rest = behind;
            }
            let (place, rest) = rest.split_at_mut(fingerprint.len());
            if !fingerprint.is_empty() {
                place.copy_from_slice(fingerprint);
            }
            rest.copy_from_slice(&done.value);
        }
        Self(whole)
    }

    /// Writes the token into a record that is not shared yet.
    #[inline(always)]
    pub(crate) fn set_token(&mut self, token: u64) {
        if let Some(bytes) = Arc::get_mut(&mut self.0) {
            bytes[TOKEN..EXPIRES].copy_from_slice(&token.to_le_bytes());
        }
    }

    #[inline]
    pub(crate) fn owner(&self) -> OwnerId {
        let mut owner = [0; 16];
        owner.copy_from_slice(&self.0[..TOKEN]);
        OwnerId::from_bytes(owner)
    }

    #[inline]
    pub(crate) fn token(&self) -> u64 {
        self.view().map_or(0, |view| view.word(TOKEN))
    }

    #[inline]
    pub(crate) fn expires(&self) -> u64 {
        self.view().map_or(0, |view| view.expires())
    }

    /// Returns the key, which a scan needs.
    pub(crate) fn key(&self) -> Option<&str> {
        let end = HEADER + self.view()?.key_len();
        str::from_utf8(self.0.get(HEADER..end)?).ok()
    }

    pub(crate) fn has_fingerprint(&self) -> bool {
        !self.parts().fingerprint.is_empty()
    }

    pub(crate) fn value_len(&self) -> usize {
        self.0.len() - self.parts().fingerprint.end
    }

    /// Returns how many times the key was taken over before the record was completed.
    pub(crate) fn takeovers(&self) -> u16 {
        let extra = self.0.get(self.parts().extra).and_then(|extra| extra.first_chunk());
        extra.map_or(0, |count| u16::from_le_bytes(*count))
    }

    /// Returns the note about the holder that completed the record.
    pub(crate) fn note(&self) -> Option<HolderNote> {
        note(&self.0, self.parts())
    }

    /// Returns the bytes of the allocation, including the two reference counts of its `Arc`.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.0.len() as u64 + 16
    }

    /// Returns another reference to the allocation. `view` must be a view of this record.
    #[inline(always)]
    pub(crate) fn share(&self, view: View<'_>) -> Replay {
        let start = HEADER + view.key_len();
        Replay { whole: Arc::clone(&self.0), start, lengths: view.lengths() }
    }

    /// Returns a view of the record for a lookup. The result is never `None`, because
    /// [`build`](Self::build) always writes a header; an `Option` costs less here than a panic.
    #[inline(always)]
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let (header, rest) = self.0.split_first_chunk()?;
        Some(View { header, rest })
    }

    fn parts(&self) -> Parts {
        self.view().map_or_else(Parts::default, |view| {
            Parts::of(&self.0, HEADER + view.key_len(), view.lengths())
        })
    }
}

/// The positions of the parts between the key and the value. The value begins at the end of the
/// fingerprint.
#[derive(Default)]
struct Parts {
    extra: Range<usize>,
    fingerprint: Range<usize>,
}

impl Parts {
    /// Finds the parts of the record in `whole`. The key ends at `start`. `lengths` is the byte
    /// with the fingerprint's length and the bit [`HAS_EXTRA`].
    fn of(whole: &[u8], start: usize, lengths: u8) -> Self {
        let mut behind = start;
        if lengths & HAS_EXTRA != 0 {
            let note = whole.get(start + 2).copied().unwrap_or(0);
            behind += EXTRA_HEADER + usize::from(note);
        }
        let end = behind + usize::from(lengths & !HAS_EXTRA);
        Self { extra: start..behind, fingerprint: behind..end }
    }
}

/// Returns the note in a record; `None` if there is no note, or if the note belongs to an earlier
/// owner.
fn note(whole: &[u8], parts: Parts) -> Option<HolderNote> {
    let owner = OwnerId::from_bytes(*whole.first_chunk()?);
    HolderNote::of_owner(whole.get(parts.extra)?.get(EXTRA_HEADER..)?, owner)
}

/// A view of a COMPLETE record. Creating the view checks the record's length, so reading the header
/// needs no further check.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    header: &'a [u8; HEADER],
    rest: &'a [u8],
}

impl View<'_> {
    #[inline(always)]
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        self.key_len() == key.len() && self.rest.starts_with(key)
    }

    #[inline(always)]
    pub(crate) fn expires(&self) -> u64 {
        self.word(EXPIRES)
    }

    #[inline(always)]
    fn key_len(&self) -> usize {
        usize::from(u16::from_le_bytes([self.header[KEY_LEN], self.header[KEY_LEN + 1]]))
    }

    /// Returns the fingerprint's length, with the bit [`HAS_EXTRA`].
    #[inline(always)]
    fn lengths(&self) -> u8 {
        self.header[FINGERPRINT_LEN]
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.header[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

/// A COMPLETE record that a call is about to return. The call takes this reference under the
/// shard's lock, and reads the parts of the record after the lock is released.
pub(crate) struct Replay {
    whole: Arc<[u8]>,
    /// Where the key ends.
    start: usize,
    /// The fingerprint's length, with the bit [`HAS_EXTRA`].
    lengths: u8,
}

impl Replay {
    /// Returns the value if the record has no fingerprint and no [`Extra`]; otherwise returns
    /// `self`, for [`into_result`](Self::into_result). The methods are separate so that a replay
    /// without a fingerprint does not move the 72 bytes that a fingerprint takes.
    #[inline(always)]
    pub(crate) fn into_value(self) -> Result<Blob, Self> {
        if self.lengths != 0 {
            return Err(self);
        }
        let end = self.whole.len();
        Ok(Blob::window(self.whole, self.start..end))
    }

    /// Returns the result with its fingerprint and its note.
    pub(crate) fn into_result(self) -> StoredResult {
        let Self { whole, start, lengths } = self;
        let parts = Parts::of(&whole, start, lengths);
        let (value, end) = (parts.fingerprint.end, whole.len());
        let kept = whole.get(parts.fingerprint.clone());
        let fingerprint = kept.and_then(|kept| Fingerprint::new(kept).ok());
        let holder = note(&whole, parts);
        StoredResult::new(Blob::window(whole, value..end), fingerprint).with_holder(holder)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use retryproof_core::{CodecId, Opened, Payload};

    #[test]
    fn cmp_6_a_record_gives_back_what_was_put_in() {
        let owner = OwnerId::new();
        let note = |label| Some(HolderNote::new(owner, Duration::from_secs(30), None, label));
        let extras = [
            None,
            Some(Extra { takeovers: 3, ..Extra::default() }),
            Some(Extra { note: note(""), ..Extra::default() }),
            Some(Extra { note: note(&"n".repeat(100)), takeovers: 32_767, fingerprint: None }),
        ];
        let fingerprints = [
            None,
            Some(Fingerprint::new(&[9; 33]).unwrap()),
            Some(Fingerprint::new(&[1; 64]).unwrap()),
        ];
        let keys = ["k", "a key of thirty-six bytes, or so ...", &"k".repeat(512)];
        for size in [0, 1, 200, 511, 512, 513, 100_000] {
            let body: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let value = Payload::new(CodecId::BYTES, 0, &body).envelope().clone();
            for fingerprint in fingerprints {
                let completion = Completion::new(value.clone(), Duration::ZERO, fingerprint);
                for (key, extra) in
                    keys.iter().flat_map(|key| extras.iter().map(move |extra| (key, extra)))
                {
                    let (key, extra) = (Key::new(*key).unwrap(), extra.as_ref());
                    let mut done = Done::build_with(owner, 77, &key, &completion, extra);
                    done.set_token(u64::MAX - 5);
                    assert_eq!((done.token(), done.expires()), (u64::MAX - 5, 77));
                    assert_eq!(done.owner(), owner);
                    assert!(done.view().unwrap().has_key(key.expose().as_bytes()));
                    assert_eq!(done.value_len(), value.len());
                    assert_eq!(done.has_fingerprint(), fingerprint.is_some());
                    assert_eq!(done.takeovers(), extra.map_or(0, |extra| extra.takeovers));
                    let noted = extra.and_then(|extra| extra.note.clone());
                    assert_eq!(done.note(), noted);
                    let result = match done.share(done.view().unwrap()).into_value() {
                        Ok(value) => StoredResult::new(value, None),
                        Err(replay) => replay.into_result(),
                    };
                    assert_eq!(result.fingerprint().copied(), fingerprint);
                    assert_eq!(result.holder(), noted.as_ref());
                    assert!(
                        matches!(result.open(None).unwrap(), Opened::Value(v) if v.body() == body)
                    );
                }
            }
        }
    }
}
