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
/// which the listener turns into an answer. A method that fails returns a [`Poison`]. If the
/// handler passes the `Poison` on with `?`, the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: OwnedMessage,
    call: MessageCall,
}

/// Finds the key or the data subject of a message; `None` if the message has none.
pub(crate) type KeyOf = dyn Fn(&OwnedMessage) -> Option<String> + Send + Sync;

/// Returns the text of the header `name`. Replaces bytes that are not UTF-8, so that a key with
/// such bytes counts as bad instead of missing.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let found = message.headers()?.iter().find(|header| header.key == name)?;
    Some(String::from_utf8_lossy(found.value?).into_owned())
}

/// Returns an empty key, which counts as bad, if any bytes of `key` were replaced. Two different
/// keys could otherwise become equal.
fn without_replacements(key: String) -> String {
    if key.contains('\u{fffd}') { String::new() } else { key }
}

impl Delivery {
    pub(crate) fn new(
        message: OwnedMessage,
        settings: Arc<MessageSettings>,
        key_of: &KeyOf,
        subject_of: Option<&KeyOf>,
    ) -> Self {
        // If rdkafka (0.39) panics on a header name that is not UTF-8, `MessageCall` catches the
        // panic and treats the key as invalid.
        let call = MessageCall::new(settings, || key_of(&message).map(without_replacements))
            .about(|| subject_of.and_then(|subject_of| subject_of(&message)));
        Self(Arc::new(Inner { message, call }))
    }

    /// Returns the key that [`key_header`](crate::KafkaListenerBuilder::key_header) or
    /// [`key`](crate::KafkaListenerBuilder::key) found.
    ///
    /// # Errors
    /// [`Poison::NoKey`] or [`Poison::BadKey`] (ID-3).
    pub fn key(&self) -> Result<&Key, Poison> {
        self.0.call.key()
    }

    /// Returns the context for the call that handles the message: the listener's scope, lease, ttl
    /// and wait timeout, and the message's key. Unless
    /// [`any_body`](crate::KafkaListenerBuilder::any_body) is set, the context also has the
    /// fingerprint of the body, so a redelivery with a different body is rejected (FP-1).
    ///
    /// # Errors
    /// Same as for [`key`](Self::key).
    pub fn context(&self) -> Result<IdempotencyContext, Poison> {
        self.0.call.context(self.payload())
    }

    /// Like [`context`](Self::context), but returns the builder. The handler can set a lease, a
    /// ttl, a wait timeout or a different fingerprint on it.
    ///
    /// # Errors
    /// Same as for [`key`](Self::key).
    pub fn context_builder(&self) -> Result<ContextBuilder, Poison> {
        self.0.call.context_builder(self.payload())
    }

    /// Decodes the body from JSON.
    ///
    /// # Errors
    /// [`Poison::Unreadable`] if the body cannot be decoded.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Poison> {
        json(self.payload())
    }

    /// Returns the body. If the message has no body, which is possible in a compacted topic, the
    /// slice is empty.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.message.payload().unwrap_or_default()
    }

    /// Returns the text of the header `name`. Bytes that are not UTF-8 are replaced by `U+FFFD`.
    ///
    /// # Panics
    /// Panics inside rdkafka (0.39) if a header's name is not UTF-8. In a handler, the panic counts
    /// as a failed attempt.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.0.message, name)
    }

    /// Returns the topic from which the message was read.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.0.message.topic()
    }

    /// Returns the number of the message's partition.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.0.message.partition()
    }

    /// Returns the message's offset in its partition.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.0.message.offset()
    }

    /// Returns the message itself, with Kafka's own key, timestamp and headers. Iterating over the
    /// headers panics inside rdkafka (0.39) if a header's name is not UTF-8. In a handler, the
    /// panic counts as a failed attempt.
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
