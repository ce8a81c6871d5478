// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Known`]: which identities this process has lately seen complete.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::identity::Identity;

/// Sets of places. Each identity has one set, so that a few hundred hot keys do not drive each
/// other out.
const SETS: usize = 2_048;
const WAYS: usize = 4;

/// A store's hint of which identities this process has lately seen complete, so that their
/// duplicates are served by a cheaper statement than the one that may grant (ACQ-8).
///
/// It decides nothing: whoever goes by it asks the server all the same, and a wrong guess costs one
/// round trip. It holds 8,192 identities in 128 KiB; in a full set the oldest makes room. It never
/// waits.
pub struct Known {
    sets: Box<[[Place; WAYS]]>,
    start: Instant,
}

#[derive(Default)]
struct Place {
    /// Never that of an identity when it is 0: the place is empty.
    mark: AtomicU64,
    /// Milliseconds since the start until which the result is kept, by this host's clock.
    until: AtomicU64,
}

impl Known {
    /// Knows nobody.
    #[must_use]
    pub fn new() -> Self {
        Self { sets: (0..SETS).map(|_| Default::default()).collect(), start: now() }
    }

    /// Whether it was seen complete, and is not over.
    #[must_use]
    pub fn has(&self, id: &Identity) -> bool {
        let (set, mark) = self.set(id);
        set.iter().find(|place| place.mark.load(Ordering::Relaxed) == mark).is_some_and(|place| {
            match place.until.load(Ordering::Relaxed) {
                u64::MAX => true,
                until => self.elapsed() < until,
            }
        })
    }

    /// It was seen complete, and is kept for `rest` from now. [`Duration::MAX`]: until it is
    /// forgotten.
    pub fn note(&self, id: &Identity, rest: Duration) {
        let until = match rest {
            Duration::MAX => u64::MAX,
            rest => {
                self.elapsed().saturating_add(u64::try_from(rest.as_millis()).unwrap_or(u64::MAX))
            }
        };
        let (set, mark) = self.set(id);
        if let Some(place) = set.iter().find(|place| place.mark.load(Ordering::Relaxed) == mark) {
            place.until.store(until, Ordering::Relaxed);
            return;
        }
        // Two that do this at once mix their places up. That is a wrong guess.
        for at in (1..WAYS).rev() {
            set[at].set(
                set[at - 1].mark.load(Ordering::Relaxed),
                set[at - 1].until.load(Ordering::Relaxed),
            );
        }
        set[0].set(mark, until);
    }

    /// It was not complete after all.
    pub fn forget(&self, id: &Identity) {
        let (set, mark) = self.set(id);
        for place in set {
            // Whoever took the place meanwhile keeps it.
            let _ = place.mark.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The identity's own hash is keyed per process: nobody outside can aim at a set.
    fn set(&self, id: &Identity) -> (&[Place; WAYS], u64) {
        let hash = id.keyed_hash();
        let at = usize::try_from(hash >> 32).unwrap_or(0) % SETS;
        (&self.sets[at], hash | 1)
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Place {
    fn set(&self, mark: u64, until: u64) {
        self.until.store(until, Ordering::Relaxed);
        self.mark.store(mark, Ordering::Relaxed);
    }
}

fn now() -> Instant {
    crate::clock::Clock::now(&crate::clock::SystemClock)
}

impl Default for Known {
    fn default() -> Self {
        Self::new()
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

    fn ids(count: usize) -> Vec<Identity> {
        (0..count).map(|at| Identity::of("known", format!("k{at}")).unwrap()).collect()
    }

    #[test]
    fn acq_8_what_was_seen_complete_is_known_until_it_is_forgotten() {
        let known = Known::new();
        let ids = ids(64);
        assert!(!ids.iter().any(|id| known.has(id)));
        known.note(&ids[7], Duration::MAX);
        known.note(&ids[7], Duration::MAX);
        assert_eq!(ids.iter().filter(|id| known.has(id)).count(), 1);
        known.forget(&ids[8]);
        assert!(known.has(&ids[7]));
        known.forget(&ids[7]);
        assert!(!known.has(&ids[7]));
    }

    #[test]
    fn acq_8_some_hundred_hot_keys_do_not_drive_each_other_out() {
        let known = Known::new();
        let ids = ids(500);
        ids.iter().for_each(|id| known.note(id, Duration::MAX));
        // Where five meet in one set, one of them is: about once in seventy processes, and never
        // four times.
        assert!(ids.iter().filter(|id| known.has(id)).count() >= 497);
        // And a flood does not fill more than there is room for.
        self::ids(100_000).iter().for_each(|id| known.note(id, Duration::MAX));
        assert!(ids.iter().filter(|id| known.has(id)).count() < 50);
    }

    #[tokio::test(start_paused = true)]
    async fn acq_8_a_result_is_known_for_as_long_as_it_is_kept() {
        let known = Known::new();
        let ids = ids(2);
        known.note(&ids[0], Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(known.has(&ids[0]));
        known.note(&ids[0], Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(known.has(&ids[0]));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!known.has(&ids[0]));
    }
}
