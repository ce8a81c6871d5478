// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListenerBuilder`]: the settings of a listener.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use retryproof_core::listener::Backoff;
use retryproof_core::{IntoScope, Result, Scope};

use crate::delivery::{KeyOf, message_id};

/// The settings of a [`NatsListener`](crate::NatsListener); made by
/// [`NatsListener::builder`](crate::NatsListener::builder).
#[must_use = "a builder does nothing until `build`"]
pub struct NatsListenerBuilder {
    pub(crate) jetstream: Context,
    pub(crate) consumer: PullConsumer,
    pub(crate) scope: Result<Scope>,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) dead_letters: Option<String>,
    pub(crate) prefetch: usize,
    pub(crate) concurrency: usize,
    pub(crate) max_parked: usize,
    pub(crate) backoff: Backoff,
    pub(crate) max_deliveries: Option<u64>,
    pub(crate) fetch_timeout: Duration,
    pub(crate) drain_timeout: Duration,
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
}

/// A limit of the consumer; zero and less mean that it has none.
pub(crate) fn limit(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|limit| *limit > 0)
}

/// The same as a number of messages, which is unbounded without a limit.
pub(crate) fn count(value: i64) -> usize {
    limit(value).and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

pub(crate) fn nonzero(duration: Duration) -> Option<Duration> {
    Some(duration).filter(|duration| !duration.is_zero())
}
