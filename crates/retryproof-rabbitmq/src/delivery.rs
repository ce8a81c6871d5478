// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Message`]: one message as a handler sees it; [`Incoming`]: with its context and decoded body.

use std::fmt;
use std::sync::Arc;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, ShortString};
use serde::de::DeserializeOwned;

use retryproof_core::IdempotencyContext;
use retryproof_core::listener::Poison;

/// How often the work of this message has failed so far.
pub(crate) const FAILURES: &str = "retryproof-failures";
/// How often in a row the store was away for this message.
pub(crate) const OUTAGES: &str = "retryproof-outages";
/// The exchange and the routing key of the first publish.
pub(crate) const EXCHANGE: &str = "retryproof-exchange";
pub(crate) const ROUTING_KEY: &str = "retryproof-routing-key";

/// A message with the context of its call; see [`Consumer::run_with`](crate::Consumer::run_with).
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming<T> {
    /// The context of the call: scope, key, durations, and the fingerprint of the body.
    pub ctx: IdempotencyContext,
    /// The decoded body.
    pub body: T,
    /// The message itself.
    pub message: Arc<Message>,
}

/// A message as it was delivered. `Debug` shows neither its body nor its headers (ID-4).
pub struct Message {
    exchange: String,
    routing_key: String,
    redelivered: bool,
    properties: BasicProperties,
    body: Vec<u8>,
}

impl Message {
    pub(crate) fn new(delivery: Delivery) -> Self {
        let Delivery { exchange, routing_key, redelivered, properties, data, .. } = delivery;
        // A copy from a wait queue names the original exchange and routing key in headers.
        let original = |name, now: ShortString| {
            header(&properties, name).unwrap_or_else(|| now.as_str().to_owned())
        };
        Self {
            exchange: original(EXCHANGE, exchange),
            routing_key: original(ROUTING_KEY, routing_key),
            redelivered,
            properties,
            body: data,
        }
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// [`Poison::Unreadable`], without details, which would quote the body (ID-4).
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Poison> {
        serde_json::from_slice(&self.body).map_err(|_| Poison::Unreadable)
    }

    /// The property `message-id`, which is the key unless another one is set.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(ShortString::as_str)
    }

    /// The header `name` as text; `None` unless it is text or a whole number.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.properties, name)
    }

    /// The exchange to which the message was published; a delayed copy keeps it.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// The routing key with which the message was published; a delayed copy keeps it.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.routing_key
    }

    /// Whether the broker has delivered the message before without receiving an answer. `false` for
    /// a delayed copy.
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// How often the work has failed so far. Deliveries that found another one in flight, or the
    /// store away, do not count.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.count(FAILURES)
    }

    /// How often in a row the store was away.
    pub(crate) fn outages(&self) -> u32 {
        self.count(OUTAGES)
    }

    pub(crate) fn properties(&self) -> &BasicProperties {
        &self.properties
    }

    fn count(&self, name: &str) -> u32 {
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

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("exchange", &self.exchange)
            .field("bytes", &self.body.len())
            .field("redelivered", &self.redelivered)
            .field("failures", &self.failures())
            .finish_non_exhaustive()
    }
}
