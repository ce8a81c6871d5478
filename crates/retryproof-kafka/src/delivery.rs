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
/// A handler reads it and returns a [`Verdict`](retryproof_core::listener::Verdict), which the
/// listener turns into an answer. The methods that fail return a [`Poison`]: a handler passes it on
/// with `?`, and the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: OwnedMessage,
    scope: Scope,
    key: Result<Key, Poison>,
}

/// Finds the key of a message; `None` if the message has none.
pub(crate) type KeyOf = dyn Fn(&OwnedMessage) -> Option<String> + Send + Sync;

/// The text of the header `name`. Bytes that are not UTF-8 are replaced, which makes the key a bad
/// one instead of a missing one.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let found = message.headers()?.iter().find(|header| header.key == name)?;
    Some(String::from_utf8_lossy(found.value?).into_owned())
}

impl Delivery {
    pub(crate) fn new(message: OwnedMessage, scope: Scope, key_of: &KeyOf) -> Self {
        // The program's key function may panic, and rdkafka (0.39) panics at a header name that is
        // not UTF-8. Either must affect this message only.
        let found = catch_unwind(AssertUnwindSafe(|| key_of(&message)));
        let key = found.map_or(Err(Poison::BadKey), |found| match found {
            // After a replacement, two different keys could be equal.
            Some(key) if key.contains('\u{fffd}') => Err(Poison::BadKey),
            Some(key) => Key::new(key).map_err(|_| Poison::BadKey),
            None => Err(Poison::NoKey),
        });
        Self(Arc::new(Inner { message, scope, key }))
    }

    /// The key that [`key_header`](crate::KafkaListenerBuilder::key_header) or
    /// [`key`](crate::KafkaListenerBuilder::key) found.
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

    /// The body; empty for a message without one, as compacted topics have.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.message.payload().unwrap_or_default()
    }

    /// The topic from which the message was read.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.0.message.topic()
    }

    /// The number of the message's partition.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.0.message.partition()
    }

    /// The message's offset in its partition.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.0.message.offset()
    }

    /// The message itself, with Kafka's own key, timestamp and headers. Iterating over the headers
    /// panics inside rdkafka (0.39) at a name that is not UTF-8; a panicking handler counts as a
    /// failed attempt.
    #[must_use]
    pub fn message(&self) -> &OwnedMessage {
        &self.0.message
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        self.key().ok().map(|key| Identity::new(self.0.scope.clone(), key.clone()))
    }
}

// Not derived: key, headers and body must not be shown (ID-4).
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
