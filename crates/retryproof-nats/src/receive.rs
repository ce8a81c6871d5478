// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking the server for messages, no more than there is room for, also over a connection that
//! breaks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use futures_util::StreamExt;
use retryproof_core::listener::Backoff;
use retryproof_core::{Error, ErrorKind, Result};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How often a look is taken whether the connection was made anew: the server has forgotten then
/// what was asked of it.
const CONNECTION_EVERY: Duration = Duration::from_millis(250);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Requests for messages, one after the other.
pub(crate) struct Pull<'a> {
    consumer: &'a PullConsumer,
    client: Client,
    open_for: Duration,
    failures: u32,
    /// The most to ask for at once. What is sent behind a message that breaks the connection is
    /// lost with it, and costs each of those a delivery: after a break there is none behind the
    /// first, and twice as many with each message that arrives.
    most: usize,
}

/// The messages that one request brings.
pub(crate) struct Fetched {
    batch: Batch,
    client: Client,
    connects: u64,
}

impl<'a> Pull<'a> {
    pub(crate) fn new(consumer: &'a PullConsumer, client: Client, open_for: Duration) -> Self {
        Self { consumer, client, open_for, failures: 0, most: usize::MAX }
    }

    /// Asks for up to `room` messages; again, after a pause, until the server has taken the
    /// request.
    ///
    /// # Errors
    /// When the consumer is gone.
    pub(crate) async fn ask(&mut self, room: usize) -> Result<Fetched> {
        loop {
            let connects = connects(&self.client);
            let room = room.min(self.most);
            match self.consumer.batch().max_messages(room).expires(self.open_for).messages().await {
                Ok(batch) => return Ok(Fetched { batch, client: self.client.clone(), connects }),
                Err(error) => self.failed(&error).await?,
            }
        }
    }

    /// A message arrived.
    pub(crate) fn went_well(&mut self) {
        self.failures = 0;
        self.most = self.most.saturating_mul(2);
    }

    /// A request is over. If the connection broke meanwhile, a message that the client cannot read
    /// may have done that.
    pub(crate) fn over(&mut self, fetched: &Fetched) {
        let lost = self.client.connection_state() != State::Connected;
        if lost || connects(&self.client) != fetched.connects {
            self.most = 1;
        }
    }

    /// Waits before the next request, longer each time.
    ///
    /// # Errors
    /// When the consumer is gone: then no request will ever go well.
    pub(crate) async fn failed(&mut self, error: &(dyn std::fmt::Display + Sync)) -> Result<()> {
        self.failures = self.failures.saturating_add(1);
        let pause = BACKOFF.after(self.failures);
        tracing::warn!(%error, ?pause, "no messages fetched, the server is asked again");
        sleep(pause).await;
        match self.consumer.get_info().await {
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                Err(Error::new(ErrorKind::Unexpected, "the consumer was deleted").because(error))
            }
            _ => Ok(()),
        }
    }
}

impl Fetched {
    /// The next message; `None` when the request is over, or forgotten with the connection that it
    /// went over.
    ///
    /// # Cancel safety
    /// A drop loses no message.
    pub(crate) async fn next(&mut self) -> Option<Result<jetstream::Message, async_nats::Error>> {
        let mut look = interval(CONNECTION_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                message = self.batch.next() => return message,
                _ = look.tick() => if connects(&self.client) != self.connects { return None },
            }
        }
    }
}

/// How often the client has connected.
fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
