// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RabbitmqListenerBuilder`]: the settings of a listener, and their checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::listener::{AttemptRules, Backoff, MessageOptions, MessageSettings};
use retryproof_core::{IdentitySecret, IntoScope, Result, Scope};

use crate::answer::wait_queue::is_wait_queue;
use crate::delivery::{KeyOf, Message};
use crate::error::invalid_setting;
use crate::receive::url::{BrokerUrl, RootCertificates};

/// The longest name of a queue, in bytes. A wait queue's name is the work queue's name plus a
/// suffix, and the broker allows 255 bytes.
const MAX_QUEUE_NAME_BYTES: usize = 230;

/// The settings of a [`RabbitmqListener`](crate::RabbitmqListener), created by
/// [`RabbitmqListener::builder`](crate::RabbitmqListener::builder).
#[must_use = "a builder does nothing until `build` is called"]
pub struct RabbitmqListenerBuilder {
    url: String,
    roots: RootCertificates,
    queue: String,
    scope: Result<Scope>,
    key_of: Arc<KeyOf>,
    subject_of: Option<Arc<KeyOf>>,
    dead_letters: Option<String>,
    messages: MessageOptions,
    /// The configured prefetch; `None` means that the prefetch is the same as `concurrency`.
    prefetch: Option<u16>,
    concurrency: usize,
    max_attempts: u32,
    backoff: Backoff,
    drain_timeout: Duration,
}

/// The checked settings.
pub(crate) struct Settings {
    pub(crate) url: BrokerUrl,
    pub(crate) queue: String,
    pub(crate) dead_letters: String,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) subject_of: Option<Arc<KeyOf>>,
    pub(crate) messages: Arc<MessageSettings>,
    pub(crate) rules: AttemptRules,
    pub(crate) prefetch: u16,
    pub(crate) concurrency: usize,
    pub(crate) drain_timeout: Duration,
}

impl RabbitmqListenerBuilder {
    pub(crate) fn new(url: &str, queue: &str, scope: impl IntoScope) -> Self {
        Self {
            url: url.into(),
            roots: None,
            queue: queue.into(),
            scope: scope.into_scope(),
            key_of: Arc::new(|message| message.message_id().map(str::to_owned)),
            subject_of: None,
            dead_letters: None,
            messages: MessageOptions::default(),
            prefetch: None,
            concurrency: 16,
            max_attempts: 20,
            backoff: Backoff::default(),
            drain_timeout: Duration::from_secs(30),
        }
    }

    /// Sets the queue for dead letters, which are messages that cannot be handled or have failed
    /// too often (LST-2). This setting is required. The queue must be neither the work queue nor
    /// one of its wait queues, `QUEUE.wait.1s` to `QUEUE.wait.131072s`. By default,
    /// [`Topology`](crate::Topology) names the queue for dead letters `QUEUE.dead`.
    pub fn dead_letters(mut self, queue: impl Into<String>) -> Self {
        self.dead_letters = Some(queue.into());
        self
    }

    /// Takes the key from the header `name` instead of the property `message-id`. The header must
    /// be text or a whole number.
    pub fn key_header(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.key(move |message| message.header(&name))
    }

    /// Computes the key with `key_of` instead of taking the property `message-id`. If `key_of`
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
    /// the time that a message can stay in the work queue and the wait queues, plus the time until
    /// its dead letter is sent again.
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

    /// Sets how long a redelivery waits while another delivery with the same key is in flight. The
    /// default is zero, so the listener moves the redelivery to a wait queue immediately (LST-1).
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

    /// Sets how many unanswered messages the listener can hold. The default is the
    /// [`concurrency`](Self::concurrency). With a prefetch above the concurrency, the next message
    /// has already arrived when a worker becomes free. However, if the consumer stops, dies or
    /// loses its connection, the messages whose handler has not started return to the queue. Each
    /// return counts against the queue's delivery limit.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// Sets how many messages are handled at the same time. The default is 16. If a lower
    /// [`prefetch`](Self::prefetch) is set, the prefetch is the limit.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// Sets how many times the work on a message can be tried before the message becomes a dead
    /// letter. The default is 20. A delivery does not count if another delivery with the same key
    /// is in flight, or if the store is unavailable. The broker separately counts deliveries to
    /// consumers that died ([`Topology::delivery_limit`](crate::Topology::delivery_limit)).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the pause before a message is delivered again after a failure or while the store is
    /// unavailable. By default, the first pause is 1 s, and each further pause is twice as long, up
    /// to 1 min. The pause is rounded up to a power of two in seconds.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets how long a stop waits for running handlers. The default is 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the root certificates, in PEM, that verify the broker's certificate for `amqps://`.
    /// Default: the certificates that the host trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Checks the settings.
    pub(crate) fn check(self) -> Result<Settings> {
        let messages = MessageSettings::new(self.scope?, self.messages)?;
        let dead_letters = self.dead_letters.ok_or_else(|| {
            invalid_setting(
                "no queue for dead letters is set: call `.dead_letters(\"orders.paid.dead\")`",
            )
        })?;
        for queue in [&self.queue, &dead_letters] {
            if queue.is_empty() || queue.len() > MAX_QUEUE_NAME_BYTES {
                return Err(invalid_setting("a queue name must be 1 to 230 bytes long"));
            }
        }
        if dead_letters == self.queue {
            let error = invalid_setting(
                "the work queue cannot also hold its own dead letters; use another queue",
            );
            return Err(error.with("dead_letters", dead_letters));
        }
        if is_wait_queue(&dead_letters, &self.queue) {
            let error = invalid_setting(
                "a wait queue of the work queue cannot also hold the dead letters; use another \
                 queue",
            );
            return Err(error.with("dead_letters", dead_letters));
        }
        if self.prefetch == Some(0) || self.max_attempts == 0 {
            return Err(invalid_setting("`prefetch` and `max_attempts` must be at least 1"));
        }
        // The default prefetch is at least 1, because zero means "no limit" to the broker.
        let prefetch = self
            .prefetch
            .unwrap_or_else(|| u16::try_from(self.concurrency).unwrap_or(u16::MAX).max(1));
        Ok(Settings {
            url: BrokerUrl::parse(&self.url, &self.roots)?,
            queue: self.queue,
            dead_letters,
            key_of: self.key_of,
            subject_of: self.subject_of,
            messages: Arc::new(messages),
            rules: AttemptRules::new(self.backoff).max_attempts(self.max_attempts.into()),
            prefetch,
            concurrency: self.concurrency.min(prefetch.into()),
            drain_timeout: self.drain_timeout,
        })
    }
}

// `Debug` is not derived, because the URL can contain a password (ID-4).
impl fmt::Debug for RabbitmqListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqListenerBuilder")
            .field("queue", &self.queue)
            .field("dead_letters", &self.dead_letters)
            .field("prefetch", &self.prefetch)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}
