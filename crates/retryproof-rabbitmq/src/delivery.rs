// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Delivery`]: a message as a handler sees it. [`Message`]: a message as the key function sees
//! it.

use std::fmt;
use std::sync::Arc;

use lapin::BasicProperties;
use lapin::message::Delivery as BrokerDelivery;
use lapin::types::{AMQPValue, ShortString};
use retryproof_core::listener::dead_letter::REASON;
use retryproof_core::listener::{
    AnyDelivery, MessageCall, MessageSettings, Poison, Reason, Verdict, json,
};
use retryproof_core::{ContextBuilder, IdempotencyContext, Key};
use serde::de::DeserializeOwned;

/// The header with the number of times that the work on the message has failed.
pub(crate) const FAILURES: &str = "retryproof-failures";
/// The header with the number of consecutive times that the store was unavailable.
pub(crate) const OUTAGES: &str = "retryproof-outages";
/// The headers with the exchange and the routing key of the first publish.
pub(crate) const EXCHANGE: &str = "retryproof-exchange";
pub(crate) const ROUTING_KEY: &str = "retryproof-routing-key";

/// How often the work on a message has failed, and how often in a row the store was unavailable.
/// Copies of the message carry both counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageCounts {
    pub(crate) failures: u32,
    pub(crate) outages: u32,
}

/// One delivery of a message, cheap to clone.
///
/// A handler reads the delivery and returns a [`Verdict`](retryproof_core::listener::Verdict),
/// which the listener turns into an answer. A method that fails returns a [`Poison`]. If the
/// handler passes the `Poison` on with `?`, the message becomes a dead letter (LST-2).
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: Message,
    call: MessageCall,
}

/// A function that finds the key or the data subject of a message, if the message has one.
pub(crate) type KeyOf = dyn Fn(&Message) -> Option<String> + Send + Sync;

impl Delivery {
    pub(crate) fn new(
        message: Message,
        settings: Arc<MessageSettings>,
        key_of: &KeyOf,
        subject_of: Option<&KeyOf>,
    ) -> Self {
        let call = MessageCall::new(settings, || key_of(&message))
            .about(|| subject_of.and_then(|subject_of| subject_of(&message)));
        Self(Arc::new(Inner { message, call }))
    }

    /// Returns the key: the property `message-id`, or the key that
    /// [`key_header`](crate::RabbitmqListenerBuilder::key_header) or
    /// [`key`](crate::RabbitmqListenerBuilder::key) found.
    ///
    /// # Errors
    /// [`Poison::NoKey`] if the message has no key; [`Poison::BadKey`] if the key is invalid, or if
    /// the function that computes it panicked (ID-3).
    pub fn key(&self) -> Result<&Key, Poison> {
        self.0.call.key()
    }

    /// Returns the context for the call that handles the message: the listener's scope, lease, ttl
    /// and wait timeout, and the message's key. Unless
    /// [`any_body`](crate::RabbitmqListenerBuilder::any_body) is set, the context also has the
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
        self.0.message.payload()
    }

    /// Returns the header `name` as text; `None` if the header is missing, or is neither text nor a
    /// whole number.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        self.0.message.header(name)
    }

    /// Returns the exchange to which the message was first published. For a delayed copy, this is
    /// the exchange of the original.
    #[must_use]
    pub fn exchange(&self) -> &str {
        self.0.message.exchange()
    }

    /// Returns the routing key with which the message was first published. For a delayed copy, this
    /// is the routing key of the original.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        self.0.message.routing_key()
    }

    /// Whether the broker has delivered the message before without receiving an acknowledgement. A
    /// delayed copy is a new message and starts with `false`.
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.0.message.redelivered
    }

    /// Returns how many times the work has failed so far. A delivery does not count as a failure if
    /// another delivery with the same key was in flight, or if the store was unavailable. A dead
    /// letter that was moved back to the queue starts at 0.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.0.message.count(FAILURES)
    }

    /// Returns the message's counts, including `verdict`, which must be the handler's own: the
    /// attempt rules can turn a failed attempt into a dead letter, which is not counted. An answer
    /// of the store ends its outages.
    pub(crate) fn counts_after(&self, verdict: &Verdict) -> MessageCounts {
        let failures = self.failures().saturating_add(u32::from(verdict.is_failed_attempt()));
        let outages = match verdict {
            Verdict::Nack { reason: Reason::Store, .. } => {
                self.0.message.count(OUTAGES).saturating_add(1)
            }
            _ => 0,
        };
        MessageCounts { failures, outages }
    }

    /// The message itself.
    #[must_use]
    pub fn message(&self) -> &Message {
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

/// A message as the key function sees it.
pub struct Message {
    exchange: String,
    routing_key: String,
    redelivered: bool,
    properties: BasicProperties,
    payload: Vec<u8>,
}

impl Message {
    pub(crate) fn new(delivery: BrokerDelivery) -> Self {
        let BrokerDelivery { exchange, routing_key, redelivered, properties, data, .. } = delivery;
        // A copy from a wait queue names the original exchange and routing key in headers.
        let original = |name, now: ShortString| {
            header(&properties, name).unwrap_or_else(|| now.as_str().to_owned())
        };
        Self {
            exchange: original(EXCHANGE, exchange),
            routing_key: original(ROUTING_KEY, routing_key),
            redelivered,
            properties,
            payload: data,
        }
    }

    /// The body.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Decodes the body from JSON, for a key that is in the body.
    ///
    /// # Errors
    /// [`Poison::Unreadable`] if the body cannot be decoded.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Poison> {
        json(&self.payload)
    }

    /// Returns the property `message-id`, which is the key by default.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(ShortString::as_str)
    }

    /// Returns the header `name` as text; `None` if the header is missing, or is neither text nor a
    /// whole number.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.properties, name)
    }

    /// Returns the exchange to which the message was first published. For a delayed copy, this is
    /// the exchange of the original.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// Returns the routing key with which the message was first published. For a delayed copy, this
    /// is the routing key of the original.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.routing_key
    }

    pub(crate) fn properties(&self) -> &BasicProperties {
        &self.properties
    }

    /// Returns a count from the headers that the listener writes. A dead letter counts as 0, so that
    /// it gets all its attempts again if it is moved back to the queue.
    fn count(&self, name: &str) -> u32 {
        if self.header(REASON).is_some() {
            return 0;
        }
        self.header(name).and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok().map(str::to_owned),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::ShortShortInt(n) => Some(n.to_string()),
        AMQPValue::ShortShortUInt(n) => Some(n.to_string()),
        AMQPValue::ShortInt(n) => Some(n.to_string()),
        AMQPValue::ShortUInt(n) => Some(n.to_string()),
        AMQPValue::LongInt(n) => Some(n.to_string()),
        AMQPValue::LongUInt(n) => Some(n.to_string()),
        AMQPValue::LongLongInt(n) => Some(n.to_string()),
        _ => None,
    }
}

// `Debug` is not derived, because the output must not show the key, the headers or the body (ID-4).
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("exchange", &self.exchange)
            .field("bytes", &self.payload.len())
            .field("redelivered", &self.redelivered)
            .field("failures", &self.count(FAILURES))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delivery").field(&self.0.message).finish()
    }
}
