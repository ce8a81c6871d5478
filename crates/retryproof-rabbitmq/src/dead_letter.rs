// SPDX-License-Identifier: MIT OR Apache-2.0
//! The properties of a dead letter and of a delayed copy: those of the message, and headers with
//! its counters, origin and reason.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString};
use retryproof_core::listener::Reason;

use crate::delivery::{EXCHANGE, FAILURES, Message, OUTAGES, ROUTING_KEY};

/// Why a message became a dead letter; see [`Reason::as_str`].
const REASON: &str = "retryproof-why";

/// The properties of a copy of `message` for another queue.
///
/// Those that the broker would act on are left out: `expiration` (it would end the delay early),
/// `user-id` (the broker rejects that of another user), the headers `CC` and `BCC` (the copy would
/// be routed to their queues again), and the headers of the broker's own dead-lettering (it would
/// take the copy for a message that circles between queues).
pub(crate) fn copied_properties(
    message: &Message,
    failures: u32,
    outages: u32,
    reason: Option<Reason>,
) -> BasicProperties {
    let old = message.properties();
    let mut headers = FieldTable::default();
    for (name, value) in old.headers().iter().flat_map(FieldTable::inner) {
        if !is_acted_on(name.as_str()) {
            headers.insert(name.clone(), value.clone());
        }
    }
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    headers.insert(EXCHANGE.into(), text(message.exchange()));
    headers.insert(ROUTING_KEY.into(), text(message.routing_key()));
    for (name, count) in [(FAILURES, failures), (OUTAGES, outages)] {
        if count > 0 {
            headers.insert(name.into(), AMQPValue::LongLongInt(count.into()));
        }
    }
    if let Some(reason) = reason {
        headers.insert(REASON.into(), text(reason.as_str()));
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
        content_type with_content_type, content_encoding with_content_encoding,
        delivery_mode with_delivery_mode, priority with_priority,
        correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id
    );
    new
}

/// Whether the broker or this listener acts on the header, so that a copy must not keep it.
fn is_acted_on(header: &str) -> bool {
    matches!(header, "CC" | "BCC" | "x-death" | "x-delivery-count" | OUTAGES)
        || header.starts_with("x-first-death-")
        || header.starts_with("x-last-death-")
}

#[cfg(test)]
mod tests {
    use lapin::message::Delivery;
    use retryproof_core::listener::Poison;

    use super::*;

    fn message(properties: BasicProperties) -> Message {
        let mut delivery =
            Delivery::mock(1, "shop".into(), "order.paid".into(), true, b"{\"id\":7}".to_vec());
        delivery.properties = properties;
        Message::new(delivery)
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
        let copy = message(copied_properties(&first, 3, 0, Some(Reason::Failed)));
        assert_eq!(
            (copy.message_id(), copy.header("tenant").as_deref()),
            (Some("m-1"), Some("blue"))
        );
        assert_eq!((copy.failures(), copy.header(REASON).as_deref()), (3, Some("failed")));
        assert_eq!(copy.properties().delivery_mode(), &Some(2));
        assert_eq!((copy.properties().expiration(), copy.properties().user_id()), (&None, &None));
        let headers = copy.properties().headers().as_ref().expect("headers").inner();
        assert!(
            ["CC", "x-death", "x-first-death-queue"]
                .iter()
                .all(|name| !headers.contains_key(*name))
        );
        // The copy keeps the origin of the first publish.
        assert_eq!((copy.exchange(), copy.routing_key()), ("shop", "order.paid"));
    }

    #[test]
    fn lst_2_outages_are_counted_apart_from_failures_and_forgotten_when_the_store_answers() {
        let away = message(copied_properties(&message(BasicProperties::default()), 2, 5, None));
        assert_eq!((away.failures(), away.outages()), (2, 5));
        let answered = message(copied_properties(&away, 3, 0, None));
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
