// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NatsListenerBuilder`]: the settings of a listener, and their checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use retryproof_core::listener::{AttemptRules, Backoff, MessageOptions, MessageSettings};
use retryproof_core::{IdentitySecret, IntoScope, Result, Scope};

use crate::delivery::{KeyOf, header};
use crate::error::invalid_setting;

/// The server's default `ack_wait`, for a consumer that sets none.
const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(30);

/// The settings of a [`NatsListener`](crate::NatsListener), created by
/// [`NatsListener::builder`](crate::NatsListener::builder).
#[must_use = "a builder does nothing until `build` is called"]
pub struct NatsListenerBuilder {
    jetstream: Context,
    consumer: PullConsumer,
    scope: Result<Scope>,
    key_of: Arc<KeyOf>,
    subject_of: Option<Arc<KeyOf>>,
    dead_letters: Option<String>,
    messages: MessageOptions,
    prefetch: usize,
    concurrency: usize,
    max_parked: usize,
    backoff: Backoff,
    max_deliveries: Option<u64>,
    fetch_timeout: Duration,
    drain_timeout: Duration,
}

/// The checked settings, within the limits of the consumer.
pub(crate) struct Settings {
    pub(crate) jetstream: Context,
    pub(crate) consumer: PullConsumer,
    pub(crate) dead_letters: String,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) subject_of: Option<Arc<KeyOf>>,
    pub(crate) messages: Arc<MessageSettings>,
    pub(crate) rules: AttemptRules,
    pub(crate) backoff: Backoff,
    pub(crate) prefetch: usize,
    pub(crate) concurrency: usize,
    pub(crate) max_parked: usize,
    /// The consumer's `max_deliver`.
    pub(crate) max_deliver: Option<u64>,
    /// The lower of `max_deliver` and the listener's own limit; `None` if neither is set.
    pub(crate) max_deliveries: Option<u64>,
    pub(crate) progress_interval: Duration,
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
            // The default key is `Nats-Msg-Id`, which publishers already set for the stream's own
            // duplicate check.
            key_of: Arc::new(|message| header(message, "Nats-Msg-Id")),
            subject_of: None,
            dead_letters: None,
            messages: MessageOptions::default(),
            prefetch: 100,
            concurrency: 16,
            max_parked: 500,
            backoff: Backoff::default(),
            max_deliveries: None,
            fetch_timeout: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(30),
        }
    }

    /// Sets the subject for dead letters, which are messages that cannot be handled or have failed
    /// too often (LST-2). This setting is required, because the listener could otherwise only drop
    /// such messages. A stream other than the listener's must capture the subject.
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = Some(subject.into());
        self
    }

    /// Takes the key from the header `name` instead of `Nats-Msg-Id`.
    pub fn key_header(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.key(move |message| header(message, &name))
    }

    /// Computes the key with `key_of` instead of taking the header `Nats-Msg-Id`. If `key_of`
    /// returns `None` or panics, the message becomes a dead letter.
    pub fn key<F>(mut self, key_of: F) -> Self
    where
        F: Fn(&Message) -> Option<String> + Send + Sync + 'static,
    {
        self.key_of = Arc::new(key_of);
        self
    }

    /// Sets the function that finds the data subject of a message: the person or tenant whom the
    /// result is about. If the handler's store has sealed results, the result is sealed with the
    /// key of this subject (SEAL-3). If `subject_of` returns `None`, as by default, the results of
    /// the scope share a key. If `subject_of` panics, the message becomes a dead letter.
    pub fn data_subject<F>(mut self, subject_of: F) -> Self
    where
        F: Fn(&Message) -> Option<String> + Send + Sync + 'static,
    {
        self.subject_of = Some(Arc::new(subject_of));
        self
    }

    /// Treats every message with a known key as a redelivery, even if its body is different. By
    /// default, such a message is rejected (FP-1) and becomes a dead letter.
    pub fn any_body(mut self) -> Self {
        self.messages.any_body = true;
        self
    }

    /// Sets how long a redelivery is recognised; see
    /// [`ContextBuilder::ttl`](retryproof_core::ContextBuilder::ttl). The ttl should be longer than
    /// the time that a message can stay in its stream, plus the time until its dead letter is sent
    /// again.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.messages.ttl = Some(ttl);
        self
    }

    /// Sets how long the messages of a killed listener stay in flight; see
    /// [`ContextBuilder::lease`](retryproof_core::ContextBuilder::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.messages.lease = Some(lease);
        self
    }

    /// Sets how long a redelivery waits while another delivery of its message is in flight. The
    /// default is zero, so the listener parks the redelivery immediately (LST-1): it keeps the
    /// message, and runs the handler again later.
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.messages.wait_timeout = timeout;
        self
    }

    /// Sets the identity secret of the store that the handler uses. The listener's logs then show
    /// the same digests as the store's logs. Without this setting, they show digits of the key's
    /// SHA-256 (ID-5).
    pub fn identity_secret(mut self, secret: IdentitySecret) -> Self {
        self.messages.identity_secret = Some(secret);
        self
    }

    /// Sets how many unanswered messages the listener can hold, not counting parked messages. The
    /// default is 100.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.clamp(1, 10_000);
        self
    }

    /// Sets how many messages are handled at the same time. The default is 16.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages.clamp(1, 10_000);
        self
    }

    /// Sets how many messages can be parked, that is, kept unanswered until the handler runs again,
    /// for example while another delivery with the same key is handled. The default is 500. The
    /// maximum is 10,000 or half of the consumer's `max_ack_pending`, whichever is lower. Any
    /// further message is given back with a delay, which uses up one of its deliveries.
    pub fn max_parked(mut self, messages: usize) -> Self {
        self.max_parked = messages.min(10_000);
        self
    }

    /// Sets the pause before a failed message is redelivered. By default, the pause is 1 s after
    /// the first delivery, and doubles with each further delivery, up to 1 min.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the number of the delivery from which a failure is final. A message that fails in that
    /// delivery or a later one becomes a dead letter. Prefer this setting to the consumer's
    /// `max_deliver`. With `max_deliver`, the server silently stops delivering a message if the
    /// consumer dies during the last delivery.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.max_deliveries = Some(u64::from(deliveries.max(1)));
        self
    }

    /// Sets how long a fetch request stays open while there are no messages. The default is 2 s. A
    /// stop waits until the open request ends. Otherwise, a message that the server sends to this
    /// request would be redelivered only after its `ack_wait`. The stop gives back the messages
    /// whose handler has not started, and the server redelivers them after this timeout.
    pub fn fetch_timeout(mut self, timeout: Duration) -> Self {
        self.fetch_timeout = timeout.clamp(Duration::from_millis(100), Duration::from_secs(60));
        self
    }

    /// Sets how long a stop waits for running handlers. The default is 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Checks the settings, and that they are compatible with the consumer's settings.
    pub(crate) fn check(self) -> Result<Settings> {
        let messages = MessageSettings::new(self.scope?, self.messages)?;
        let config = &self.consumer.cached_info().config;
        if config.ack_policy != AckPolicy::Explicit {
            return Err(invalid_setting(
                "the consumer does not acknowledge messages one by one; set its `ack_policy` to \
                 `explicit`",
            ));
        }
        if config.headers_only {
            return Err(invalid_setting(
                "the consumer delivers headers only, but a listener needs the bodies; set \
                 `headers_only` to `false`",
            ));
        }
        let dead_letters = self.dead_letters.ok_or_else(|| {
            invalid_setting(
                "no subject for dead letters is set: call `.dead_letters(\"dead.orders\")`",
            )
        })?;
        let ack_wait = nonzero(config.ack_wait).unwrap_or(DEFAULT_ACK_WAIT);
        let shortest = config.backoff.iter().copied().fold(ack_wait, Duration::min);
        let max_deliver = limit(config.max_deliver);
        let max_deliveries = [max_deliver, self.max_deliveries].into_iter().flatten().min();
        let mut rules = AttemptRules::new(self.backoff).in_flight(self.backoff.after(1));
        if let Some(last) = max_deliveries {
            rules = rules.max_attempts(last);
        }
        Ok(Settings {
            dead_letters,
            key_of: self.key_of,
            subject_of: self.subject_of,
            messages: Arc::new(messages),
            rules,
            backoff: self.backoff,
            prefetch: self.prefetch.min(count(config.max_batch)),
            concurrency: self.concurrency,
            max_parked: self.max_parked.min(count(config.max_ack_pending) / 2),
            max_deliver,
            max_deliveries,
            // The server redelivers a message after three intervals without a report, so one lost
            // report does no harm.
            progress_interval: (shortest / 3).max(Duration::from_millis(50)),
            fetch_timeout: nonzero(config.max_expires)
                .map_or(self.fetch_timeout, |max| max.min(self.fetch_timeout)),
            drain_timeout: self.drain_timeout,
            jetstream: self.jetstream,
            consumer: self.consumer,
        })
    }
}

/// Returns a limit of the consumer, or `None` if its value is zero or less.
fn limit(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|limit| *limit > 0)
}

/// Returns a limit of the consumer as a number of messages, or `usize::MAX` if the consumer has no
/// such limit.
fn count(value: i64) -> usize {
    limit(value).and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn nonzero(duration: Duration) -> Option<Duration> {
    Some(duration).filter(|duration| !duration.is_zero())
}
