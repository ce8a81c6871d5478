// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Delivery`]: one message as a handler sees it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, Message, jetstream};
use retryproof_core::listener::{Poison, body_fingerprint};
use retryproof_core::{ContextBuilder, IdempotencyContext, Identity, Key, Scope};
use serde::de::DeserializeOwned;

/// One delivery of a message. Cheap to clone.
///
/// A handler reads it and returns a [`Verdict`](retryproof_core::listener::Verdict), which the
/// listener turns into an answer. The methods that fail return a [`Poison`]: a handler passes it on
/// with `?`, and the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: jetstream::Message,
    scope: Scope,
    key: Result<Key, Poison>,
    /// `None` if the reply subject does not hold it.
    position: Option<StreamPosition>,
}

/// The position of a message in its stream, from its reply subject.
#[derive(Debug, Clone)]
pub(crate) struct StreamPosition {
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) sequence: u64,
    /// In nanoseconds since 1970. It distinguishes messages of a stream that was deleted and
    /// created again.
    pub(crate) published: u128,
    /// Starts at 1.
    pub(crate) deliveries: u64,
}

/// Finds the key of a message; `None` if the message has none.
pub(crate) type KeyOf = dyn Fn(&Message) -> Option<String> + Send + Sync;

/// The header `Nats-Msg-Id`, which publishers set for the stream's own duplicate check.
pub(crate) fn message_id(message: &Message) -> Option<String> {
    message.headers.as_ref()?.get(NATS_MESSAGE_ID).map(|id| id.as_str().to_owned())
}

impl Delivery {
    pub(crate) fn new(message: jetstream::Message, scope: Scope, key_of: &KeyOf) -> Self {
        let position = message.info().ok().map(|info| StreamPosition {
            stream: info.stream.to_owned(),
            consumer: info.consumer.to_owned(),
            sequence: info.stream_sequence,
            published: SystemTime::from(info.published)
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_nanos()),
            deliveries: u64::try_from(info.delivered).unwrap_or(1),
        });
        // The program's key function runs on the listener's task. Its panic must affect this
        // message only.
        let key = match catch_unwind(AssertUnwindSafe(|| key_of(&message))) {
            Ok(Some(key)) => Key::new(key).map_err(|_| Poison::BadKey),
            Ok(None) => Err(Poison::NoKey),
            Err(_) => Err(Poison::BadKey),
        };
        Self(Arc::new(Inner { message, scope, key, position }))
    }

    /// The key: the header `Nats-Msg-Id`, or what [`key`](crate::NatsListenerBuilder::key) found.
    ///
    /// # Errors
    /// [`Poison::NoKey`], [`Poison::BadKey`] (ID-3).
    pub fn key(&self) -> Result<&Key, Poison> {
        self.0.key.as_ref().map_err(|poison| *poison)
    }

    /// The context for the call that handles the message: the listener's scope, the key, the
    /// fingerprint of the body (a redelivery with another body is rejected, FP-1), and a wait
    /// timeout of zero (LST-1). Lease and ttl are the configured ones of the scope.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    pub fn context(&self) -> Result<IdempotencyContext, Poison> {
        // It cannot fail: scope and key are checked, and zero is a valid wait timeout.
        self.context_builder()?.build().map_err(|_| Poison::BadKey)
    }

    /// As [`context`](Self::context), but not yet built: to set a lease, a ttl, a wait timeout or
    /// another fingerprint.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    pub fn context_builder(&self) -> Result<ContextBuilder, Poison> {
        let builder = IdempotencyContext::builder(&self.0.scope, self.key()?.expose());
        Ok(builder.wait_timeout(Duration::ZERO).fingerprint(body_fingerprint(self.payload())))
    }

    /// The body, decoded from JSON.
    ///
    /// # Errors
    /// [`Poison::Unreadable`].
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Poison> {
        serde_json::from_slice(self.payload()).map_err(|_| Poison::Unreadable)
    }

    /// The body.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.0.message.payload
    }

    /// The headers, if the message has any.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.0.message.headers.as_ref()
    }

    /// The subject to which the message was published.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.message.subject
    }

    /// The message's sequence number in its stream.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.position().map_or(0, |position| position.sequence)
    }

    /// How often the server has delivered the message to this consumer, this delivery included.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.position().map_or(0, |position| position.deliveries)
    }

    pub(crate) fn message(&self) -> &jetstream::Message {
        &self.0.message
    }

    pub(crate) fn position(&self) -> Option<&StreamPosition> {
        self.0.position.as_ref()
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        self.key().ok().map(|key| Identity::new(self.0.scope.clone(), key.clone()))
    }
}

// Not derived: key, headers and body must not be shown (ID-4).
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("stream", &self.position().map(|position| &position.stream))
            .field("sequence", &self.sequence())
            .field("deliveries", &self.deliveries())
            .field("bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
