// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Wake`]: who waits for which record in this process, and whether another process has written
//! (ACQ-4).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Identity;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Between two questions whether another process has written, whoever asks.
const POLL_APART: Duration = Duration::from_millis(1);

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Wake {
    waiters: Mutex<HashMap<Identity, (Arc<Notify>, usize)>>,
    /// How many there are, to skip the work when there are none. It decides nothing: a waiter that
    /// comes too late for it looks after it has subscribed.
    count: AtomicUsize,
    foreign: AtomicU64,
    dice: AtomicU32,
    polled: Mutex<Option<Instant>>,
}

/// A place among the waiters of a record; given back on drop.
pub(crate) struct Subscription<'a> {
    wake: &'a Wake,
    id: &'a Identity,
    pub(crate) bell: Arc<Notify>,
}

impl Wake {
    /// Subscribe, then look, then sleep: no change between the look and the sleep is lost.
    pub(crate) fn subscribe<'a>(&'a self, id: &'a Identity) -> Subscription<'a> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut waiters = self.waiters.lock();
        let (bell, count) = waiters.entry(id.clone()).or_default();
        *count += 1;
        Subscription { wake: self, id, bell: Arc::clone(bell) }
    }

    /// Wakes the waiters of these records. To be called after the commit. The lock orders it
    /// against [`Self::subscribe`]: either the waiter is found here, or its look comes after the
    /// commit.
    pub(crate) fn wake<'a>(&self, ids: impl Iterator<Item = &'a Identity>) {
        let waiters = self.waiters.lock();
        if waiters.is_empty() {
            return;
        }
        for (bell, _) in ids.filter_map(|id| waiters.get(id)) {
            bell.notify_waiters();
        }
    }

    /// Whether anybody waits.
    pub(crate) fn is_watched(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Another process has written something.
    pub(crate) fn foreign_commit(&self) {
        self.foreign.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether it is time to ask again whether another process has written: one question serves all
    /// waiters.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut polled = self.polled.lock();
        let due = polled.is_none_or(|at| now.saturating_duration_since(at) >= POLL_APART);
        if due {
            *polled = Some(now);
        }
        due
    }

    /// `time` within 20 % of it, so that waiters do not march in step.
    pub(crate) fn jitter(&self, time: Duration) -> Duration {
        // A Weyl sequence: spread evenly enough for this, without a source of random numbers.
        let step = self.dice.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
    }

    /// Counts such moments.
    pub(crate) fn foreign_commits(&self) -> u64 {
        self.foreign.load(Ordering::Acquire)
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut waiters = self.wake.waiters.lock();
        if let Some((_, count)) = waiters.get_mut(self.id) {
            *count -= 1;
            if *count == 0 {
                waiters.remove(self.id);
            }
        }
        drop(waiters);
        self.wake.count.fetch_sub(1, Ordering::Relaxed);
    }
}
