// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Fetcher`]: fetches at most as many messages as there are permits, and continues after a
//! connection breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use futures_util::StreamExt;
use retryproof_core::Result;
use retryproof_core::listener::Backoff;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::error::consumer_deleted;

/// How often the listener checks whether the client has reconnected since it sent the open request.
/// A reconnect ends the request on the server.
const RECONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The pause between failed requests.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Fetches messages with one request after another.
pub(crate) struct Fetcher<'a> {
    consumer: &'a PullConsumer,
    client: Client,
    /// How long a request stays open while there are no messages.
    timeout: Duration,
    failures: u32,
    /// The maximum number of messages in one request. A message that async-nats cannot decode
    /// breaks the connection, and every later message in the batch loses one of its deliveries.
    /// After a break, the listener therefore fetches only one message, and doubles the number with
    /// each message that arrives.
    max_messages: usize,
}

/// An open request and its messages.
pub(crate) struct FetchRequest {
    batch: Batch,
    client: Client,
    /// How many times the client had connected when the request was sent. A higher count now means
    /// that the connection was replaced.
    connection: u64,
}

impl<'a> Fetcher<'a> {
    pub(crate) fn new(consumer: &'a PullConsumer, client: Client, timeout: Duration) -> Self {
        Self { consumer, client, timeout, failures: 0, max_messages: usize::MAX }
    }

    /// Requests up to `messages` messages, and retries until the request is sent.
    ///
    /// # Errors
    /// Fails if the consumer or its stream was deleted.
    pub(crate) async fn fetch(&mut self, messages: usize) -> Result<FetchRequest> {
        loop {
            let connection = connections(&self.client);
            let messages = messages.min(self.max_messages);
            let batch = self.consumer.batch().max_messages(messages).expires(self.timeout);
            match batch.messages().await {
                Ok(batch) => {
                    return Ok(FetchRequest { batch, client: self.client.clone(), connection });
                }
                Err(error) => self.failed(&error).await?,
            }
        }
    }

    /// Records that a message has arrived, and doubles the maximum for the next request.
    pub(crate) fn message_arrived(&mut self) {
        self.failures = 0;
        self.max_messages = self.max_messages.saturating_mul(2);
    }

    /// Records that a request has ended. If the request's connection broke, the next request is for
    /// only one message, because a message that async-nats cannot decode may have broken the
    /// connection.
    pub(crate) fn ended(&mut self, request: &FetchRequest) {
        let lost = self.client.connection_state() != State::Connected;
        if lost || connections(&self.client) != request.connection {
            self.max_messages = 1;
        }
    }

    /// Logs a failed request, and pauses before the next request. The pause grows with each
    /// failure.
    ///
    /// # Errors
    /// Fails if the consumer or its stream was deleted, because every further request would fail.
    pub(crate) async fn failed(&mut self, error: &(dyn std::fmt::Display + Sync)) -> Result<()> {
        self.failures = self.failures.saturating_add(1);
        let pause = RETRY_BACKOFF.after(self.failures);
        tracing::warn!(%error, ?pause, "no messages could be fetched; retrying after a pause");
        sleep(pause).await;
        match self.consumer.get_info().await {
            Err(error)
                if matches!(
                    error.kind(),
                    ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound
                ) =>
            {
                Err(consumer_deleted(error))
            }
            _ => Ok(()),
        }
    }
}

impl FetchRequest {
    /// Returns the next message, or `None` if the request has ended or its connection was replaced.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub(crate) async fn next(&mut self) -> Option<Result<jetstream::Message, async_nats::Error>> {
        let mut checks = interval(RECONNECT_CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                message = self.batch.next() => return message,
                _ = checks.tick() => {
                    if connections(&self.client) != self.connection {
                        return None;
                    }
                }
            }
        }
    }
}

/// Returns how many times the client has connected so far.
fn connections(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

/// Waits until a permit is free, then takes all free permits.
pub(crate) async fn free_permits(permits: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    // `acquire_owned` cannot fail, because the semaphore is never closed.
    let mut free: Vec<_> = Arc::clone(permits).acquire_owned().await.into_iter().collect();
    while let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
        free.push(permit);
    }
    free
}
