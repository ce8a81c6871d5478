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
/// A handler reads it, and gives a [`Verdict`](retryproof_core::listener::Verdict); the listener
/// tells the server. A message that cannot be handled is reported by `?`: what fails here is a
/// [`Poison`], and the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: jetstream::Message,
    scope: Scope,
    key: Result<Key, Poison>,
    /// `None` where its reply subject does not say.
    place: Option<Place>,
}

/// Where the message is, as its reply subject says.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) sequence: u64,
    /// In nanoseconds since 1970. With the others it tells one message from all, also when its
    /// stream was made anew.
    pub(crate) published: u128,
    /// From 1.
    pub(crate) deliveries: u64,
}

/// Finds the key of a message; `None` where it has none.
pub(crate) type KeyOf = dyn Fn(&Message) -> Option<String> + Send + Sync;

/// The key that publishers give a message for the stream's own duplicate check.
pub(crate) fn message_id(message: &Message) -> Option<String> {
    message.headers.as_ref()?.get(NATS_MESSAGE_ID).map(|id| id.as_str().to_owned())
}

impl Delivery {
    pub(crate) fn new(message: jetstream::Message, scope: Scope, key_of: &KeyOf) -> Self {
        let place = message.info().ok().map(|info| Place {
            stream: info.stream.to_owned(),
            consumer: info.consumer.to_owned(),
            sequence: info.stream_sequence,
            published: SystemTime::from(info.published)
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_nanos()),
            deliveries: u64::try_from(info.delivered).unwrap_or(1),
        });
        // Somebody's own code, on the listener's own task: a panic costs this message alone.
        let key = match catch_unwind(AssertUnwindSafe(|| key_of(&message))) {
            Ok(Some(key)) => Key::new(key).map_err(|_| Poison::BadKey),
            Ok(None) => Err(Poison::NoKey),
            Err(_) => Err(Poison::BadKey),
        };
        Self(Arc::new(Inner { message, scope, key, place }))
    }

    /// The key: the header `Nats-Msg-Id`, or what the listener's own
    /// [`key`](crate::NatsListenerBuilder::key) found.
    ///
    /// # Errors
    /// [`Poison::NoKey`], [`Poison::BadKey`] (ID-3).
    pub fn key(&self) -> Result<&Key, Poison> {
        self.0.key.as_ref().map_err(|why| *why)
    }

    /// The context of a call that handles the message: the listener's scope, the key, the
    /// fingerprint of the body (a redelivery with another body is refused, FP-1), and a wait of
    /// `PT0S` (LST-1). Lease and ttl are those that are configured for the scope.
    ///
    /// # Errors
    /// Those of [`key`](Self::key).
    pub fn context(&self) -> Result<IdempotencyContext, Poison> {
        // Scope and key are checked, and zero is a wait in bounds; nothing else is in it.
        self.context_builder()?.build().map_err(|_| Poison::BadKey)
    }

    /// The same, to be given a lease, a ttl, a wait or another fingerprint.
    ///
    /// # Errors
    /// Those of [`key`](Self::key).
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

    /// The subject that it was published to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.message.subject
    }

    /// Its sequence number in the stream.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.place().map_or(0, |place| place.sequence)
    }

    /// How often the server has delivered it to this consumer, this time included.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.place().map_or(0, |place| place.deliveries)
    }

    pub(crate) fn message(&self) -> &jetstream::Message {
        &self.0.message
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        self.key().ok().map(|key| Identity::new(self.0.scope.clone(), key.clone()))
    }
}

// By hand: key, headers and body are nobody's business (ID-4).
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("stream", &self.place().map(|place| &place.stream))
            .field("sequence", &self.sequence())
            .field("deliveries", &self.deliveries())
            .field("bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
