// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Known`]: which identities this process has lately seen complete, so that their replay is a bare `GET`.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use retryproof_core::Identity;

/// 64 KiB per store.
const SLOTS: usize = 8_192;

/// A table of hashes, each in its one place: a newer one drives out an older. It decides nothing: who is taken for known by mistake,
/// or has expired, costs one read more.
#[derive(Debug)]
pub(crate) struct Known(Box<[AtomicU64]>);

impl Known {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn has(&self, id: &Identity) -> bool {
        let hash = hash_of(id);
        self.slot(hash).load(Ordering::Relaxed) == hash
    }

    pub(crate) fn add(&self, id: &Identity) {
        let hash = hash_of(id);
        self.slot(hash).store(hash, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, id: &Identity) {
        let hash = hash_of(id);
        let _ = self.slot(hash).compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        let at = usize::try_from(hash >> 1).unwrap_or(0) % SLOTS;
        &self.0[at]
    }
}

/// The hash that the identity brings along: keyed per process, so nobody outside can aim at a place.
fn hash_of(id: &Identity) -> u64 {
    let mut taken = Taken(0);
    id.hash(&mut taken);
    // Never that of an empty place.
    taken.finish() | 1
}

struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acq_8_what_was_seen_complete_is_known_until_it_is_forgotten() {
        let known = Known::new();
        let ids: Vec<_> = (0..64).map(|at| Identity::of("known", format!("k{at}")).unwrap()).collect();
        assert!(!ids.iter().any(|id| known.has(id)));
        known.add(&ids[7]);
        assert!(known.has(&ids[7]) && ids.iter().filter(|id| known.has(id)).count() == 1);
        known.forget(&ids[8]);
        assert!(known.has(&ids[7]));
        known.forget(&ids[7]);
        assert!(!known.has(&ids[7]));
    }
}
