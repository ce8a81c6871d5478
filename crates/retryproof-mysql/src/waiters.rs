// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`]: which calls of this process wait for which record (ACQ-4). Calls in other processes
//! poll, because MySQL cannot push.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Identity;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The pause between two reads of a waiter: the first one, and the longest (ACQ-4).
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(40));

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Waiters {
    registry: Mutex<HashMap<Identity, (Arc<Notify>, usize)>>,
    jitter: Jitter,
}

/// An entry among the waiters of a record, removed on drop.
struct Subscription<'a> {
    waiters: &'a Waiters,
    id: &'a Identity,
    woken: Arc<Notify>,
}

impl Waiters {
    /// Waits until the record has changed, its lease has ended, or `timeout` is over.
    /// `remaining_lease` reads what is left of the lease that the caller saw; `None` once that
    /// lease is gone.
    pub(crate) async fn wait_for_change<F, E>(
        &self,
        id: &Identity,
        timeout: Duration,
        remaining_lease: impl Fn() -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Option<Duration>, E>>,
    {
        // Subscribe, then read, then sleep: no change between the read and the sleep is lost.
        let subscription = self.subscribe(id);
        let mut woken = std::pin::pin!(subscription.woken.notified());
        woken.as_mut().enable();
        let end = Instant::now() + timeout;
        let (mut poll, longest) = POLL_INTERVAL;
        loop {
            let Some(left) = remaining_lease().await? else { return Ok(()) };
            let now = Instant::now();
            // Never past the end of the lease, when the waiter may take over (ACQ-2).
            let next = (now + self.jitter.around(poll).min(left)).min(end);
            if next <= now || timeout_at(next, woken.as_mut()).await.is_ok() || next == end {
                return Ok(());
            }
            poll = (poll * 2).min(longest);
        }
    }

    fn subscribe<'a>(&'a self, id: &'a Identity) -> Subscription<'a> {
        let mut registry = self.registry.lock();
        let (woken, count) = registry.entry(id.clone()).or_default();
        *count += 1;
        Subscription { waiters: self, id, woken: Arc::clone(woken) }
    }

    /// Wakes the waiters of a record. Call it after the statement has committed: a waiter that
    /// subscribes too late to be found here then reads the committed row.
    pub(crate) fn notify(&self, id: &Identity) {
        let registry = self.registry.lock();
        if let Some((woken, _)) = registry.get(id) {
            woken.notify_waiters();
        }
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
    }
}

/// Varies durations, so that callers that started together do not stay in step.
#[derive(Default)]
pub(crate) struct Jitter(AtomicU32);

impl Jitter {
    /// A duration within 20 % of `time`.
    pub(crate) fn around(&self, time: Duration) -> Duration {
        // A Weyl sequence spreads evenly enough, without a source of random numbers.
        let step = self.0.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
    }
}
