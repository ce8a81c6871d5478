// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Delivery`]: one message as a handler sees it.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::{HeaderMap, HeaderName, Message, jetstream};
use retryproof_core::listener::{AnyDelivery, MessageCall, MessageSettings, Poison, json};
use retryproof_core::{ContextBuilder, IdempotencyContext, Key};
use serde::de::DeserializeOwned;

use crate::headers::published;

/// One delivery of a message, cheap to clone.
///
/// A handler reads the delivery and returns a [`Verdict`](retryproof_core::listener::Verdict),
/// which the listener turns into an answer. A method that fails returns a [`Poison`]. If the
/// handler passes the `Poison` on with `?`, the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: jetstream::Message,
    call: MessageCall,
    /// `None` if the reply subject does not contain the position.
    position: Option<StreamPosition>,
}

/// The position of a message in its stream, as given by its reply subject.
#[derive(Debug, Clone)]
pub(crate) struct StreamPosition {
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) sequence: u64,
    /// The time of publishing, in nanoseconds since 1970. If a stream is deleted and created again,
    /// this time tells messages with the same sequence number apart.
    pub(crate) published: u128,
    /// The number of deliveries so far, including this one.
    pub(crate) deliveries: u64,
}

/// A function that finds the key or the data subject of a message, if the message has one.
pub(crate) type KeyOf = dyn Fn(&Message) -> Option<String> + Send + Sync;

/// Returns the text of the header `name`, as the message's publisher set it.
pub(crate) fn header(message: &Message, name: &str) -> Option<String> {
    let name: HeaderName = name.parse().ok()?;
    published(message.headers.as_ref()?, &name).map(|value| value.as_str().to_owned())
}

impl Delivery {
    pub(crate) fn new(
        message: jetstream::Message,
        settings: Arc<MessageSettings>,
        key_of: &KeyOf,
        subject_of: Option<&KeyOf>,
    ) -> Self {
        let position = message.info().ok().map(|info| StreamPosition {
            stream: info.stream.to_owned(),
            consumer: info.consumer.to_owned(),
            sequence: info.stream_sequence,
            published: SystemTime::from(info.published)
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_nanos()),
            deliveries: u64::try_from(info.delivered).unwrap_or(1),
        });
        let call = MessageCall::new(settings, || key_of(&message))
            .about(|| subject_of.and_then(|subject_of| subject_of(&message)));
        Self(Arc::new(Inner { message, call, position }))
    }

    /// Returns the key: the header `Nats-Msg-Id`, or the key that
    /// [`key_header`](crate::NatsListenerBuilder::key_header) or
    /// [`key`](crate::NatsListenerBuilder::key) found.
    ///
    /// # Errors
    /// [`Poison::NoKey`] if the message has no key; [`Poison::BadKey`] if the key is invalid, or if
    /// the function that computes it panicked (ID-3).
    pub fn key(&self) -> Result<&Key, Poison> {
        self.0.call.key()
    }

    /// Returns the context for the call that handles the message: the listener's scope, lease, ttl
    /// and wait timeout, and the message's key. Unless
    /// [`any_body`](crate::NatsListenerBuilder::any_body) is set, the context also has the
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

    /// The body.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.0.message.payload
    }

    /// Returns the value of the header `name`; if the header has several values, the first. In a
    /// dead letter that was moved back, a header `Nats-…` has the value of the first message.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.0.message, name)
    }

    /// Returns the headers, if the message has any.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.0.message.headers.as_ref()
    }

    /// Returns the subject to which the message was published.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.0.message.subject
    }

    /// Returns the message's sequence number in its stream; 0 if the reply subject does not contain
    /// the number.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.position().map_or(0, |position| position.sequence)
    }

    /// Returns how many times the server has delivered the message to this consumer, including this
    /// delivery; 0 if the reply subject does not contain the number.
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
            .field("stream", &self.position().map(|position| &position.stream))
            .field("sequence", &self.sequence())
            .field("deliveries", &self.deliveries())
            .field("bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
