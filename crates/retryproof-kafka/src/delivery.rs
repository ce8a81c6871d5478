// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Delivery`]: one message as a handler sees it.

use std::fmt;
use std::sync::Arc;

use rdkafka::Message;
use rdkafka::message::{Headers, OwnedMessage};
use retryproof_core::listener::{AnyDelivery, MessageCall, MessageSettings, Poison, json};
use retryproof_core::{ContextBuilder, IdempotencyContext, Key};
use serde::de::DeserializeOwned;

/// One delivery of a message, cheap to clone.
///
/// A handler reads the delivery and returns a [`Verdict`](retryproof_core::listener::Verdict),
/// which the listener turns into an answer. Methods that can fail return a [`Poison`]: a handler
/// passes it on with `?`, and the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: OwnedMessage,
    call: MessageCall,
}

/// Finds the key of a message; `None` if the message has no key.
pub(crate) type KeyOf = dyn Fn(&OwnedMessage) -> Option<String> + Send + Sync;

/// The text of the header `name`. Bytes that are not UTF-8 are replaced, so that a key with such
/// bytes counts as bad, not as missing.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let found = message.headers()?.iter().find(|header| header.key == name)?;
    Some(String::from_utf8_lossy(found.value?).into_owned())
}

/// Makes a key with replaced bytes empty, so that it counts as bad, because two different keys
/// could be equal after the replacement.
fn without_replacements(key: String) -> String {
    if key.contains('\u{fffd}') { String::new() } else { key }
}

impl Delivery {
    pub(crate) fn new(
        message: OwnedMessage,
        settings: Arc<MessageSettings>,
        key_of: &KeyOf,
    ) -> Self {
        // rdkafka (0.39) panics at a header name that is not UTF-8; the message's key then counts
        // as bad.
        let call = MessageCall::new(settings, || key_of(&message).map(without_replacements));
        Self(Arc::new(Inner { message, call }))
    }

    /// The key that [`key_header`](crate::KafkaListenerBuilder::key_header) or
    /// [`key`](crate::KafkaListenerBuilder::key) found.
    ///
    /// # Errors
    /// [`Poison::NoKey`] or [`Poison::BadKey`] (ID-3).
    pub fn key(&self) -> Result<&Key, Poison> {
        self.0.call.key()
    }

    /// The context for the call that handles the message: the listener's scope, lease, ttl and wait
    /// timeout, the message's key, and the fingerprint of its body (a redelivery with a different
    /// body is rejected, FP-1).
    ///
    /// # Errors
    /// Like [`key`](Self::key).
    pub fn context(&self) -> Result<IdempotencyContext, Poison> {
        self.0.call.context(self.payload())
    }

    /// Like [`context`](Self::context), but not yet built, so that the handler can set a lease, a
    /// ttl, a wait timeout or a different fingerprint.
    ///
    /// # Errors
    /// Like [`key`](Self::key).
    pub fn context_builder(&self) -> Result<ContextBuilder, Poison> {
        self.0.call.context_builder(self.payload())
    }

    /// Decodes the body from JSON.
    ///
    /// # Errors
    /// [`Poison::Unreadable`].
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Poison> {
        json(self.payload())
    }

    /// The body. The slice is empty if the message has no body, as can happen in a compacted topic.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.message.payload().unwrap_or_default()
    }

    /// The text of the header `name`. Bytes that are not UTF-8 are replaced by `U+FFFD`.
    ///
    /// # Panics
    /// rdkafka (0.39) panics at a header name that is not UTF-8; a panicking handler counts as a
    /// failed attempt.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.0.message, name)
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

    pub(crate) fn call(&self) -> &MessageCall {
        &self.0.call
    }
}

impl AnyDelivery for Delivery {
    fn payload(&self) -> &[u8] {
        self.payload()
    }

    fn context(&self) -> Result<IdempotencyContext, Poison> {
        self.context()
    }
}

// `Debug` is not derived, because the output must not show the key, the headers or the body (ID-4).
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
