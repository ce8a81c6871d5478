// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is kept for an identity: [`Done`], one immutable allocation, or [`Busy`], a place in a slab.

use std::sync::Arc;

use super::NONE;
use super::wait::Ended;
use crate::blob::Blob;
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::owner::OwnerId;
use crate::payload::StoredResult;

/// A COMPLETE record: owner, token, expiry, key, fingerprint and value in one shared allocation. A replay hands out a
/// window of it, so it counts a reference up and copies nothing.
pub(super) struct Done(Arc<[u8]>);

const TOKEN: usize = 16;
const EXPIRES: usize = TOKEN + 8;
const KEY_LEN: usize = EXPIRES + 8;
const FINGERPRINT_LEN: usize = KEY_LEN + 2;
const HEADER: usize = FINGERPRINT_LEN + 1;
/// Records up to this size are laid out on the stack, which costs less than clearing fresh memory.
const SMALL: usize = 512;

impl Done {
    /// A record without its token, which only the shard knows: see [`set_token`](Self::set_token).
    pub(super) fn build(
        owner: OwnerId,
        expires: u64,
        key: &Key,
        fingerprint: Option<&Fingerprint>,
        value: &[u8],
    ) -> Self {
        let key = key.expose().as_bytes();
        let fingerprint = fingerprint.map_or(&[][..], Fingerprint::as_bytes);
        let mut header = [0; HEADER];
        header[..TOKEN].copy_from_slice(owner.as_bytes());
        header[EXPIRES..KEY_LEN].copy_from_slice(&expires.to_le_bytes());
        // ID-3 bounds the key to 512 bytes, and a fingerprint has at most 64.
        let key_len = u16::try_from(key.len()).unwrap_or(u16::MAX);
        header[KEY_LEN..FINGERPRINT_LEN].copy_from_slice(&key_len.to_le_bytes());
        header[FINGERPRINT_LEN] = u8::try_from(fingerprint.len()).unwrap_or(u8::MAX);
        let parts = [&header[..], key, fingerprint, value];
        let size = HEADER + key.len() + fingerprint.len() + value.len();
        if size <= SMALL {
            let mut buffer = [0; SMALL];
            fill(&mut buffer, parts);
            return Self(Arc::from(&buffer[..size]));
        }
        let mut whole: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
        if let Some(buffer) = Arc::get_mut(&mut whole) {
            fill(buffer, parts);
        }
        Self(whole)
    }

    /// Writes the token into a record that nobody else has seen yet.
    pub(super) fn set_token(&mut self, token: u64) {
        if let Some(bytes) = Arc::get_mut(&mut self.0) {
            bytes[TOKEN..EXPIRES].copy_from_slice(&token.to_le_bytes());
        }
    }

    pub(super) fn owner(&self) -> OwnerId {
        let mut owner = [0; 16];
        owner.copy_from_slice(&self.0[..TOKEN]);
        OwnerId::from_bytes(owner)
    }

    pub(super) fn token(&self) -> u64 {
        self.word(TOKEN)
    }

    pub(super) fn expires(&self) -> u64 {
        self.word(EXPIRES)
    }

    pub(super) fn key(&self) -> &[u8] {
        let (key, _) = self.lengths();
        &self.0[HEADER..HEADER + key]
    }

    pub(super) fn has_fingerprint(&self) -> bool {
        self.0[FINGERPRINT_LEN] != 0
    }

    pub(super) fn value_len(&self) -> usize {
        let (key, fingerprint) = self.lengths();
        self.0.len() - HEADER - key - fingerprint
    }

    /// Bytes of the allocation, the two counts of its `Arc` included.
    pub(super) fn size(&self) -> u64 {
        self.0.len() as u64 + 16
    }

