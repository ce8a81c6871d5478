// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RecentHashes`]: a bounded set of hashes, each kept for a fixed time. Every operation takes
//! amortised constant time, even on a full set.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// The set keeps each hash for `keep` after its last note. It holds at most `capacity` notes, and a
/// repeated note of a hash counts as another note. When the set is full, a new note drops the
/// oldest note.
pub(crate) struct RecentHashes {
    keep: Duration,
    capacity: usize,
    noted: HashMap<u64, Instant>,
    /// The notes, oldest first. `note` skips an entry if its hash was noted again or forgotten
    /// later.
    order: VecDeque<(u64, Instant)>,
}

impl RecentHashes {
    pub(crate) fn new(keep: Duration, capacity: usize) -> Self {
        Self { keep, capacity, noted: HashMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn note(&mut self, hash: u64, now: Instant) {
        while let Some(&(oldest, at)) = self.order.front() {
            if self.order.len() < self.capacity && now.duration_since(at) <= self.keep {
                break;
            }
            self.order.pop_front();
            if self.noted.get(&oldest) == Some(&at) {
                self.noted.remove(&oldest);
            }
        }
        self.noted.insert(hash, now);
        self.order.push_back((hash, now));
    }

    pub(crate) fn has(&self, hash: u64, now: Instant) -> bool {
        self.noted.get(&hash).is_some_and(|at| now.duration_since(*at) <= self.keep)
    }

    /// Removes a hash. Returns whether the set still kept the hash.
    pub(crate) fn forget(&mut self, hash: u64, now: Instant) -> bool {
        self.noted.remove(&hash).is_some_and(|at| now.duration_since(at) <= self.keep)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.noted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acq_4_the_newest_are_remembered_for_their_time() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut recent = RecentHashes::new(Duration::from_secs(10), 3);
        (0..5).for_each(|hash| recent.note(hash, at(hash)));
        assert_eq!((0..5).filter(|hash| recent.has(*hash, at(4))).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(!recent.has(2, at(13)) && recent.has(4, at(13)));
        assert!(recent.forget(4, at(13)) && !recent.forget(4, at(13)) && !recent.forget(3, at(14)));
        // A hash that is noted again counts as new. The set does not grow when hashes are noted
        // again or forgotten.
        (0..1_000).for_each(|again| recent.note(again % 2, at(20) + Duration::from_micros(again)));
        assert_eq!((recent.len(), recent.order.len()), (2, 3));
        recent.note(7, at(60));
        assert_eq!((recent.len(), recent.order.len()), (1, 1));
    }
}
