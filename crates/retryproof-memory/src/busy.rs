// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Busy`], an IN_PROGRESS record, and [`BusySlab`], which holds a shard's IN_PROGRESS records.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::clock::Instant;
use retryproof_core::store::{AcquireRequest, HolderNote, LiveLease};
use retryproof_core::{FencingToken, Fingerprint, Key, OwnerId};

use crate::chunked::Chunked;
use crate::index::NONE;
use crate::time::after;
use crate::wait::Ended;

/// The optional parts of a record, which few records have: a note about the holder, a count of
/// takeovers (REC-2), and a fingerprint to compare with (FP-6). An `Extra` stays with its record
/// for as long as the record is in progress.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Extra {
    pub(crate) note: Option<HolderNote>,
    /// How many times the key has been taken over since it was last free.
    pub(crate) takeovers: u16,
    /// The fingerprint of the grant, if fingerprints are compared while the holder runs (FP-6). A
    /// COMPLETE record stores its fingerprint elsewhere.
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl Extra {
    /// The size of the boxed value in bytes.
    pub(crate) const SIZE: u64 = size_of::<Self>() as u64;

    pub(crate) fn note_bytes(&self) -> &[u8] {
        self.note.as_ref().map_or(&[], HolderNote::as_bytes)
    }
}

/// An IN_PROGRESS record. The slab that holds the record reuses its entries, so a grant allocates
/// nothing if it finds a free entry and needs no [`Extra`].
pub(crate) struct Busy {
    /// The record's key; `None` in a free entry.
    pub(crate) key: Option<Key>,
    pub(crate) owner: OwnerId,
    pub(crate) token: u64,
    /// When the lease ends.
    pub(crate) expires: Instant,
    /// When the lease was granted. A purge keeps the record for at least `ttl` after this time
    /// (STO-4).
    pub(crate) granted: Instant,
    /// A purge deletes the record no earlier than this long after the grant, and never before the
    /// lease ends.
    pub(crate) ttl: Duration,
    /// The index of the record's slot; in a free entry, the index of the next free entry.
    pub(crate) slot: u32,
    pub(crate) has_fingerprint: bool,
    /// The optional parts; `None` if the record has none of them, which saves the allocation.
    pub(crate) extra: Option<Box<Extra>>,
    /// Notifies waiters when the grant is over. The first waiter creates the notification.
    pub(crate) ended: Option<Arc<Ended>>,
}

impl Busy {
    /// Returns a free entry. `time` is only a filler: the next grant overwrites it.
    fn free(time: Instant) -> Self {
        Self {
            key: None,
            owner: OwnerId::from_bytes([0; 16]),
            token: 0,
            expires: time,
            granted: time,
            ttl: Duration::ZERO,
            slot: NONE,
            has_fingerprint: false,
            extra: None,
            ended: None,
        }
    }

