// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListenerBuilder`]: the settings of a listener, and the check of its consumer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use retryproof_core::listener::{Backoff, VerdictCounters};
use retryproof_core::{IntoScope, Result, Scope};
use tokio::sync::Semaphore;

use crate::NatsListener;
use crate::answer::ServerReplies;
use crate::dead_letter::DeadLetterSubject;
use crate::delivery::{KeyOf, message_id};
use crate::error::invalid_setting;
use crate::handle::HandlerContext;

/// How long one request to the server waits for its response.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The server's `ack_wait` for a consumer that sets none.
const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(30);

/// The settings of a [`NatsListener`]; made by [`NatsListener::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct NatsListenerBuilder {
    jetstream: Context,
    consumer: PullConsumer,
    scope: Result<Scope>,
    key_of: Arc<KeyOf>,
    dead_letters: Option<String>,
    prefetch: usize,
    concurrency: usize,
    max_parked: usize,
    backoff: Backoff,
    max_deliveries: Option<u64>,
    fetch_timeout: Duration,
    drain_timeout: Duration,
}

impl fmt::Debug for NatsListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsListenerBuilder")
            .field("dead_letters", &self.dead_letters)
            .field("prefetch", &self.prefetch)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

impl NatsListenerBuilder {
    pub(crate) fn new(jetstream: Context, consumer: PullConsumer, scope: impl IntoScope) -> Self {
        Self {
            jetstream,
            consumer,
            scope: scope.into_scope(),
            key_of: Arc::new(message_id),
            dead_letters: None,
            prefetch: 100,
            concurrency: 16,
            max_parked: 500,
            backoff: Backoff::default(),
            max_deliveries: None,
            fetch_timeout: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(30),
        }
    }

    /// The subject for messages that cannot be handled (LST-2); another stream has to take it.
    /// Required: without it, such a message could only be dropped.
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = Some(subject.into());
        self
    }

    /// Takes the key from elsewhere than the header `Nats-Msg-Id`. If `key_of` returns `None` or
    /// panics, the message becomes a dead letter.
    pub fn key<F>(mut self, key_of: F) -> Self
    where
        F: Fn(&Message) -> Option<String> + Send + Sync + 'static,
    {
        self.key_of = Arc::new(key_of);
        self
    }

    /// How many messages may be fetched and not answered, without those that are parked; 100 unless
    /// set.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.clamp(1, 10_000);
        self
    }

    /// How many messages are handled at the same time; 16 unless set.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages.clamp(1, 10_000);
        self
    }

    /// How many messages may be parked while other consumers handle their keys; 500 unless set, and
    /// never more than half of the consumer's `max_ack_pending`. Messages beyond that are given
    /// back with a delay, which costs each a delivery.
    pub fn max_parked(mut self, messages: usize) -> Self {
        self.max_parked = messages.min(10_000);
        self
    }

    /// The pause before a failed message is redelivered: 1 s, doubled with each delivery up to
    /// 1 min, unless set.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Makes a message that fails in this delivery, or in a later one, a dead letter. Prefer this to
    /// the consumer's `max_deliver`: there the server silently drops a message whose consumer dies
    /// during the last delivery.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.max_deliveries = Some(u64::from(deliveries.max(1)));
        self
    }

    /// How long a fetch request stays open while there are no messages; 2 s unless set. A stop waits
    /// until the open request ends, so that no message waits for the end of its `ack_wait`, and
    /// gives back the messages that were not begun with this delay.
    pub fn fetch_timeout(mut self, timeout: Duration) -> Self {
        self.fetch_timeout = timeout.clamp(Duration::from_millis(100), Duration::from_secs(60));
        self
    }

    /// How long a stop waits for running handlers; 30 s unless set.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Checks the settings, also against the server.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config): no subject for dead letters; one
    /// that no stream takes, or that the consumer's own stream takes (it would deliver its own dead
    /// letters); a consumer without explicit acknowledgements, or without bodies.
    /// [`ErrorKind::Invalid`](retryproof_core::ErrorKind::Invalid) for the scope.
    /// [`ErrorKind::Unavailable`](retryproof_core::ErrorKind::Unavailable) when the server does not
    /// answer.
    pub async fn build(self) -> Result<NatsListener> {
        let scope = self.scope?;
        let info = self.consumer.cached_info();
        let config = &info.config;
        if config.ack_policy != AckPolicy::Explicit {
            return Err(invalid_setting(
                "the consumer does not acknowledge messages one by one; set its `ack_policy` to \
                 `explicit`",
            ));
        }
        if config.headers_only {
            return Err(invalid_setting(
                "the consumer delivers headers only; a listener needs the bodies",
            ));
        }
        let subject = self.dead_letters.ok_or_else(|| {
            invalid_setting(
                "no subject for dead letters is set: call `.dead_letters(\"dead.orders\")`",
            )
        })?;
        let client = self.jetstream.client();
        let dead_letters =
            DeadLetterSubject { jetstream: self.jetstream, subject, timeout: REPLY_TIMEOUT };
        dead_letters.check(&info.stream_name).await?;
        let ack_wait = nonzero(config.ack_wait).unwrap_or(DEFAULT_ACK_WAIT);
        let shortest = config.backoff.iter().copied().fold(ack_wait, Duration::min);
        let max_deliver = limit(config.max_deliver);
        let context = HandlerContext {
            replies: ServerReplies {
                client,
                timeout: REPLY_TIMEOUT,
                dead_letters,
                backoff: self.backoff,
                max_deliver,
                counters: Arc::new(VerdictCounters::default()),
            },
            scope,
            key_of: self.key_of,
            // Three reports within the shortest wait: two may get lost.
            progress_interval: (shortest / 3).max(Duration::from_millis(50)),
            running: Semaphore::new(self.concurrency),
            parked: Semaphore::new(self.max_parked.min(count(config.max_ack_pending) / 2)),
            backoff: self.backoff,
            fetch_timeout: nonzero(config.max_expires)
                .map_or(self.fetch_timeout, |most| most.min(self.fetch_timeout)),
            max_deliveries: [max_deliver, self.max_deliveries].into_iter().flatten().min(),
            store_away: AtomicBool::new(false),
        };
        let prefetch = self.prefetch.min(count(config.max_batch));
        Ok(NatsListener {
            context: Arc::new(context),
            prefetch,
            consumer: self.consumer,
            drain_timeout: self.drain_timeout,
        })
    }
}

/// A limit of the consumer; zero and less mean that it has none.
fn limit(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|limit| *limit > 0)
}

/// The same as a number of messages, which is unbounded without a limit.
fn count(value: i64) -> usize {
    limit(value).and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn nonzero(duration: Duration) -> Option<Duration> {
    Some(duration).filter(|duration| !duration.is_zero())
}
