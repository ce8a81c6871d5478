// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Known`]: which identities this process has seen complete, so that their duplicates are served by the cheaper statement.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof_core::Identity;
use tokio::time::Instant;

/// 4,096 places of 16 bytes, each for the identity that asked last. A guess: whoever goes by it asks the server all the same, so that
/// a wrong one costs a round trip and nothing else.
pub(crate) struct Known {
    places: Box<[Place]>,
    hasher: RandomState,
    start: Instant,
}

#[derive(Default)]
struct Place {
    hash: AtomicU64,
    /// Milliseconds since the start until which the result is kept, by this host's clock.
    until: AtomicU64,
}

const PLACES: usize = 4_096;

impl Known {
    pub(crate) fn new() -> Self {
        let places = (0..PLACES).map(|_| Place::default()).collect();
        Self { places, hasher: RandomState::new(), start: Instant::now() }
    }

    fn place(&self, id: &Identity) -> (&Place, u64) {
        let hash = self.hasher.hash_one(id);
        let at = usize::try_from(hash % PLACES as u64).unwrap_or(0);
        (&self.places[at], hash)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// It is complete for so long from now.
    pub(crate) fn note(&self, id: &Identity, rest: Duration) {
        let (place, hash) = self.place(id);
        let rest = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
        place.until.store(self.now().saturating_add(rest), Ordering::Relaxed);
        place.hash.store(hash, Ordering::Relaxed);
    }

    pub(crate) fn is_complete(&self, id: &Identity) -> bool {
        let (place, hash) = self.place(id);
        place.hash.load(Ordering::Relaxed) == hash && self.now() < place.until.load(Ordering::Relaxed)
    }
}