    /// The same allocation once more.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        let (key, fingerprint) = self.lengths();
        if fingerprint == 0 {
            return None;
        }
        Fingerprint::new(&self.0[HEADER + key..HEADER + key + fingerprint]).ok()
    }

    /// The result, without a copy of its value.
    pub(super) fn into_result(self) -> StoredResult {
        let fingerprint = self.fingerprint();
        StoredResult::new(self.into_value(), fingerprint)
    }

    fn into_value(self) -> Blob {
        let end = self.0.len();
        let start = end - self.value_len();
        Blob::window(self.0, start..end)
    }

    fn lengths(&self) -> (usize, usize) {
        let key = u16::from_le_bytes([self.0[KEY_LEN], self.0[KEY_LEN + 1]]);
        (usize::from(key), usize::from(self.0[FINGERPRINT_LEN]))
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

fn fill(mut buffer: &mut [u8], parts: [&[u8]; 4]) {
    for part in parts {
        let (place, rest) = buffer.split_at_mut(part.len());
        place.copy_from_slice(part);
        buffer = rest;
    }
}

/// An IN_PROGRESS record. It lives in a slab that reuses its places, so a grant allocates nothing.
pub(super) struct Busy {
    /// `None` while the place is free.
    pub(super) key: Option<Key>,
    pub(super) owner: OwnerId,
    pub(super) token: u64,
    /// The lease's end.
    pub(super) expires: u64,
    /// When purge may take it, if its lease is over too: ttl after the acquire (STO-4).
    pub(super) purge_after: u64,
    /// Where its slot is; while the place is free, the next free one.
    pub(super) slot: u32,
    pub(super) has_fingerprint: bool,
    /// Made by the first waiter.
    pub(super) ended: Option<Arc<Ended>>,
}

impl Busy {
    /// When purge may take it, as it stands.
    pub(super) fn due(&self) -> u64 {
        self.expires.max(self.purge_after)
    }

    /// What an IN_PROGRESS record takes besides its slot. The key is shared with the caller's, and counted all the same.
    pub(super) fn size_with(key: &Key) -> u64 {
        (size_of::<Self>() + key.expose().len() + 16) as u64
    }

    pub(super) fn size(&self) -> u64 {
        self.key.as_ref().map_or(0, Self::size_with)
    }
}

/// The IN_PROGRESS records of a shard.
pub(super) struct BusySlab {
    places: super::chunked::Chunked<Busy>,
    free: u32,
    len: u32,
}

impl BusySlab {
    pub(super) const fn new() -> Self {
        Self { places: super::chunked::Chunked::new(), free: NONE, len: 0 }
    }

    /// How many are in progress.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// How many places there are, free ones included.
    pub(super) fn places(&self) -> u32 {
        self.places.len()
    }

    pub(super) fn insert(&mut self, busy: Busy) -> u32 {
        self.len += 1;
        if self.free == NONE {
            return self.places.push(busy);
        }
        let at = self.free;
        let place = &mut self.places[at];
        self.free = place.slot;
        *place = busy;
        at
    }

    /// Frees a place. What was there may hold the last reference to something: drop it after the lock.
    pub(super) fn remove(&mut self, at: u32) -> (Option<Key>, Option<Arc<Ended>>) {
        self.len -= 1;
        let place = &mut self.places[at];
        place.slot = self.free;
        self.free = at;
        (place.key.take(), place.ended.take())
    }
}

impl std::ops::Index<u32> for BusySlab {
    type Output = Busy;

    fn index(&self, at: u32) -> &Busy {
        &self.places[at]
    }
}

impl std::ops::IndexMut<u32> for BusySlab {
    fn index_mut(&mut self, at: u32) -> &mut Busy {
        &mut self.places[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmp_6_a_record_gives_back_what_was_put_in() {
        let owner = OwnerId::new();
        for size in [0, 1, 200, 511, 512, 513, 100_000] {
            for fingerprint in
                [None, Some(Fingerprint::new(&[9; 33]).unwrap()), Some(Fingerprint::new(&[1; 64]).unwrap())]
            {
                for key in ["k", "a key of thirty-six bytes, or so ...", &"k".repeat(512)] {
                    let key = Key::new(key).unwrap();
                    let value: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
                    let mut done = Done::build(owner, 77, &key, fingerprint.as_ref(), &value);
                    done.set_token(u64::MAX - 5);
                    assert_eq!((done.token(), done.expires()), (u64::MAX - 5, 77));
                    assert_eq!(done.owner(), owner);
                    assert_eq!(done.key(), key.expose().as_bytes());
                    assert_eq!(done.value_len(), value.len());
                    assert_eq!(done.has_fingerprint(), fingerprint.is_some());
                    assert_eq!(done.fingerprint(), fingerprint);
                    assert_eq!(&done.share().into_value()[..], value);
                    assert_eq!(done.into_result().fingerprint().copied(), fingerprint);
                }
            }
        }
    }
}
