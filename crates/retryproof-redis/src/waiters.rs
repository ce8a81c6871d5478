// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`] tracks which calls of this process wait for which record (ACQ-4). While a call waits
//! for a key, the store subscribes to that key's channel; polling finds the changes that the server
//! does not push.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Backoff;
use retryproof_store_kit::wait_for_change;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::pool::primary::PrimaryLocator;

mod subscriptions;

use subscriptions::{Channel, SubscriptionChange, SubscriptionTask};

/// How long a waiter without a subscription pauses between two reads of its record (ACQ-4).
const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
/// How long a waiter with a subscription pauses between two reads. Polling is then only a fallback.
const FALLBACK_POLL: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(1));
/// How long a waiter waits for its subscription before it polls instead.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The waiters of one store in this process.
pub(crate) struct Waiters {
    locator: Arc<PrimaryLocator>,
    task: Mutex<Option<mpsc::UnboundedSender<SubscriptionChange>>>,
}

/// One waiter's share in the subscription to a channel. Dropping the value releases the share.
struct ChannelSubscription {
    task: mpsc::UnboundedSender<SubscriptionChange>,
    channel: Channel,
    /// Notified when a message arrives on the channel; `None` if the server did not confirm the
    /// subscription.
    woken: Option<Arc<Notify>>,
}

impl Drop for ChannelSubscription {
    fn drop(&mut self) {
        let _ = self.task.send(SubscriptionChange::Leave(Arc::clone(&self.channel)));
    }
}

impl Waiters {
    pub(crate) fn new(locator: Arc<PrimaryLocator>) -> Self {
        Self { locator, task: Mutex::new(None) }
    }

    /// Waits until the record has changed, its lease has ended, or `at_most` has passed.
    /// `remaining_lease` reads the time left in the lease that the caller saw; `None` if that lease
    /// is over.
    pub(crate) async fn wait_for_change<F, E>(
        &self,
        key: &[u8],
        at_most: Duration,
        remaining_lease: impl Fn() -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Option<Duration>, E>>,
    {
        let until = Instant::now() + at_most;
        let subscription = self.subscribe(key, at_most.min(SUBSCRIBE_TIMEOUT)).await;
        let never = Notify::new();
        let (woken, poll) = match &subscription.woken {
            Some(woken) => (&**woken, FALLBACK_POLL),
            None => (&never, POLL),
        };
        let remaining_lease = || async { Ok(remaining_lease().await?.map(|_| Duration::MAX)) };
        wait_for_change(woken, until, || poll, remaining_lease).await
    }

    /// Subscribes, and returns when the server has confirmed the subscription. Returns without a
    /// subscription if the server refuses, or after `at_most`. Call this before reading the record:
    /// the read then shows every change whose message was sent before the subscription began.
    async fn subscribe(&self, channel: &[u8], at_most: Duration) -> ChannelSubscription {
        let channel = Channel::from(channel);
        let (to, answer) = oneshot::channel();
        let task = self.send(SubscriptionChange::Join(Arc::clone(&channel), to));
        let mut subscription = ChannelSubscription { task, channel, woken: None };
        if let Ok(Ok(woken)) = timeout(at_most, answer).await {
            subscription.woken = Some(woken);
        }
        subscription
    }

    /// Sends a change to the subscription task. Starts the task for the first waiter.
    fn send(&self, change: SubscriptionChange) -> mpsc::UnboundedSender<SubscriptionChange> {
        let mut task = self.task.lock();
        let change = match &*task {
            Some(to) => match to.send(change) {
                Ok(()) => return to.clone(),
                // The task has ended together with its runtime, so start a new task.
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
