// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Ended`]: the notification that a grant is over (ACQ-4).

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::sync::{AtomicBool, Notify, within};

/// The notification that a grant is over: completed, released, taken over or purged. The first
/// waiter creates the notification.
///
/// The notification fires once and stays fired. The call that ends the grant takes the notification
/// out of the record under the shard's lock, and fires the notification after the lock is released.
/// A waiter that got the notification from the record is therefore woken, or sees that the
/// notification has fired.
pub(crate) struct Ended {
    over: AtomicBool,
    notify: Notify,
}

impl Ended {
    pub(crate) fn new() -> Self {
        Self { over: AtomicBool::new(false), notify: Notify::new() }
    }

    /// Wakes all current and future waiters. The flag is set first; see [`wait`](Self::wait).
    pub(crate) fn fire(&self) {
        self.over.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Sleeps until [`fire`](Self::fire) is called, but no longer than `limit`. Dropping the future
    /// leaves nothing behind.
    pub(crate) async fn wait(&self, limit: Duration) {
        within(limit, async {
            // Subscribe, then check the flag: a `fire` before the subscription has set the flag,
            // and a later `fire` wakes this call.
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            if !self.over.load(Ordering::Acquire) {
                notified.await;
            }
        })
        .await;
    }
}
