// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Busy`], an IN_PROGRESS record, and the slab that a shard keeps them in: a grant allocates
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use super::NONE;
use super::chunked::Chunked;
use super::time::after;
use super::wait::Ended;
use crate::clock::Instant;
use crate::identity::Key;
use crate::owner::OwnerId;
use crate::store::AcquireRequest;

/// An IN_PROGRESS record. It lives in a slab that reuses its places, so a grant allocates nothing.
pub(super) struct Busy {
    /// `None` while the place is free.
    pub(super) key: Option<Key>,
    pub(super) owner: OwnerId,
    pub(super) token: u64,
    /// The lease's end.
    pub(super) expires: Instant,
    /// When it was granted, and for how long purge leaves it from then on (STO-4).
    pub(super) granted: Instant,
    pub(super) ttl: Duration,
    /// Where its slot is; while the place is free, the next free one.
    pub(super) slot: u32,
    pub(super) has_fingerprint: bool,
    /// Whether the grant was a takeover, for an owner that asks again (ACQ-12).
    pub(super) took_over: bool,
    /// Made by the first waiter.
    pub(super) ended: Option<Arc<Ended>>,
}

impl Busy {
    /// Something to fill a place with. `time` is any.
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
            took_over: false,
            ended: None,
        }
    }

    /// Fills a free place. Field by field: a whole one would be moved about.
    #[inline(always)]
    pub(super) fn start(
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
        self.took_over = false;
        self.grant(req, now);
    }

    /// Writes what each grant replaces.
    #[inline(always)]
    pub(super) fn grant(&mut self, req: &AcquireRequest, now: Instant) {
        self.owner = req.owner;
        self.expires = after(now, req.lease);
        self.granted = now;
        self.ttl = req.ttl;
        self.has_fingerprint = req.fingerprint.is_some();
    }

    #[inline(always)]
    pub(super) fn has_key(&self, key: &str) -> bool {
        // Mostly it is the caller's own.
        self.key.as_ref().map(Key::expose).is_some_and(|kept| {
            kept.len() == key.len()
                && (kept.as_ptr() == key.as_ptr() || kept.as_bytes() == key.as_bytes())
        })
    }

    /// When purge may take it, as it stands.
    #[inline]
    pub(super) fn due(&self) -> Instant {
        self.expires.max(after(self.granted, self.ttl))
    }

    /// What an IN_PROGRESS record takes besides its slot. The key is shared with the caller's, and
    /// counted all the same.
    #[inline]
    pub(super) fn size_with(key: &Key) -> u64 {
        (size_of::<Self>() + key.expose().len() + 16) as u64
    }

    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.key.as_ref().map_or(0, Self::size_with)
    }
}

/// The IN_PROGRESS records of a shard.
pub(super) struct BusySlab {
    places: Chunked<Busy, 16>,
    free: u32,
    len: u32,
}

impl BusySlab {
    pub(super) const fn new() -> Self {
        Self { places: Chunked::new(), free: NONE, len: 0 }
    }

    /// How many are in progress.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// How many places there are, free ones included.
    pub(super) fn places(&self) -> u32 {
        self.places.len()
    }

    /// A place for one more, to be filled, and where it is.
    #[inline(always)]
    pub(super) fn add(&mut self, now: Instant) -> (u32, &mut Busy) {
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
    pub(super) fn get_mut(&mut self, at: u32) -> (&mut Busy, Freeing<'_>) {
        (&mut self.places[at], Freeing { at, free: &mut self.free, len: &mut self.len })
    }

    /// Frees a place. What was there may hold last references: drop them after the lock.
    pub(super) fn remove(&mut self, at: u32) -> Left {
        let (busy, freeing) = self.get_mut(at);
        freeing.free(busy)
    }
}

/// Frees a place that has been looked up already.
pub(super) struct Freeing<'a> {
    at: u32,
    free: &'a mut u32,
    len: &'a mut u32,
}

impl Freeing<'_> {
    /// As [`BusySlab::remove`].
    #[inline(always)]
    pub(super) fn free(self, busy: &mut Busy) -> Left {
        busy.slot = std::mem::replace(self.free, self.at);
        *self.len -= 1;
        Left { _key: busy.key.take(), ended: busy.ended.take() }
    }
}

/// What is left of an IN_PROGRESS record.
#[derive(Default)]
pub(super) struct Left {
    _key: Option<Key>,
    pub(super) ended: Option<Arc<Ended>>,
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
