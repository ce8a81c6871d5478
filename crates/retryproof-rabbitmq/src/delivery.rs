// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Message`]: a delivery without its answer; and the copy of it that goes to another queue.

use std::fmt;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use serde::de::DeserializeOwned;

use retryproof_core::listener::{Poison, Reason};

/// How often the work of this message failed so far.
pub(crate) const FAILURES: &str = "retryproof-failures";
/// How often in a row the store could not say whether its work is to run.
const OUTAGES: &str = "retryproof-outages";
/// Why a dead letter is one; see [`Reason::as_str`].
pub(crate) const WHY: &str = "retryproof-why";
/// Where a message came from before it was first put off.
const EXCHANGE: &str = "retryproof-exchange";
const ROUTING_KEY: &str = "retryproof-routing-key";

/// A message as it was delivered. `Debug` shows neither its body nor its headers (ID-4).
pub struct Message {
    exchange: String,
    routing_key: String,
    redelivered: bool,
    properties: BasicProperties,
    body: Vec<u8>,
}

impl Message {
    pub(crate) fn of(delivery: Delivery) -> Self {
        let Delivery { exchange, routing_key, redelivered, properties, data, .. } = delivery;
        let first = |name, now: ShortString| {
            header(&properties, name).unwrap_or_else(|| now.as_str().to_owned())
        };
        Self {
            exchange: first(EXCHANGE, exchange),
            routing_key: first(ROUTING_KEY, routing_key),
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
    /// [`Poison::Unreadable`]; what exactly is wrong is not said, since it would quote the body
    /// (ID-4).
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Poison> {
        serde_json::from_slice(&self.body).map_err(|_| Poison::Unreadable)
    }

    /// The property `message-id`, where a consumer looks for the key unless told otherwise.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(ShortString::as_str)
    }

    /// A header that is text or a whole number, as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.properties, name)
    }

    /// The exchange that it was published to, also when it has been put off since.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// The routing key that it was published with, also when it has been put off since.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.routing_key
    }

    /// Whether the broker has handed it out before and got no answer. False for a copy that was put
    /// off.
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// How often its work has failed so far: deliveries that found another one in flight, or a
    /// store that was away, do not count.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.count(FAILURES)
    }

    pub(crate) fn outages(&self) -> u32 {
        self.count(OUTAGES)
    }

    fn count(&self, name: &str) -> u32 {
        self.header(name).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// The properties of a copy for another queue of ours.
    ///
    /// What would act on the copy instead of describing it is left out: `expiration` (it would end
    /// the delay early), `user-id` (the broker refuses another user's), the headers `CC` and `BCC`
    /// (it would be routed to their queues once more), and what the broker's own dead-lettering
    /// noted (it takes a message for one that goes round in circles).
    pub(crate) fn copied(
        &self,
        failures: u32,
        outages: u32,
        why: Option<Reason>,
    ) -> BasicProperties {
        let old = &self.properties;
        let mut headers = FieldTable::default();
        for (name, value) in old.headers().iter().flat_map(FieldTable::inner) {
            let acts =
                matches!(name.as_str(), "CC" | "BCC" | "x-death" | "x-delivery-count" | OUTAGES);
            if !acts
                && !name.as_str().starts_with("x-first-death-")
                && !name.as_str().starts_with("x-last-death-")
            {
                headers.insert(name.clone(), value.clone());
            }
        }
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        headers.insert(EXCHANGE.into(), text(&self.exchange));
        headers.insert(ROUTING_KEY.into(), text(&self.routing_key));
        for (name, count) in [(FAILURES, failures), (OUTAGES, outages)] {
            if count > 0 {
                headers.insert(name.into(), AMQPValue::LongLongInt(count.into()));
            }
        }
        if let Some(why) = why {
            headers.insert(WHY.into(), text(why.as_str()));
        }
        let mut new = BasicProperties::default().with_headers(headers);
        macro_rules! keep {
            ($($get:ident $set:ident),*) => {$(
                if let Some(value) = old.$get().clone() {
                    new = new.$set(value);
                }
            )*};
        }
        keep!(
            content_type with_content_type, content_encoding with_content_encoding, delivery_mode with_delivery_mode,
            priority with_priority, correlation_id with_correlation_id, reply_to with_reply_to,
            message_id with_message_id, timestamp with_timestamp, kind with_type, app_id with_app_id
        );
        new
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(properties: BasicProperties) -> Message {
        let mut delivery =
            Delivery::mock(1, "shop".into(), "order.paid".into(), true, b"{\"id\":7}".to_vec());
        delivery.properties = properties;
        Message::of(delivery)
    }

    fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        table
    }

    #[test]
    fn lst_2_a_copy_keeps_what_describes_it_and_drops_what_acts_on_it() {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let headers = table(&[
            ("tenant", text("blue")),
            ("CC", AMQPValue::FieldArray(vec![text("elsewhere")].into())),
            ("x-death", text("?")),
            ("x-first-death-queue", text("?")),
        ]);
        let first = message(
            BasicProperties::default()
                .with_headers(headers)
                .with_message_id("m-1".into())
                .with_delivery_mode(2)
                .with_expiration("0".into())
                .with_user_id("someone".into()),
        );
        let copy = message(first.copied(3, 0, Some(Reason::Failed)));
        assert_eq!(
            (copy.message_id(), copy.header("tenant").as_deref()),
            (Some("m-1"), Some("blue"))
        );
        assert_eq!((copy.failures(), copy.header(WHY).as_deref()), (3, Some("failed")));
        assert_eq!(copy.properties.delivery_mode(), &Some(2));
        assert_eq!((copy.properties.expiration(), copy.properties.user_id()), (&None, &None));
        let headers = copy.properties.headers().as_ref().expect("headers").inner();
        assert!(
            ["CC", "x-death", "x-first-death-queue"]
                .iter()
                .all(|name| !headers.contains_key(*name))
        );
        // It went through the wait queue, and still says where it came from.
        assert_eq!((copy.exchange(), copy.routing_key()), ("shop", "order.paid"));
    }

    #[test]
    fn lst_2_outages_are_counted_apart_from_failures_and_forgotten_when_the_store_answers() {
        let away = message(message(BasicProperties::default()).copied(2, 5, None));
        assert_eq!((away.failures(), away.outages()), (2, 5));
        let answered = message(away.copied(3, 0, None));
        assert_eq!((answered.failures(), answered.outages()), (3, 0));
    }

    #[test]
    fn id_4_a_message_shows_neither_body_nor_headers() {
        let shown =
            format!("{:?}", message(BasicProperties::default().with_message_id("m-secret".into())));
        assert!(!shown.contains("secret") && !shown.contains("id"), "{shown}");
        assert_eq!(message(BasicProperties::default()).json::<u8>(), Err(Poison::Unreadable));
    }
}
