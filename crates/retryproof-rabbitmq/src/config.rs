// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ConsumerBuilder`]: what a consumer is told once, checked when it is built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use retryproof_core::listener::{Backoff, Poison, body_fingerprint};
use retryproof_core::{Error, ErrorKind, IdempotencyContext, IntoScope, Result, Scope};

use crate::delivery::Message;
use crate::listener::Consumer;
use crate::receive::url::{Roots, Server};

type KeyOf = dyn Fn(&Message) -> Option<String> + Send + Sync;

/// A queue's name is at most 255 bytes, and the names of the wait queues are longer than that of
/// the work queue.
const LONGEST_NAME: usize = 230;

/// Builds a [`Consumer`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder<T> {
    url: String,
    roots: Roots,
    scope: Result<Scope>,
    settings: Settings,
    decode: Arc<Decode<T>>,
}

/// How bodies are decoded.
pub(crate) type Decode<T> = dyn Fn(&Message) -> Result<T, Poison> + Send + Sync;

/// What a consumer keeps.
pub(crate) struct Settings {
    pub(crate) queue: String,
    pub(crate) dead_letters: String,
    /// As many as are worked on at once, unless set.
    prefetch: Option<u16>,
    pub(crate) at_once: usize,
    pub(crate) most_failures: u32,
    pub(crate) backoff: Backoff,
    pub(crate) drain: Duration,
    key: Arc<KeyOf>,
    fingerprints: bool,
    wait: Duration,
    ttl: Option<Duration>,
    lease: Option<Duration>,
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
                at_once: 16,
                most_failures: 20,
                backoff: Backoff::default(),
                drain: Duration::from_secs(30),
                key: Arc::new(|message| message.message_id().map(str::to_owned)),
                fingerprints: true,
                wait: Duration::ZERO,
                ttl: None,
                lease: None,
            },
            decode: Arc::new(|message| Ok(message.body().to_vec())),
        }
    }
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Takes bodies as JSON. One that does not decode is a dead letter, and nothing runs (LST-2).
    pub fn json<U: DeserializeOwned + Send + 'static>(self) -> ConsumerBuilder<U> {
        self.decode(Message::json)
    }

    /// Takes bodies by a decoder of your own.
    pub fn decode<U>(
        self,
        decode: impl Fn(&Message) -> Result<U, Poison> + Send + Sync + 'static,
    ) -> ConsumerBuilder<U> {
        let Self { url, roots, scope, settings, .. } = self;
        ConsumerBuilder { url, roots, scope, settings, decode: Arc::new(decode) }
    }

    /// Where the key is, unless it is the property `message-id`. `None` is a message without a key:
    /// a dead letter.
    pub fn key(mut self, key: impl Fn(&Message) -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.key = Arc::new(key);
        self
    }

    /// The key is the header of this name: text, or a whole number.
    pub fn key_header(self, name: &'static str) -> Self {
        self.key(move |message| message.header(name))
    }

    /// Takes a message under a known key for a redelivery whatever its body. Without this, one with
    /// another body is refused (FP-1) and goes to the dead letters.
    pub fn any_body(mut self) -> Self {
        self.settings.fingerprints = false;
        self
    }

    /// As [`ContextBuilder::ttl`](retryproof_core::ContextBuilder::ttl): how long a redelivery is
    /// recognised. Longer than a message may lie in the queue, the wait queues and the dead letters
    /// from where somebody may send it once more.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = Some(ttl);
        self
    }

    /// As [`ContextBuilder::lease`](retryproof_core::ContextBuilder::lease): how long the messages
    /// of a consumer that was killed stay away.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = Some(lease);
        self
    }

    /// How long a redelivery waits for the delivery that is being worked on. Zero, unless set: it
    /// is put off at once (LST-1).
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How many messages the broker hands over ahead of their answers: unless set, as many as are
    /// worked on [at once](Self::at_once). With more, the next message is at hand when one is
    /// answered; what is handed over and not begun when the consumer stops, dies or loses its
    /// connection goes back, and that counts against the queue's limit of redeliveries.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.settings.prefetch = Some(messages);
        self
    }

    /// How many messages are worked on side by side: 16 unless set, and never more than a
    /// [prefetch](Self::prefetch) that is set.
    pub fn at_once(mut self, messages: usize) -> Self {
        self.settings.at_once = messages;
        self
    }

    /// After how many failures of its work a message is a dead letter: 20 unless set. A delivery
    /// that only found another one in flight does not count, nor does a store that is away, however
    /// long; and a consumer that died counts with the broker
    /// ([`Topology::delivery_limit`](crate::Topology::delivery_limit)).
    pub fn most_failures(mut self, failures: u32) -> Self {
        self.settings.most_failures = failures;
        self
    }

    /// How long a message stays away after each failure, or each time the store is away: 1 s,
    /// doubled up to 1 min, unless set. Rounded up to a power of two in seconds.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Another queue for the dead letters than `NAME.dead`.
    pub fn dead_letters(mut self, queue: &str) -> Self {
        self.settings.dead_letters = queue.into();
        self
    }

    /// How long a consumer that is [stopped](crate::Stopper::stop) waits for what it works on: 30 s
    /// unless set.
    pub fn drain(mut self, at_most: Duration) -> Self {
        self.settings.drain = at_most;
        self
    }

    /// The certificates, in PEM, of whoever signed the broker's, for `amqps://`. Unless set, those
    /// that the host trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Checks everything; connects to nothing yet.
    ///
    /// # Errors
    /// `Config` for a URL that is none, root certificates that cannot be read, a queue's name over
    /// 230 bytes, a prefetch or a number of failures of zero; `Unsupported` for `amqps://` without
    /// the feature `tls`; `Invalid` for a scope or a duration out of bounds (ID-3, CTX-2).
    pub fn build(self) -> Result<Consumer<T>> {
        let Self { url, roots, scope, settings, decode } = self;
        let (server, scope) = (Server::parse(&url, &roots)?, scope?);
        let refuse = |message: &'static str| Err(Error::new(ErrorKind::Config, message));
        for queue in [&settings.queue, &settings.dead_letters] {
            if queue.is_empty() || queue.len() > LONGEST_NAME {
                return refuse("a queue's name takes 1 to 230 bytes");
            }
        }
        if settings.prefetch == Some(0) || settings.most_failures == 0 {
            return refuse("the prefetch and the number of failures are at least 1");
        }
        settings.context(&scope, "checked", b"")?;
        Ok(Consumer::new(server, scope, settings, decode))
    }
}

