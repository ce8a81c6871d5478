// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Known`]: which identities this process has just seen complete.
//!
//! The upsert of an acquire answers a duplicate too, in the same one trip, but it locks the row, so that replays of a hot key would queue.
//! Of a known key the record is read by a plain SELECT instead. A wrong guess costs one more trip and decides nothing.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use retryproof_core::Identity;

/// How many are remembered, each in the one place that its hash names; a newcomer takes the place over.
const PLACES: usize = 16_384;

pub(crate) struct Known {
    hash: RandomState,
    places: Box<[AtomicU64]>,
}

impl Known {
    pub(crate) fn new() -> Self {
        Self { hash: RandomState::new(), places: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(crate) fn has(&self, id: &Identity) -> bool {
        let (place, mark) = self.place(id);
        place.load(Ordering::Relaxed) == mark
    }

    pub(crate) fn note(&self, id: &Identity) {
        let (place, mark) = self.place(id);
        place.store(mark, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, id: &Identity) {
        let (place, mark) = self.place(id);
        // Whoever took the place meanwhile keeps it.
        let _ = place.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn place(&self, id: &Identity) -> (&AtomicU64, u64) {
        let hash = self.hash.hash_one(id);
        let at = usize::try_from(hash % PLACES as u64).unwrap_or(0);
        // Zero is an empty place.
        (&self.places[at], hash | 1)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acq_8_a_completed_identity_is_known_until_it_is_forgotten() {
        let known = Known::new();
        let id = Identity::of("unit", "k").expect("a valid identity");
        assert!(!known.has(&id));
        known.note(&id);
        assert!(known.has(&id));
        known.forget(&id);
        assert!(!known.has(&id));
    }
}
