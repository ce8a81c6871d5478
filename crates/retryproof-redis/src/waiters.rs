// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`]: which calls of this process wait for which record (ACQ-4). A channel for each key is
//! subscribed to while a call waits for it; polling covers what the server does not push.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::pool::primary::PrimaryLocator;

mod subscriptions;

use subscriptions::{Channel, SubscriptionChange, SubscriptionTask};

/// The pause between two reads of a waiter without a subscription: the first one, and the longest.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// The same with a subscription, where polling is only a fallback.
const FALLBACK_POLL_INTERVAL: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(1));
/// How long a waiter waits for its subscription before it polls instead.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The waiters of one store in this process.
pub(crate) struct Waiters {
    locator: Arc<PrimaryLocator>,
    task: Mutex<Option<mpsc::UnboundedSender<SubscriptionChange>>>,
    jitter: Jitter,
}

/// An entry among the waiters of a record, removed on drop.
struct Subscription {
    task: mpsc::UnboundedSender<SubscriptionChange>,
    channel: Channel,
    /// Notified by a message on the channel; `None` without a subscription.
    woken: Option<Arc<Notify>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let _ = self.task.send(SubscriptionChange::Leave(Arc::clone(&self.channel)));
    }
}

impl Waiters {
    pub(crate) fn new(locator: Arc<PrimaryLocator>) -> Self {
        Self { locator, task: Mutex::new(None), jitter: Jitter::default() }
    }

    /// Waits until the record has changed, its lease has ended, or `at_most` is over.
    /// `remaining_lease` reads what is left of the lease that the caller saw; `None` once that
    /// lease is gone.
    pub(crate) async fn wait_for_change<F, E>(
        &self,
        key: &[u8],
        at_most: Duration,
        remaining_lease: impl Fn() -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Option<Duration>, E>>,
    {
        let end = Instant::now() + at_most;
        let subscription = self.subscribe(key, at_most.min(SUBSCRIBE_TIMEOUT)).await;
        let (mut poll, longest) =
            if subscription.woken.is_some() { FALLBACK_POLL_INTERVAL } else { POLL_INTERVAL };
        let never = Notify::new();
        let mut woken = std::pin::pin!(subscription.woken.as_deref().unwrap_or(&never).notified());
        // Before the read: a message after it wakes the waiter.
        woken.as_mut().enable();
        while remaining_lease().await?.is_some() {
            let next = (Instant::now() + self.jitter.around(poll)).min(end);
            if timeout_at(next, woken.as_mut()).await.is_ok() || next == end {
                break;
            }
            poll = (poll * 2).min(longest);
        }
        Ok(())
    }

    /// Subscribes, and returns once the server has confirmed that; without a subscription if the
    /// server refuses, or after `at_most`. Read the record after this: a message is then either
    /// visible in the record, or still to come.
    async fn subscribe(&self, channel: &[u8], at_most: Duration) -> Subscription {
        let channel = Channel::from(channel);
        let (to, answer) = oneshot::channel();
        let task = self.send(SubscriptionChange::Join(Arc::clone(&channel), to));
        let mut subscription = Subscription { task, channel, woken: None };
        if let Ok(Ok(woken)) = timeout(at_most, answer).await {
            subscription.woken = Some(woken);
        }
        subscription
    }

    /// Sends a change to the task, which the first waiter starts.
    fn send(&self, change: SubscriptionChange) -> mpsc::UnboundedSender<SubscriptionChange> {
        let mut task = self.task.lock();
        let change = match &*task {
            Some(to) => match to.send(change) {
                Ok(()) => return to.clone(),
                // The task has ended with its runtime.
                Err(unsent) => unsent.0,
            },
            None => change,
        };
        let (to, changes) = mpsc::unbounded_channel();
        tokio::spawn(SubscriptionTask::default().run(Arc::clone(&self.locator), changes));
        let _ = to.send(change);
        *task = Some(to.clone());
        to
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").finish_non_exhaustive()
    }
}

/// Varies durations, so that callers that started together do not stay in step.
#[derive(Default)]
struct Jitter(AtomicU32);

impl Jitter {
    /// A duration within 20 % of `time`.
    fn around(&self, time: Duration) -> Duration {
        // A Weyl sequence spreads evenly enough, without a source of random numbers.
        let step = self.0.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
    }
}