    /// Fills a free entry field by field, because assigning a whole value would copy it.
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        key: &Key,
        slot: u32,
        token: u64,
        req: &AcquireRequest,
        now: Instant,
    ) {
        self.key = Some(key.clone());
        self.slot = slot;
        self.token = token;
        self.grant(req, now);
    }

    /// Writes the fields of a repeated acquire. The time of the grant does not change; the new ttl
    /// counts from `now`.
    #[inline(always)]
    pub(crate) fn renew(&mut self, req: &AcquireRequest, now: Instant) {
        let granted = self.granted;
        self.grant(req, now);
        self.granted = granted;
        self.ttl = now.saturating_duration_since(granted).saturating_add(req.ttl);
    }

    /// Writes the fields that every new grant replaces.
    #[inline(always)]
    pub(crate) fn grant(&mut self, req: &AcquireRequest, now: Instant) {
        self.owner = req.owner;
        self.expires = after(now, req.lease);
        self.granted = now;
        self.ttl = req.ttl;
        self.has_fingerprint = req.fingerprint.is_some();
    }

    /// Writes the [`Extra`]: the request's note, its fingerprint if requests are compared in
    /// flight, and the count of takeovers. [`grant`](Self::grant) writes the other fields. Returns
    /// the size of the `Extra` before and after the call.
    pub(crate) fn amend(&mut self, req: &AcquireRequest, takes_over: bool) -> (u64, u64) {
        let before = self.extra_size();
        let extra = self.extra.get_or_insert_default();
        extra.note.clone_from(&req.holder);
        extra.fingerprint = req.fingerprint.filter(|_| req.compares_in_flight());
        extra.takeovers = (extra.takeovers + u16::from(takes_over)).min(MAX_TAKEOVERS);
        (before, self.extra_size())
    }

    /// Returns how many times the key has been taken over since it was last free.
    pub(crate) fn takeovers(&self) -> u16 {
        self.extra.as_ref().map_or(0, |extra| extra.takeovers)
    }

    /// Returns the note about the holder.
    pub(crate) fn note(&self) -> Option<HolderNote> {
        HolderNote::of_owner(self.extra.as_ref()?.note_bytes(), self.owner)
    }

    /// Returns the lease, as reported to another caller; `None` if the lease has ended.
    pub(crate) fn live(&self, now: Instant) -> Option<LiveLease> {
        (self.expires > now).then(|| {
            let remaining = self.expires.saturating_duration_since(now);
            LiveLease::new(remaining, FencingToken::new(self.token)).with_holder(self.note())
        })
    }

    /// Returns the fingerprint of the grant, if fingerprints are compared while the holder runs.
    pub(crate) fn fingerprint(&self) -> Option<&Fingerprint> {
        self.extra.as_ref()?.fingerprint.as_ref()
    }

    #[inline(always)]
    pub(crate) fn has_key(&self, key: &str) -> bool {
        // Compare the pointers first, because both keys usually share one allocation.
        self.key.as_ref().map(Key::expose).is_some_and(|kept| {
            kept.len() == key.len()
                && (kept.as_ptr() == key.as_ptr() || kept.as_bytes() == key.as_bytes())
        })
    }

    /// Returns the earliest time at which a purge can delete this record.
    #[inline]
    pub(crate) fn due(&self) -> Instant {
        self.expires.max(after(self.granted, self.ttl))
    }

    /// Returns the bytes that an IN_PROGRESS record takes, without its slot and its [`Extra`]. They
    /// include the key's bytes, although the record shares the key with the caller.
    #[inline]
    pub(crate) fn size_with(key: &Key) -> u64 {
        (size_of::<Self>() + key.expose().len() + 16) as u64
    }

    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.key.as_ref().map_or(0, Self::size_with) + self.extra_size()
    }

    pub(crate) fn extra_size(&self) -> u64 {
        self.extra.as_ref().map_or(0, |_| Extra::SIZE)
    }
}

/// Whether a grant of this request needs an [`Extra`].
pub(crate) fn needs_extra(req: &AcquireRequest) -> bool {
    req.holder.is_some() || req.compares_in_flight()
}

/// The highest count of takeovers that any store keeps.
const MAX_TAKEOVERS: u16 = 32_767;

/// The IN_PROGRESS records of a shard.
pub(crate) struct BusySlab {
    places: Chunked<Busy, 16>,
    free: u32,
    len: u32,
}

impl BusySlab {
    pub(crate) const fn new() -> Self {
        Self { places: Chunked::new(), free: NONE, len: 0 }
    }

    /// Returns how many records are in progress.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of entries, including free ones.
    pub(crate) fn places(&self) -> u32 {
        self.places.len()
    }

    /// Takes a free entry, which the caller then fills. Returns the entry and its index.
    #[inline(always)]
    pub(crate) fn add(&mut self, now: Instant) -> (u32, &mut Busy) {
        self.len += 1;
        let mut at = self.free;
        if at == NONE {
            at = self.places.push_with(|| Busy::free(now));
        }
        let place = &mut self.places[at];
        self.free = place.slot;
        (at, place)
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: u32) -> (&mut Busy, Freeing<'_>) {
        (&mut self.places[at], Freeing { at, free: &mut self.free, len: &mut self.len })
    }

    /// Frees an entry. Drop the result after the lock is released. This method itself drops an
    /// [`Extra`], which is small and rare.
    pub(crate) fn remove(&mut self, at: u32) -> Left {
        let (busy, freeing) = self.get_mut(at);
        busy.extra = None;
        freeing.free(busy)
    }
}

/// Frees an entry that was already looked up.
pub(crate) struct Freeing<'a> {
    at: u32,
    free: &'a mut u32,
    len: &'a mut u32,
}

impl Freeing<'_> {
    /// Like [`BusySlab::remove`], for an entry without an [`Extra`].
    #[inline(always)]
    pub(crate) fn free(self, busy: &mut Busy) -> Left {
        busy.slot = std::mem::replace(self.free, self.at);
        *self.len -= 1;
        Left { _key: busy.key.take(), ended: busy.ended.take() }
    }
}

/// The parts of a deleted IN_PROGRESS record that the caller needs after the lock is released: a
/// key to drop, and a notification to fire.
#[derive(Default)]
pub(crate) struct Left {
    _key: Option<Key>,
    pub(crate) ended: Option<Arc<Ended>>,
}

impl std::ops::Index<u32> for BusySlab {
    type Output = Busy;

    #[inline]
    fn index(&self, at: u32) -> &Busy {
        &self.places[at]
    }
}

impl std::ops::IndexMut<u32> for BusySlab {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Busy {
        &mut self.places[at]
    }
}
