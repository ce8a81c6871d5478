// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Wake`]: a channel per key, subscribed to while somebody waits, over one connection of its own
//! (ACQ-4).
//!
//! One task owns the subscriptions, so that a SUBSCRIBE and an UNSUBSCRIBE of one channel never
//! overtake each other. It starts with the first waiter. Whoever cannot be subscribed polls
//! instead.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use retryproof_core::Error;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{Conn, Purpose};
use crate::error::Failure;
use crate::pool::primary::Route;

/// After a refusal, before the next attempt.
const AGAIN: Duration = Duration::from_secs(1);
/// How many changes go into one command.
const BATCH: usize = 256;

type Channel = Arc<[u8]>;

/// The waiters of a store in this process.
pub(crate) struct Wake {
    route: Arc<Route>,
    task: Mutex<Option<mpsc::UnboundedSender<Change>>>,
    dice: AtomicU32,
}

enum Change {
    Join(Channel, oneshot::Sender<Arc<Notify>>),
    Leave(Channel),
}

/// A place among the waiters of a record; given back by the drop.
pub(crate) struct Place {
    task: mpsc::UnboundedSender<Change>,
    channel: Channel,
    /// Rung when something is published; `None` when nothing will be.
    pub(crate) bell: Option<Arc<Notify>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.task.send(Change::Leave(Arc::clone(&self.channel)));
    }
}

impl Wake {
    pub(crate) fn new(route: Arc<Route>) -> Self {
        Self { route, task: Mutex::new(None), dice: AtomicU32::new(0) }
    }

    /// A place with a bell, once the server has confirmed the subscription; without one after
    /// `at_most`, or when it refuses. Look after that: what was published before is to be seen,
    /// what is published later rings.
    pub(crate) async fn subscribe(&self, channel: &[u8], at_most: Duration) -> Place {
        let channel = Channel::from(channel);
        let (to, answer) = oneshot::channel();
        let task = self.send(Change::Join(Arc::clone(&channel), to));
        let mut place = Place { task, channel, bell: None };
        if let Ok(Ok(bell)) = timeout(at_most, answer).await {
            place.bell = Some(bell);
        }
        place
    }

    fn send(&self, change: Change) -> mpsc::UnboundedSender<Change> {
        let mut task = self.task.lock();
        let change = match &*task {
            Some(to) => match to.send(change) {
                Ok(()) => return to.clone(),
                // It ended with its runtime.
                Err(back) => back.0,
            },
            None => change,
        };
        let (to, changes) = mpsc::unbounded_channel();
        tokio::spawn(Board::default().run(Arc::clone(&self.route), changes));
        let _ = to.send(change);
        *task = Some(to.clone());
        to
    }

    /// `time` within 20 % of it, so that waiters do not march in step.
    pub(crate) fn jitter(&self, time: Duration) -> Duration {
        // A Weyl sequence: spread evenly enough for this, without a source of random numbers.
        let step = self.dice.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        time * (80 + step.rotate_left(16) % 41) / 100
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").finish_non_exhaustive()
    }
}

/// Who waits where.
#[derive(Default)]
struct Board {
    channels: HashMap<Channel, Waiters>,
    /// What differs from what the server was told.
    touched: HashSet<Channel>,
}

#[derive(Default)]
struct Waiters {
    count: usize,
    bell: Arc<Notify>,
    confirmed: bool,
    /// Told when the subscription stands.
    joining: Vec<oneshot::Sender<Arc<Notify>>>,
}

/// A SUBSCRIBE or UNSUBSCRIBE on its way, and the channels that it confirms.
type Sent = Pin<Box<dyn Future<Output = Result<Vec<Channel>, Failure>> + Send>>;

impl Board {
    /// Lives until the store is gone, or the runtime.
    async fn run(mut self, route: Arc<Route>, mut changes: mpsc::UnboundedReceiver<Change>) {
        let mut quiet = false;
        loop {
            while self.channels.is_empty() {
                match changes.recv().await {
                    Some(change) => self.apply(change),
                    None => return,
                }
            }
            let (to, pushed) = mpsc::unbounded_channel();
            let ended = match route.open(&Purpose::Messages(to)).await {
                Ok((conn, epoch)) => {
                    quiet = false;
                    self.serve(&route, epoch, conn, pushed, &mut changes).await
                }
                Err(error) => Some(error),
            };
            self.disband();
            let Some(error) = ended else {
                if changes.is_closed() {
                    return;
                }
                continue;
            };
            if !std::mem::replace(&mut quiet, true) {
                tracing::warn!(%error, "waiters are not woken by the server; they poll instead");
            }
            // Meanwhile nobody is kept waiting for a bell.
            let until = Instant::now() + AGAIN;
            while let Ok(change) = timeout_at(until, changes.recv()).await {
                let Some(change) = change else { return };
                self.apply(change);
                self.disband();
            }
        }
    }