impl Settings {
    pub(crate) fn prefetch(&self) -> u16 {
        // Zero would be no bound at all.
        self.prefetch.unwrap_or_else(|| u16::try_from(self.at_once).unwrap_or(u16::MAX).max(1))
    }

    /// What a message asks for, or why it cannot be handled.
    pub(crate) fn read<T>(
        &self,
        scope: &Scope,
        decode: &Decode<T>,
        message: &Message,
    ) -> Result<(IdempotencyContext, T), Poison> {
        let key = (self.key)(message).ok_or(Poison::NoKey)?;
        let body = decode(message)?;
        let ctx = self.context(scope, &key, message.body()).map_err(|_| Poison::BadKey)?;
        Ok((ctx, body))
    }

    fn context(&self, scope: &Scope, key: &str, body: &[u8]) -> Result<IdempotencyContext> {
        let mut ctx = IdempotencyContext::builder(scope.clone(), key).wait_timeout(self.wait);
        if let Some(ttl) = self.ttl {
            ctx = ctx.ttl(ttl);
        }
        if let Some(lease) = self.lease {
            ctx = ctx.lease(lease);
        }
        if self.fingerprints {
            ctx = ctx.fingerprint(body_fingerprint(body));
        }
        ctx.build()
    }
}

pub(crate) fn dead_letters_of(queue: &str) -> String {
    format!("{queue}.dead")
}

impl<T> fmt::Debug for ConsumerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("queue", &self.queue)
            .field("dead_letters", &self.dead_letters)
            .field("prefetch", &self.prefetch())
            .field("at_once", &self.at_once)
            .finish_non_exhaustive()
    }
}
