// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Ended`]: how the waiters of one grant learn that it is over (ACQ-4).

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::sync::{AtomicBool, Notify, within};

/// Made by the first waiter of a grant, and gone with it: completed, released, taken over or
/// purged.
///
/// It fires once and stays fired. Whoever ends the grant takes it out of the record under the
/// shard's lock and fires it after the lock is released; whoever got it from the record therefore
/// either sees it fired or is woken.
pub(super) struct Ended {
    over: AtomicBool,
    notify: Notify,
}

impl Ended {
    pub(super) fn new() -> Self {
        Self { over: AtomicBool::new(false), notify: Notify::new() }
    }

    /// Wakes all waiters, now and to come. The flag goes first: see [`wait`](Self::wait).
    pub(super) fn fire(&self) {
        self.over.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Sleeps until [`fire`](Self::fire), or for `at_most`. A drop leaves nothing behind.
    pub(super) async fn wait(&self, at_most: Duration) {
        within(at_most, async {
            // Subscribe, then look: a `fire` before the subscription has set the flag, a later one
            // wakes us.
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            if !self.over.load(Ordering::Acquire) {
                notified.await;
            }
        })
        .await;
    }
}
