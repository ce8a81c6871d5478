// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Wake`]: who waits for which record in this process (ACQ-4). Other processes are not heard of:
//! MySQL cannot push.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Identity;
use tokio::sync::Notify;

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Wake {
    waiters: Mutex<HashMap<Identity, (Arc<Notify>, usize)>>,
    dice: AtomicU32,
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
        let mut waiters = self.waiters.lock();
        let (bell, count) = waiters.entry(id.clone()).or_default();
        *count += 1;
        Subscription { wake: self, id, bell: Arc::clone(bell) }
    }

    /// Wakes the waiters of a record. To be called after the statement has committed. The lock
    /// orders it against
    /// [`Self::subscribe`]: either the waiter is found here, or its look comes after the commit.
    pub(crate) fn wake(&self, id: &Identity) {
        let waiters = self.waiters.lock();
        if let Some((bell, _)) = waiters.get(id) {
            bell.notify_waiters();
        }
    }

    /// `time` within 20 % of it, so that waiters do not march in step.
    pub(crate) fn jitter(&self, time: Duration) -> Duration {
        // A Weyl sequence: spread evenly enough for this, without a source of random numbers.
        let step = self.dice.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
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
    }
}
