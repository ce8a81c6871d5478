// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`]: who waits for which record in this process, and whether another process has
//! written to the file (ACQ-4).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Identity;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The shortest time between two checks whether another process has written, for all waiters
/// together.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Waiters {
    registry: Mutex<HashMap<Identity, (Arc<Notify>, usize)>>,
    /// How many there are, so that a commit without waiters does less. A waiter that is not counted
    /// yet misses nothing, because it looks after it has subscribed.
    count: AtomicUsize,
    foreign_commits: AtomicU64,
    jitter_state: AtomicU32,
    last_check: Mutex<Option<Instant>>,
}

/// One waiter of a record, until it is dropped.
pub(crate) struct Subscription<'a> {
    waiters: &'a Waiters,
    id: &'a Identity,
    pub(crate) changed: Arc<Notify>,
}

impl Waiters {
    /// Subscribe, then look, then sleep: then no change between the look and the sleep is lost.
    pub(crate) fn subscribe<'a>(&'a self, id: &'a Identity) -> Subscription<'a> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut registry = self.registry.lock();
        let (changed, count) = registry.entry(id.clone()).or_default();
        *count += 1;
        Subscription { waiters: self, id, changed: Arc::clone(changed) }
    }

    /// Wakes the waiters of these records; must be called after the commit. The lock orders this
    /// against [`Self::subscribe`]: either the waiter is found here, or it looks after the commit.
    pub(crate) fn notify_all<'a>(&self, ids: impl Iterator<Item = &'a Identity>) {
        let registry = self.registry.lock();
        if registry.is_empty() {
            return;
        }
        for (changed, _) in ids.filter_map(|id| registry.get(id)) {
            changed.notify_waiters();
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Another process has written to the file.
    pub(crate) fn on_foreign_commit(&self) {
        self.foreign_commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether it is time to check again whether another process has written: one check serves all
    /// waiters.
    pub(crate) fn is_check_due(&self, now: Instant) -> bool {
        let mut last_check = self.last_check.lock();
        let due =
            last_check.is_none_or(|at| now.saturating_duration_since(at) >= MIN_CHECK_INTERVAL);
        if due {
            *last_check = Some(now);
        }
        due
    }

    /// `time` changed by up to 20 %, so that waiters do not poll in step.
    pub(crate) fn jitter(&self, time: Duration) -> Duration {
        // A Weyl sequence: spread evenly enough for this, without a source of random numbers.
        let step = self.jitter_state.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
    }

    /// How often other processes were found to have written.
    pub(crate) fn foreign_commits(&self) -> u64 {
        self.foreign_commits.load(Ordering::Acquire)
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut registry = self.waiters.registry.lock();
        if let Some((_, count)) = registry.get_mut(self.id) {
            *count -= 1;
            if *count == 0 {
                registry.remove(self.id);
            }
        }
        drop(registry);
        self.waiters.count.fetch_sub(1, Ordering::Relaxed);
    }
}
