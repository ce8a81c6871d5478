// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ConsumerBuilder`]: the settings of a consumer, and their checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use retryproof_core::listener::{Backoff, Poison};
use retryproof_core::{IntoScope, Result, Scope};

use crate::delivery::Message;
use crate::receive::url::RootCertificates;
use crate::topology::dead_letters_of;
use settings::{Decode, Settings};

pub(crate) mod settings;

/// Builds a [`Consumer`](crate::Consumer).
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder<T> {
    pub(crate) url: String,
    pub(crate) roots: RootCertificates,
    pub(crate) scope: Result<Scope>,
    pub(crate) settings: Settings,
    pub(crate) decode: Arc<Decode<T>>,
}

impl ConsumerBuilder<Vec<u8>> {
    pub(crate) fn new(url: &str, queue: &str, scope: impl IntoScope) -> Self {
        Self {
            url: url.into(),
            roots: None,
            scope: scope.into_scope(),
            settings: Settings {
                queue: queue.into(),
                dead_letters: dead_letters_of(queue),
                prefetch: None,
                concurrency: 16,
                max_attempts: 20,
                backoff: Backoff::default(),
                drain_timeout: Duration::from_secs(30),
                key: Arc::new(|message| message.message_id().map(str::to_owned)),
                fingerprints: true,
                wait_timeout: Duration::ZERO,
                ttl: None,
                lease: None,
            },
            decode: Arc::new(|message| Ok(message.body().to_vec())),
        }
    }
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Decodes bodies as JSON. A message that does not decode becomes a dead letter without having run
    /// (LST-2).
    pub fn json<U: DeserializeOwned + Send + 'static>(self) -> ConsumerBuilder<U> {
        self.decode(Message::json)
    }

    /// Decodes bodies by the program's own decoder.
    pub fn decode<U>(
        self,
        decode: impl Fn(&Message) -> Result<U, Poison> + Send + Sync + 'static,
    ) -> ConsumerBuilder<U> {
        let Self { url, roots, scope, settings, .. } = self;
        ConsumerBuilder { url, roots, scope, settings, decode: Arc::new(decode) }
    }

    /// Takes the key from elsewhere than the property `message-id`. If `key` returns `None`, the
    /// message becomes a dead letter.
    pub fn key(mut self, key: impl Fn(&Message) -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.key = Arc::new(key);
        self
    }

    /// Takes the key from the header `name`, if that is text or a whole number.
    pub fn key_header(self, name: &'static str) -> Self {
        self.key(move |message| message.header(name))
    }

    /// Treats every message with a known key as a redelivery, whatever its body. Otherwise a message
    /// with another body is rejected (FP-1) and becomes a dead letter.
    pub fn any_body(mut self) -> Self {
        self.settings.fingerprints = false;
        self
    }

    /// How long a redelivery is recognised, as
    /// [`ContextBuilder::ttl`](retryproof_core::ContextBuilder::ttl). Make it longer than a message
    /// may stay in the queue, in the wait queues, and among dead letters that may be sent again.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = Some(ttl);
        self
    }

    /// How long the messages of a consumer that was killed stay in flight, as
    /// [`ContextBuilder::lease`](retryproof_core::ContextBuilder::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = Some(lease);
        self
    }

    /// How long a redelivery waits for another delivery that is in flight; zero unless set: it is
    /// delayed at once (LST-1).
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.settings.wait_timeout = timeout;
        self
    }

    /// How many messages may be received and not answered; the same as [`concurrency`](Self::concurrency)
    /// unless set. With more, the next message is already here when one is answered. But messages
    /// that were received and not begun when the consumer stops, dies or loses its connection are
    /// returned, and that counts against the queue's delivery limit.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.settings.prefetch = Some(messages);
        self
    }

    /// How many messages are handled at the same time; 16 unless set, and never more than the
    /// [`prefetch`](Self::prefetch), if that is set.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.settings.concurrency = messages;
        self
    }

    /// How often the work on a message is tried before the message becomes a dead letter; 20 unless
    /// set. A delivery that finds another one in flight does not count, nor does one that finds the
    /// store away. The broker counts the deliveries to consumers that died
    /// ([`Topology::delivery_limit`](crate::Topology::delivery_limit)).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.max_attempts = attempts;
        self
    }

    /// The pause before a message is delivered again, after a failure or while the store is away:
    /// 1 s, doubled each time up to 1 min, unless set. It is rounded up to a power of two in
    /// seconds.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets another queue for the dead letters than `QUEUE.dead`.
    pub fn dead_letters(mut self, queue: &str) -> Self {
        self.settings.dead_letters = queue.into();
        self
    }

    /// How long a [stop](crate::Stopper::stop) waits for running handlers; 30 s unless set.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout;
        self
    }

    /// The root certificates, in PEM, that verify the broker's certificate for `amqps://`. Unless
    /// set, those that the host trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }
}

impl<T> fmt::Debug for ConsumerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
