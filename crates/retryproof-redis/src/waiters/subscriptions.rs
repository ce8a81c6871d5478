// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SubscriptionTask`] owns the subscriptions of a store, and makes them over a separate
//! connection. One task sends every SUBSCRIBE and UNSUBSCRIBE, so the commands for a channel never
//! overtake each other.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use retryproof_core::Error;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::connection::{Connection, Purpose};
use crate::error::Failure;
use crate::pool::primary::PrimaryLocator;

/// The pause after a failed attempt to connect or subscribe.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The largest number of channels that one batch of commands covers.
const MAX_BATCH: usize = 256;

/// The name of a channel, which is the key of its record.
pub(super) type Channel = Arc<[u8]>;

/// What a waiter sends to the task.
pub(super) enum SubscriptionChange {
    /// Subscribe to the channel. The task answers when the server has confirmed the subscription.
    Join(Channel, oneshot::Sender<Arc<Notify>>),
    Leave(Channel),
}

/// The task's state: the waiters of each channel.
#[derive(Default)]
pub(super) struct SubscriptionTask {
    channels: HashMap<Channel, ChannelWaiters>,
    /// Channels whose waiters have changed since the last command.
    touched: HashSet<Channel>,
}

#[derive(Default)]
struct ChannelWaiters {
    count: usize,
    woken: Arc<Notify>,
    confirmed: bool,
    /// The waiters to notify when the server has confirmed the subscription.
    joining: Vec<oneshot::Sender<Arc<Notify>>>,
}

/// The UNSUBSCRIBE and SUBSCRIBE commands that the server has not answered yet. The future yields
/// the channels whose subscription the server has confirmed.
type Sent = Pin<Box<dyn Future<Output = Result<Vec<Channel>, Failure>> + Send>>;

impl SubscriptionTask {
    /// Runs until the store is dropped or the runtime ends.
    pub(super) async fn run(
        mut self,
        locator: Arc<PrimaryLocator>,
        mut changes: mpsc::UnboundedReceiver<SubscriptionChange>,
    ) {
        let mut has_warned = false;
        loop {
            while self.channels.is_empty() {
                match changes.recv().await {
                    Some(change) => self.apply(change),
                    None => return,
                }
            }
            let (to, pushed) = mpsc::unbounded_channel();
            let ended = match locator.connect(&Purpose::Messages(to)).await {
                Ok((connection, epoch)) => {
                    has_warned = false;
                    self.serve(&locator, epoch, connection, pushed, &mut changes).await
                }
                Err(error) => Some(error),
            };
            self.wake_all();
            let Some(error) = ended else {
                if changes.is_closed() {
                    return;
                }
                continue;
            };
            if !std::mem::replace(&mut has_warned, true) {
                tracing::warn!(%error, "the store gets no notifications from the server; waiters \
                     poll instead");
            }
            // Until the next attempt, let new waiters poll instead of waiting for a subscription.
            let until = Instant::now() + RETRY_DELAY;
            while let Ok(change) = timeout_at(until, changes.recv()).await {
                let Some(change) = change else { return };
                self.apply(change);
                self.wake_all();
            }
        }
    }

