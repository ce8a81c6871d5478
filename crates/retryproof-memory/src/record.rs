// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Done`], a COMPLETE record: one immutable allocation.

use std::sync::Arc;

use retryproof_core::{Blob, Fingerprint, Key, OwnerId, StoredResult};

/// A COMPLETE record: owner, token, expiry, key, fingerprint and value in one shared allocation. A
/// replay returns a window into this allocation, and only increments its reference count.
pub(crate) struct Done(Arc<[u8]>);

const TOKEN: usize = 16;
const EXPIRES: usize = TOKEN + 8;
const KEY_LEN: usize = EXPIRES + 8;
const FINGERPRINT_LEN: usize = KEY_LEN + 2;
const HEADER: usize = FINGERPRINT_LEN + 1;

impl Done {
    /// Builds a record without its token, which only the shard knows and sets with
    /// [`set_token`](Self::set_token).
    #[inline]
    pub(crate) fn build(
        owner: OwnerId,
        expires: u64,
        key: &Key,
        fingerprint: Option<&Fingerprint>,
        value: &[u8],
    ) -> Self {
        let (key, fingerprint) =
            (key.expose().as_bytes(), fingerprint.map_or(&[][..], Fingerprint::as_bytes));
        let size = HEADER + key.len() + fingerprint.len() + value.len();
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
            let (place, rest) = rest.split_at_mut(key.len());
            place.copy_from_slice(key);
            let (place, rest) = rest.split_at_mut(fingerprint.len());
            if !fingerprint.is_empty() {
                place.copy_from_slice(fingerprint);
            }
            rest.copy_from_slice(value);
        }
        Self(whole)
    }

    /// Writes the token into a record that is not shared yet.
    #[inline]
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

    pub(crate) fn has_fingerprint(&self) -> bool {
        self.lengths().1 != 0
    }

    pub(crate) fn value_len(&self) -> usize {
        let (key, fingerprint) = self.lengths();
        self.0.len() - HEADER - key - fingerprint
    }

    /// The bytes of the allocation, including the two reference counts of its `Arc`.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.0.len() as u64 + 16
    }

    /// Returns another reference to the allocation. `view` must be a view of this record.
    #[inline(always)]
    pub(crate) fn share(&self, view: View<'_>) -> Replay {
        let start = HEADER + view.key_len();
        Replay { whole: Arc::clone(&self.0), start, fingerprint: view.fingerprint_len() }
    }

    /// Returns a view of the record for a lookup. The result is never `None`, because
    /// [`build`](Self::build) always writes a header; an `Option` costs less here than a panic.
    #[inline(always)]
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let (header, rest) = self.0.split_first_chunk()?;
        Some(View { header, rest })
    }

    #[inline(always)]
    fn lengths(&self) -> (usize, usize) {
        self.view().map_or((0, 0), |view| (view.key_len(), view.fingerprint_len()))
    }
}

/// A view of a COMPLETE record, so that the record's length is checked only once.
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

    #[inline(always)]
    fn fingerprint_len(&self) -> usize {
        usize::from(self.header[FINGERPRINT_LEN])
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.header[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

/// A COMPLETE record that a call is about to return. A call takes the reference under the shard's
/// lock, and reads the parts after it has released the lock.
pub(crate) struct Replay {
    whole: Arc<[u8]>,
    /// Where the fingerprint begins.
    start: usize,
    fingerprint: usize,
}

impl Replay {
    /// Returns the value if the record has no fingerprint, and otherwise `self` for `into_result`.
    /// The two methods are separate, so that a replay without a fingerprint does not move a
    /// fingerprint's 72 bytes.
    #[inline(always)]
    pub(crate) fn into_value(self) -> Result<Blob, Self> {
        if self.fingerprint != 0 {
            return Err(self);
        }
        let end = self.whole.len();
        Ok(Blob::window(self.whole, self.start..end))
    }

    /// Returns the result with its fingerprint.
    pub(crate) fn into_result(self) -> StoredResult {
        let Self { whole, start, fingerprint } = self;
        let value = start + fingerprint;
        let stored = whole.get(start..value).and_then(|stored| Fingerprint::new(stored).ok());
        let end = whole.len();
        StoredResult::new(Blob::window(whole, value..end), stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retryproof_core::{CodecId, Opened, Payload};

    #[test]
    fn cmp_6_a_record_gives_back_what_was_put_in() {
        let owner = OwnerId::new();
        for size in [0, 1, 200, 511, 512, 513, 100_000] {
            for fingerprint in [
                None,
                Some(Fingerprint::new(&[9; 33]).unwrap()),
                Some(Fingerprint::new(&[1; 64]).unwrap()),
            ] {
                for key in ["k", "a key of thirty-six bytes, or so ...", &"k".repeat(512)] {
                    let key = Key::new(key).unwrap();
                    let body: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
                    let value = Payload::new(CodecId::BYTES, 0, &body).envelope().clone();
                    let mut done = Done::build(owner, 77, &key, fingerprint.as_ref(), &value);
                    done.set_token(u64::MAX - 5);
                    assert_eq!((done.token(), done.expires()), (u64::MAX - 5, 77));
                    assert_eq!(done.owner(), owner);
                    assert!(done.view().unwrap().has_key(key.expose().as_bytes()));
                    assert_eq!(done.value_len(), value.len());
                    assert_eq!(done.has_fingerprint(), fingerprint.is_some());
                    let result = done.share(done.view().unwrap()).into_result();
                    assert_eq!(result.fingerprint().copied(), fingerprint);
                    assert!(
                        matches!(result.open(None).unwrap(), Opened::Value(v) if v.body() == body)
                    );
                }
            }
        }
    }
}
