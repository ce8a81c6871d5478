// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Recent`]: a bounded memory of hashes, each for a fixed time. Every step is O(1), amortized,
//! however full it is.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// Remembers each hash for `keep` after its last note, and at most `most` of them: the oldest makes
/// room.
pub(crate) struct Recent {
    keep: Duration,
    most: usize,
    noted: HashMap<u64, Instant>,
    /// The notes in their order, oldest first. A note that was repeated or forgotten is skipped
    /// when it comes up.
    order: VecDeque<(u64, Instant)>,
}

impl Recent {
    pub(crate) fn new(keep: Duration, most: usize) -> Self {
        Self { keep, most, noted: HashMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn note(&mut self, hash: u64, now: Instant) {
        while let Some(&(oldest, at)) = self.order.front() {
            if self.order.len() < self.most && now.duration_since(at) <= self.keep {
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

    /// Whether it was remembered, and no longer is.
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
        let mut recent = Recent::new(Duration::from_secs(10), 3);
        (0..5).for_each(|hash| recent.note(hash, at(hash)));
        assert_eq!((0..5).filter(|hash| recent.has(*hash, at(4))).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(!recent.has(2, at(13)) && recent.has(4, at(13)));
        assert!(recent.forget(4, at(13)) && !recent.forget(4, at(13)) && !recent.forget(3, at(14)));
        // Repeated, it is as new; and neither that nor what was forgotten makes it grow.
        (0..1_000).for_each(|again| recent.note(again % 2, at(20) + Duration::from_micros(again)));
        assert_eq!((recent.len(), recent.order.len()), (2, 3));
        recent.note(7, at(60));
        assert_eq!((recent.len(), recent.order.len()), (1, 1));
    }
}