    /// Serves one connection until it ends. Returns an error if the server refuses or does not
    /// answer a command; `None` if the connection breaks, the primary moves or the store is
    /// dropped.
    async fn serve(
        &mut self,
        locator: &PrimaryLocator,
        epoch: u64,
        connection: Connection,
        mut pushed: mpsc::UnboundedReceiver<PushInfo>,
        changes: &mut mpsc::UnboundedReceiver<SubscriptionChange>,
    ) -> Option<Error> {
        self.touched.extend(self.channels.keys().cloned());
        let mut subscribed = HashSet::new();
        let mut sent: Option<Sent> = None;
        loop {
            if sent.is_none() {
                sent = self.next_command(&connection.driver, &mut subscribed);
            }
            tokio::select! {
                push = pushed.recv() => match push {
                    Some(PushInfo { kind: PushKind::Message, data }) => self.notify(&data),
                    Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => return None,
                    Some(_) => {}
                },
                () = locator.moved(epoch) => return None,
                done = async {
                    match &mut sent {
                        Some(sent) => sent.await,
                        None => std::future::pending().await,
                    }
                } => {
                    sent = None;
                    match done {
                        Ok(channels) => self.confirm(&channels),
                        Err(Failure::Connection(error))
                            if !error.is_timeout() && error.code().is_none() =>
                        {
                            return None;
                        }
                        Err(failure) => return Some(failure.into_error()),
                    }
                }
                change = changes.recv() => {
                    self.apply(change?);
                    // Take all changes that have arrived, so that they share a command.
                    while self.touched.len() < MAX_BATCH && let Ok(change) = changes.try_recv() {
                        self.apply(change);
                    }
                }
            }
        }
    }

    fn apply(&mut self, change: SubscriptionChange) {
        match change {
            SubscriptionChange::Join(channel, joining) => {
                let waiters = self.channels.entry(Arc::clone(&channel)).or_default();
                waiters.count += 1;
                if waiters.confirmed {
                    let _ = joining.send(Arc::clone(&waiters.woken));
                } else {
                    waiters.joining.push(joining);
                    self.touched.insert(channel);
                }
            }
            SubscriptionChange::Leave(channel) => {
                if let Some(waiters) = self.channels.get_mut(&channel) {
                    waiters.count -= 1;
                    if waiters.count == 0 {
                        self.channels.remove(&channel);
                        self.touched.insert(channel);
                    }
                }
            }
        }
    }

    /// Builds the next command, for up to [`MAX_BATCH`] channels whose waiters have changed; `None`
    /// if there are no such channels.
    fn next_command(
        &mut self,
        driver: &MultiplexedConnection,
        subscribed: &mut HashSet<Channel>,
    ) -> Option<Sent> {
        if self.touched.is_empty() {
            return None;
        }
        let (mut join, mut leave) = (Vec::new(), Vec::new());
        let mut confirmed = Vec::new();
        let batch: Vec<_> = self.touched.iter().take(MAX_BATCH).cloned().collect();
        for channel in batch {
            self.touched.remove(&channel);
            match (self.channels.contains_key(&channel), subscribed.contains(&channel)) {
                (true, false) => {
                    subscribed.insert(Arc::clone(&channel));
                    join.push(channel.to_vec());
                    confirmed.push(channel);
                }
                // The last waiter left and another joined before a command was sent, so the store
                // is still subscribed.
                (true, true) => confirmed.push(channel),
                (false, true) => {
                    subscribed.remove(&channel);
                    leave.push(channel.to_vec());
                }
                (false, false) => {}
            }
        }
        let mut driver = driver.clone();
        Some(Box::pin(async move {
            if !leave.is_empty() {
                driver.unsubscribe(leave).await.map_err(Failure::Connection)?;
            }
            if !join.is_empty() {
                driver.subscribe(join).await.map_err(Failure::Connection)?;
            }
            Ok(confirmed)
        }))
    }

    fn confirm(&mut self, channels: &[Channel]) {
        for channel in channels {
            if let Some(waiters) = self.channels.get_mut(channel) {
                waiters.confirmed = true;
                for joining in waiters.joining.drain(..) {
                    let _ = joining.send(Arc::clone(&waiters.woken));
                }
            }
        }
    }

    fn notify(&self, message: &[Value]) {
        if let Some(Value::BulkString(channel)) = message.first()
            && let Some(waiters) = self.channels.get(channel.as_slice())
        {
            waiters.woken.notify_waiters();
        }
    }

    /// Wakes all waiters so that they read their records, and ends every wait for a subscription.
    /// Runs when there is no connection.
    fn wake_all(&mut self) {
        for waiters in self.channels.values_mut() {
            waiters.confirmed = false;
            waiters.joining.clear();
            waiters.woken.notify_waiters();
        }
        self.touched.clear();
    }
}
