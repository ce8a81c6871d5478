// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SubscriptionTask`] owns the subscriptions of a store at one node, and makes them over a
//! separate connection. One task sends every SSUBSCRIBE and SUNSUBSCRIBE, so the commands for a
//! channel never overtake each other. Each command names one channel, because in a cluster all
//! channels of one command must be in the same slot.
//!
//! A node ends a subscription on its own if it no longer serves the channel's slot. The driver then
//! counts the node's message as the answer to the oldest command, so the answers of a batch are
//! compared with its commands. If they differ, the connection is replaced.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, PushKind, ServerError, Value};
use retryproof_core::Error;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::connection::{Connection, Purpose};
use crate::error::Failure;
use crate::pool::primary::PrimaryLocator;
use crate::statement::subscription;

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

/// The subscriptions of a store at one node.
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<Option<mpsc::UnboundedSender<SubscriptionChange>>>);

/// The task's state: the waiters of each channel.
#[derive(Default)]
struct SubscriptionTask {
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

/// The commands that the server has not answered yet. The future yields the outcome.
type Sent = Pin<Box<dyn Future<Output = Result<Answers, Failure>> + Send>>;

/// The server's answers to a batch of commands.
#[derive(Default)]
struct Answers {
    /// The channels to which the store is subscribed.
    confirmed: Vec<Channel>,
    /// The channels to which the server refuses a subscription.
    refused: Vec<Channel>,
    /// The first refusal, unless its reason is that another node serves the slot.
    refusal: Option<ServerError>,
    /// Whether the answers do not match the commands.
    out_of_step: bool,
}

impl SubscriptionTask {
    /// Runs until the store is dropped or the runtime ends.
    async fn run(
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
                push = pushed.recv() => {
                    if !push.is_some_and(|push| self.receive(push, &mut subscribed)) {
                        return None;
                    }
                }
                () = locator.moved(epoch) => return None,
                done = async {
                    match &mut sent {
                        Some(sent) => sent.await,
                        None => std::future::pending().await,
                    }
                } => {
                    sent = None;
                    match done {
                        Ok(answers) => {
                            if answers.out_of_step {
                                return None;
                            }
                            for channel in &answers.refused {
                                subscribed.remove(channel);
                                self.lose(channel);
                            }
                            // The node may have ended a subscription right after it began.
                            let lasts = |channel: &&Channel| subscribed.contains(*channel);
                            self.confirm(answers.confirmed.iter().filter(lasts));
                            if let Some(refusal) = answers.refusal {
                                return Some(Failure::Server(refusal).into_error());
                            }
                        }
                        Err(Failure::Connection(error))
                            if !error.is_timeout() && error.code().is_none() =>
                        {
                            return None;
                        }
                        Err(failure) => return Some(failure.into_error()),
                    }
                    // The driver has also pushed each answer. All pushed answers are read before the
                    // next command, because the end of a channel's old subscription would otherwise
                    // count as the end of its next one.
                    while let Ok(push) = pushed.try_recv() {
                        if !self.receive(push, &mut subscribed) {
                            return None;
                        }
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
        let mut batch = Pipeline::new();
        let (mut sent, mut answers) = (Vec::new(), Answers::default());
        let touched: Vec<_> = self.touched.iter().take(MAX_BATCH).cloned().collect();
        for channel in touched {
            self.touched.remove(&channel);
            match (self.channels.contains_key(&channel), subscribed.contains(&channel)) {
                (true, false) => {
                    subscribed.insert(Arc::clone(&channel));
                    batch.add_command(subscription(true, &channel));
                    sent.push((PushKind::SSubscribe, channel));
                }
                // The last waiter left and another joined before a command was sent, so the store
                // is still subscribed.
                (true, true) => answers.confirmed.push(channel),
                (false, true) => {
                    subscribed.remove(&channel);
                    batch.add_command(subscription(false, &channel));
                    sent.push((PushKind::SUnsubscribe, channel));
                }
                (false, false) => {}
            }
        }
        let mut driver = driver.clone();
        Some(Box::pin(async move {
            if !sent.is_empty() {
                let given = driver.send_packed_commands(&batch, 0, batch.len()).await;
                answers.add(sent, given.map_err(Failure::Connection)?);
            }
            Ok(answers)
        }))
    }

    /// Handles what the driver has pushed. Returns false if the connection has ended.
    fn receive(&mut self, push: PushInfo, subscribed: &mut HashSet<Channel>) -> bool {
        match push.kind {
            PushKind::SMessage => self.notify(&push.data),
            // When the store ends a subscription, it takes the channel out of the set first.
            PushKind::SUnsubscribe => {
                if let Some(channel) = channel_of(&push.data)
                    && subscribed.remove(channel)
                {
                    self.lose(channel);
                }
            }
            PushKind::Disconnection => return false,
            _ => {}
        }
        true
    }

    fn confirm<'a>(&mut self, channels: impl Iterator<Item = &'a Channel>) {
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
        if let Some(waiters) = channel_of(message).and_then(|channel| self.channels.get(channel)) {
            waiters.woken.notify_waiters();
        }
    }

    /// Wakes the waiters of a channel to which the server has ended or refused the subscription,
    /// and ends their waits for it. Each then reads its record and waits again, perhaps at another
    /// node.
    fn lose(&mut self, channel: &[u8]) {
        if let Some(waiters) = self.channels.get_mut(channel) {
            waiters.lose();
        }
    }

    /// Wakes all waiters so that they read their records, and ends every wait for a subscription.
    /// Runs when there is no connection.
    fn wake_all(&mut self) {
        self.channels.values_mut().for_each(ChannelWaiters::lose);
        self.touched.clear();
    }
}

impl Subscriptions {
    /// Sends a change to the node's subscription task. Starts the task for the first waiter.
    pub(super) fn send(
        &self,
        locator: &Arc<PrimaryLocator>,
        change: SubscriptionChange,
    ) -> mpsc::UnboundedSender<SubscriptionChange> {
        let mut task = self.0.lock();
        let change = match &*task {
            Some(to) => match to.send(change) {
                Ok(()) => return to.clone(),
                // The task has ended together with its runtime, so start a new task.
                Err(unsent) => unsent.0,
            },
            None => change,
        };
        let (to, changes) = mpsc::unbounded_channel();
        tokio::spawn(SubscriptionTask::default().run(Arc::clone(locator), changes));
        let _ = to.send(change);
        *task = Some(to.clone());
        to
    }
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriptions").finish_non_exhaustive()
    }
}

impl ChannelWaiters {
    fn lose(&mut self) {
        self.confirmed = false;
        self.joining.clear();
        self.woken.notify_waiters();
    }
}

impl Answers {
    fn add(&mut self, sent: Vec<(PushKind, Channel)>, given: Vec<Value>) {
        self.out_of_step = given.len() != sent.len();
        for ((command, channel), answer) in sent.into_iter().zip(given) {
            match answer {
                Value::Push { kind, data }
                    if kind == command && channel_of(&data) == Some(&*channel) =>
                {
                    if kind == PushKind::SSubscribe {
                        self.confirmed.push(channel);
                    }
                }
                Value::ServerError(error) => {
                    if !matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN") {
                        self.refusal.get_or_insert(error);
                    }
                    self.refused.push(channel);
                }
                _ => self.out_of_step = true,
            }
        }
    }
}

/// Returns the channel in a pushed message, which is the message's first part.
fn channel_of(message: &[Value]) -> Option<&[u8]> {
    match message.first() {
        Some(Value::BulkString(channel)) => Some(channel),
        _ => None,
    }
}