    /// Serves one connection until it breaks (`None`), or the server refuses to push.
    async fn serve(
        &mut self,
        route: &Route,
        epoch: u64,
        conn: Conn,
        mut pushed: mpsc::UnboundedReceiver<PushInfo>,
        changes: &mut mpsc::UnboundedReceiver<Change>,
    ) -> Option<Error> {
        self.touched.extend(self.channels.keys().cloned());
        let mut subscribed = HashSet::new();
        let mut sent: Option<Sent> = None;
        loop {
            if sent.is_none() {
                sent = self.next(&conn.driver, &mut subscribed);
            }
            tokio::select! {
                push = pushed.recv() => match push {
                    Some(PushInfo { kind: PushKind::Message, data }) => self.ring(&data),
                    Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => return None,
                    Some(_) => {}
                },
                () = route.moved(epoch) => return None,
                done = async { match &mut sent { Some(sent) => sent.await, None => std::future::pending().await } } => {
                    sent = None;
                    match done {
                        Ok(channels) => self.confirm(&channels),
                        Err(Failure::Connection(error)) if !error.is_timeout() && error.code().is_none() => return None,
                        Err(failure) => return Some(failure.into_error()),
                    }
                }
                change = changes.recv() => {
                    self.apply(change?);
                    // Those that came together go together.
                    while self.touched.len() < BATCH && let Ok(change) = changes.try_recv() {
                        self.apply(change);
                    }
                }
            }
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Join(channel, joining) => {
                let waiters = self.channels.entry(Arc::clone(&channel)).or_default();
                waiters.count += 1;
                if waiters.confirmed {
                    let _ = joining.send(Arc::clone(&waiters.bell));
                } else {
                    waiters.joining.push(joining);
                    self.touched.insert(channel);
                }
            }
            Change::Leave(channel) => {
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

    /// The next command that brings the server up to date.
    fn next(
        &mut self,
        conn: &MultiplexedConnection,
        subscribed: &mut HashSet<Channel>,
    ) -> Option<Sent> {
        if self.touched.is_empty() {
            return None;
        }
        let (mut join, mut leave) = (Vec::new(), Vec::new());
        let mut confirmed = Vec::new();
        let batch: Vec<_> = self.touched.iter().take(BATCH).cloned().collect();
        for channel in batch {
            self.touched.remove(&channel);
            match (self.channels.contains_key(&channel), subscribed.contains(&channel)) {
                (true, false) => {
                    subscribed.insert(Arc::clone(&channel));
                    join.push(channel.to_vec());
                    confirmed.push(channel);
                }
                // It was left and joined again before the server heard of it.
                (true, true) => confirmed.push(channel),
                (false, true) => {
                    subscribed.remove(&channel);
                    leave.push(channel.to_vec());
                }
                (false, false) => {}
            }
        }
        let mut conn = conn.clone();
        Some(Box::pin(async move {
            if !leave.is_empty() {
                conn.unsubscribe(leave).await.map_err(Failure::Connection)?;
            }
            if !join.is_empty() {
                conn.subscribe(join).await.map_err(Failure::Connection)?;
            }
            Ok(confirmed)
        }))
    }

    fn confirm(&mut self, channels: &[Channel]) {
        for channel in channels {
            if let Some(waiters) = self.channels.get_mut(channel) {
                waiters.confirmed = true;
                for joining in waiters.joining.drain(..) {
                    let _ = joining.send(Arc::clone(&waiters.bell));
                }
            }
        }
    }

    fn ring(&self, message: &[Value]) {
        if let Some(Value::BulkString(channel)) = message.first()
            && let Some(waiters) = self.channels.get(channel.as_slice())
        {
            waiters.bell.notify_waiters();
        }
    }

    /// The connection is gone: everybody looks, and nobody waits for a confirmation.
    fn disband(&mut self) {
        for waiters in self.channels.values_mut() {
            waiters.confirmed = false;
            waiters.joining.clear();
            waiters.bell.notify_waiters();
        }
        self.touched.clear();
    }
}
