// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CompletedHint`] remembers the identities whose records this process recently found complete.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof_core::Identity;
use retryproof_core::clock::{Clock, Instant, SystemClock};

/// The number of sets. Each identity belongs to one set of four slots. A few hundred hot keys
/// therefore rarely evict each other.
const SETS: usize = 2_048;
const WAYS: usize = 4;

/// Remembers the identities whose records this process has recently found to be complete. For a
/// duplicate of one of these identities, the store uses a statement that cannot grant a lease and
/// is therefore cheaper (ACQ-8).
///
/// The answer is only a hint: the store still reads the record from the server. A wrong guess costs
/// one round trip. A `CompletedHint` holds 8,192 identities in 128 KiB, evicts the oldest identity
/// of a full set, and never waits.
pub struct CompletedHint {
    sets: Box<[[CacheSlot; WAYS]]>,
    start: Instant,
}

#[derive(Default)]
struct CacheSlot {
    /// The hash of the identity, with its lowest bit set; 0 in an empty slot.
    mark: AtomicU64,
    /// When the record expires, in milliseconds since `start` by this host's clock; `u64::MAX` if
    /// that is unknown.
    until: AtomicU64,
}

impl CompletedHint {
    /// Creates an empty hint.
    #[must_use]
    pub fn new() -> Self {
        Self { sets: (0..SETS).map(|_| Default::default()).collect(), start: now() }
    }

    /// Returns whether the identity's record was found to be complete and has not expired since.
    #[must_use]
    pub fn has(&self, id: &Identity) -> bool {
        let (set, mark) = self.set(id);
        set.iter().find(|slot| slot.mark.load(Ordering::Relaxed) == mark).is_some_and(|slot| {
            match slot.until.load(Ordering::Relaxed) {
                u64::MAX => true,
                until => self.elapsed() < until,
            }
        })
    }

    /// Notes that the record is complete and expires after `rest`. With [`Duration::MAX`], the note
    /// never expires.
    pub fn note(&self, id: &Identity, rest: Duration) {
        let until = match rest {
            Duration::MAX => u64::MAX,
            rest => {
                self.elapsed().saturating_add(u64::try_from(rest.as_millis()).unwrap_or(u64::MAX))
            }
        };
        let (set, mark) = self.set(id);
        if let Some(slot) = set.iter().find(|slot| slot.mark.load(Ordering::Relaxed) == mark) {
            slot.until.store(until, Ordering::Relaxed);
            return;
        }
        // If two threads shift the same set concurrently, the slots can be mixed up. Mixed-up slots
        // only cause a wrong guess.
        for at in (1..WAYS).rev() {
            set[at].set(
                set[at - 1].mark.load(Ordering::Relaxed),
                set[at - 1].until.load(Ordering::Relaxed),
            );
        }
        set[0].set(mark, until);
    }

    /// Removes an identity whose record turned out not to be complete.
    pub fn forget(&self, id: &Identity) {
        let (set, mark) = self.set(id);
        for slot in set {
            // The exchange fails if another identity has taken the slot in the meantime. That
            // identity keeps the slot.
            let _ = slot.mark.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the set of an identity, and the identity's mark. The hash is keyed in each process,
    /// so a client cannot choose keys that all fall into one set.
    fn set(&self, id: &Identity) -> (&[CacheSlot; WAYS], u64) {
        let hash = id.keyed_hash();
        let at = usize::try_from(hash >> 32).unwrap_or(0) % SETS;
        (&self.sets[at], hash | 1)
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

impl CacheSlot {
    fn set(&self, mark: u64, until: u64) {
        self.until.store(until, Ordering::Relaxed);
        self.mark.store(mark, Ordering::Relaxed);
    }
}

fn now() -> Instant {
    SystemClock.now()
}

impl Default for CompletedHint {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CompletedHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletedHint").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize) -> Vec<Identity> {
        (0..count).map(|at| Identity::of("hint", format!("k{at}")).unwrap()).collect()
    }

    #[test]
    fn acq_8_what_was_seen_complete_is_known_until_it_is_forgotten() {
        let hint = CompletedHint::new();
        let ids = ids(64);
        assert!(!ids.iter().any(|id| hint.has(id)));
        hint.note(&ids[7], Duration::MAX);
        hint.note(&ids[7], Duration::MAX);
        assert_eq!(ids.iter().filter(|id| hint.has(id)).count(), 1);
        hint.forget(&ids[8]);
        assert!(hint.has(&ids[7]));
        hint.forget(&ids[7]);
        assert!(!hint.has(&ids[7]));
    }

    #[test]
    fn acq_8_some_hundred_hot_keys_do_not_drive_each_other_out() {
        let hint = CompletedHint::new();
        let ids = ids(500);
        ids.iter().for_each(|id| hint.note(id, Duration::MAX));
        // If five identities share a set, one of the five is evicted. The sets depend on a random
        // seed of the process: about one process in seventy evicts one identity, and practically
        // none evicts four.
        assert!(ids.iter().filter(|id| hint.has(id)).count() >= 497);
        // A flood of other identities evicts almost all of the first 500.
        self::ids(100_000).iter().for_each(|id| hint.note(id, Duration::MAX));
        assert!(ids.iter().filter(|id| hint.has(id)).count() < 50);
    }

    #[tokio::test(start_paused = true)]
    async fn acq_8_a_result_is_known_for_as_long_as_it_is_kept() {
        let hint = CompletedHint::new();
        let ids = ids(2);
        hint.note(&ids[0], Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(hint.has(&ids[0]));
        hint.note(&ids[0], Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(hint.has(&ids[0]));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!hint.has(&ids[0]));
    }
}
