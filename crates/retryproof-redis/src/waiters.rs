// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`wait_for_change`] waits for a record (ACQ-4). While a call waits for a key, the store
//! subscribes to that key's channel at the key's node; polling finds the changes that the server
//! does not push.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::Backoff;
use retryproof_store_kit::{wait_end, wait_for_change as wait};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::pool::node::Node;
use crate::route::RecordRoute;

pub(crate) mod subscriptions;

use subscriptions::{Channel, SubscriptionChange};

/// How long a waiter without a subscription pauses between two reads of its record (ACQ-4).
const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
/// How long a waiter with a subscription pauses between two reads. Polling is then only a fallback.
pub(crate) const FALLBACK_POLL: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(1));
/// How long a waiter waits for its subscription before it polls instead.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a waiter in a cluster waits without a subscription. Its caller then reads the record
/// and waits again, perhaps at another node.
const UNSUBSCRIBED: Duration = Duration::from_secs(1);

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

/// Waits until the record has changed, its lease has ended, the subscription has ended, or
/// `at_most` has passed. `remaining_lease` reads the time left in the lease that the caller saw;
/// `None` if that lease is over.
pub(crate) async fn wait_for_change<F, E>(
    route: &RecordRoute,
    key: &[u8],
    at_most: Duration,
    remaining_lease: impl Fn() -> F,
) -> Result<(), E>
where
    F: Future<Output = Result<Option<Duration>, E>>,
{
    let until = wait_end(at_most);
    let subscription = match route.node_of(key) {
        Some(node) => Some(subscribe(&node, key, at_most.min(SUBSCRIBE_TIMEOUT)).await),
        None => None,
    };
    let never = Notify::new();
    let (woken, poll, until) = match subscription.as_ref().and_then(|share| share.woken.as_deref())
    {
        Some(woken) => (woken, FALLBACK_POLL, until),
        None => match route {
            RecordRoute::Primary(_) => (&never, POLL, until),
            RecordRoute::Cluster(_) => (&never, POLL, until.min(Instant::now() + UNSUBSCRIBED)),
        },
    };
    let remaining_lease = || async { Ok(remaining_lease().await?.map(|_| Duration::MAX)) };
    wait(woken, until, || poll, remaining_lease).await
}

/// Subscribes, and returns when the server has confirmed the subscription. Returns without a
/// subscription if the server refuses, or after `at_most`. Call this before reading the record: the
/// read then shows every change whose message was sent before the subscription began.
async fn subscribe(node: &Arc<Node>, channel: &[u8], at_most: Duration) -> ChannelSubscription {
    let channel = Channel::from(channel);
    let (to, answer) = oneshot::channel();
    let join = SubscriptionChange::Join(Arc::clone(&channel), to);
    let task = node.subscriptions.send(node.locator(), join);
    let mut subscription = ChannelSubscription { task, channel, woken: None };
    if let Ok(Ok(woken)) = timeout(at_most, answer).await {
        subscription.woken = Some(woken);
    }
    subscription
}
