// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Delivery`]: one message as a handler sees it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::message::{Headers, OwnedMessage};
use retryproof_core::listener::{Poison, body_fingerprint};
use retryproof_core::{ContextBuilder, IdempotencyContext, Identity, Key, Scope};
use serde::de::DeserializeOwned;

/// One delivery of a message. Cheap to clone.
///
/// A handler reads it, and gives a [`Verdict`](retryproof_core::listener::Verdict); the listener
/// sees to the rest. A message that cannot be handled is reported by `?`: what fails here is a
/// [`Poison`], and the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: OwnedMessage,
    scope: Scope,
    key: Result<Key, Poison>,
}

/// Finds the key of a message; `None` where it has none.
pub(crate) type KeyOf = dyn Fn(&OwnedMessage) -> Option<String> + Send + Sync;

/// The text of the header `name`; one that is no text counts as bad, not as missing.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let found = message.headers()?.iter().find(|header| header.key == name)?;
    Some(String::from_utf8_lossy(found.value?).into_owned())
}

impl Delivery {
    pub(crate) fn new(message: OwnedMessage, scope: Scope, key_of: &KeyOf) -> Self {
        // It panics where a header's name is no UTF-8, inside of rdkafka (0.39), and where the
        // program's own function does. That is one message's fault, and must not end the others.
        let found = catch_unwind(AssertUnwindSafe(|| key_of(&message)));
        let key = found.map_or(Err(Poison::BadKey), |found| match found {
            // Where text was replaced, two keys could meet.
            Some(key) if key.contains('\u{fffd}') => Err(Poison::BadKey),
            Some(key) => Key::new(key).map_err(|_| Poison::BadKey),
            None => Err(Poison::NoKey),
        });
        Self(Arc::new(Inner { message, scope, key }))
    }

    /// The key that the listener found.
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

    /// The body; empty for a message without one, as compacted topics have.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.message.payload().unwrap_or_default()
    }

    /// The topic that it was read from.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.0.message.topic()
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.0.message.partition()
    }

    /// Its place in the partition.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.0.message.offset()
    }

    /// The message itself: Kafka's own key, time stamp, headers. Walking over headers, rdkafka
    /// (0.39) panics at a name that is no UTF-8; in a handler that counts as a failure.
    #[must_use]
    pub fn message(&self) -> &OwnedMessage {
        &self.0.message
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        self.key().ok().map(|key| Identity::new(self.0.scope.clone(), key.clone()))
    }
}

// By hand: key, headers and body are nobody's business (ID-4).
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("topic", &self.0.message.topic())
            .field("partition", &self.0.message.partition())
            .field("offset", &self.0.message.offset())
            .field("bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
