// SPDX-License-Identifier: MIT OR Apache-2.0
//! Publishes dead letters. A dead letter is a copy of the message, with headers for the reason, the
//! number of failures (if any), and the exchange and the routing key of the first publish. This
//! module also creates the properties of copies for wait queues, which have a header for the number
//! of store outages (if any) instead of the reason.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString};
use retryproof_core::Result;
use retryproof_core::listener::Reason;
use retryproof_core::listener::dead_letter::{LetterContent, OMITTED, REASON};

use crate::answer::wait_queue::{RequeuePublisher, Sending};
use crate::delivery::{Delivery, EXCHANGE, FAILURES, Message, MessageCounts, OUTAGES, ROUTING_KEY};
use crate::error::too_large;

/// Publishes the letter and waits until the broker confirms it. If the broker reports the letter as
/// too large, sends it again alone and unchanged, because the error may be about another copy. If
/// the letter is still too large, omits its body, its headers, or both. Otherwise, the message
/// would be held forever.
pub(crate) async fn publish_dead_letter(
    publisher: &RequeuePublisher,
    queue: &str,
    delivery: &Delivery,
    failures: u32,
    reason: Reason,
    mut sending: Sending,
) -> Result<()> {
    let mut content = LetterContent::WHOLE;
    loop {
        let properties = letter_properties(delivery.message(), failures, reason, content);
        let body = if content.body { delivery.payload() } else { &[] };
        let published = publisher.publish(sending, queue, body, properties).await;
        let Err(error) = published else { return Ok(()) };
        match (too_large(&error), sending) {
            (None, _) => return Err(error),
            (Some(_), Sending::Shared) => sending = Sending::Alone,
            (Some(part), Sending::Alone) => content = content.reduced(part).ok_or(error)?,
        }
    }
}

/// Returns the properties of a copy of `message` for a wait queue. The copy keeps the headers.
pub(crate) fn copied_properties(message: &Message, counts: MessageCounts) -> BasicProperties {
    let MessageCounts { failures, outages } = counts;
    properties(message, &[(FAILURES, failures), (OUTAGES, outages)], &[], true)
}

fn letter_properties(
    message: &Message,
    failures: u32,
    reason: Reason,
    content: LetterContent,
) -> BasicProperties {
    let omitted = content.omitted().map(|omitted| (OMITTED, omitted));
    let texts: Vec<_> = [(REASON, reason.as_str())].into_iter().chain(omitted).collect();
    properties(message, &[(FAILURES, failures)], &texts, content.headers)
}

/// Returns the properties of a copy of `message` for another queue.
///
/// The copy omits everything that the broker would act on:
/// - `expiration`, which would end the delay early;
/// - `user-id`, which the broker rejects if it names another user;
/// - the headers `CC` and `BCC`, which would route the copy to their queues again;
/// - the headers of the broker's own dead-lettering, which would make the copy look like a message
///   that circles between queues.
fn properties(
    message: &Message,
    counts: &[(&'static str, u32)],
    texts: &[(&'static str, &str)],
    with_headers: bool,
) -> BasicProperties {
    let old = message.properties();
    let mut headers = FieldTable::default();
    let original = old.headers().iter().filter(|_| with_headers);
    for (name, value) in original.flat_map(FieldTable::inner) {
        if !is_acted_on(name.as_str()) {
            headers.insert(name.clone(), value.clone());
        }
    }
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    headers.insert(EXCHANGE.into(), text(message.exchange()));
    headers.insert(ROUTING_KEY.into(), text(message.routing_key()));
    for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
        headers.insert((*name).into(), AMQPValue::LongLongInt((*count).into()));
    }
    for (name, value) in texts {
        headers.insert((*name).into(), text(value));
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

/// Whether the broker or this listener would act on the header. A copy must not keep such a header.
fn is_acted_on(header: &str) -> bool {
    matches!(header, "CC" | "BCC" | "x-death" | "x-delivery-count" | FAILURES | OUTAGES | REASON)
        || header.starts_with("x-first-death-")
        || header.starts_with("x-last-death-")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use retryproof_core::listener::dead_letter::TooLarge;
    use retryproof_core::listener::{MessageOptions, MessageSettings, Poison, Verdict};
    use retryproof_core::{Error, Rejected, Scope};

    use super::*;

    fn message(properties: BasicProperties) -> Message {
        let (exchange, routing_key) = ("shop".into(), "order.paid".into());
        let body = b"{\"id\":7}".to_vec();
        let mut delivery = lapin::message::Delivery::mock(1, exchange, routing_key, true, body);
        delivery.properties = properties;
        Message::new(delivery)
    }

    fn delivery(properties: BasicProperties) -> Delivery {
        let scope = Scope::new("tests").expect("a scope");
        let settings = MessageSettings::new(scope, MessageOptions::default()).expect("valid");
        Delivery::new(message(properties), Arc::new(settings), &|_| None, None)
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
        let letter = letter_properties(&first, 3, Reason::Failed, LetterContent::WHOLE);
        let copy = delivery(letter);
        assert_eq!(
            (copy.message().message_id(), copy.header("tenant").as_deref()),
            (Some("m-1"), Some("blue"))
        );
        assert_eq!(copy.header(FAILURES).as_deref(), Some("3"));
        assert_eq!((copy.failures(), copy.header(REASON).as_deref()), (0, Some("failed")));
        assert_eq!(copy.message().properties().delivery_mode(), &Some(2));
        assert_eq!(
            (copy.message().properties().expiration(), copy.message().properties().user_id()),
            (&None, &None)
        );
        let headers = copy.message().properties().headers().as_ref().expect("headers").inner();
        assert!(
            ["CC", "x-death", "x-first-death-queue"]
                .iter()
                .all(|name| !headers.contains_key(*name))
        );
        // The copy still names the exchange and the routing key with which the message was first
        // published.
        assert_eq!((copy.exchange(), copy.routing_key()), ("shop", "order.paid"));
    }

    #[test]
    fn lst_2_outages_are_counted_apart_from_failures_and_forgotten_when_the_store_answers() {
        let first = message(BasicProperties::default());
        let outage = Verdict::of_rejected(&Rejected::Store(Error::unavailable("planted")));
        let counts = |failures, outages| MessageCounts { failures, outages };
        let away = delivery(copied_properties(&first, counts(2, 5)));
        assert_eq!(away.counts_after(&outage), counts(2, 6));
        let answered = delivery(copied_properties(away.message(), counts(3, 0)));
        assert_eq!(answered.counts_after(&outage), counts(3, 1));
        assert_eq!(answered.counts_after(&Verdict::failed()), counts(4, 0));
    }

    #[test]
    fn lst_2_a_dead_letter_that_was_moved_back_starts_again_and_its_copies_count() {
        let first = message(BasicProperties::default());
        let back = delivery(letter_properties(&first, 3, Reason::Failed, LetterContent::WHOLE));
        let counts = back.counts_after(&Verdict::delayed(std::time::Duration::ZERO));
        assert_eq!(counts, MessageCounts { failures: 0, outages: 0 });
        let delayed = delivery(copied_properties(back.message(), counts));
        assert_eq!((delayed.failures(), delayed.header(FAILURES)), (0, None));
        let failed = back.counts_after(&Verdict::failed());
        let again = delivery(copied_properties(back.message(), failed));
        assert_eq!((again.failures(), again.header(REASON)), (1, None));
    }

    #[test]
    fn lst_2_a_reduced_letter_names_what_it_omits_and_keeps_its_origin() {
        let headers = table(&[("trace", AMQPValue::LongString("long".into()))]);
        let first = message(BasicProperties::default().with_headers(headers));
        let content = LetterContent::WHOLE.reduced(TooLarge::Headers).expect("less");
        let letter = message(letter_properties(&first, 0, Reason::Mismatch, content));
        assert_eq!((letter.header("trace"), letter.exchange()), (None, "shop"));
        assert_eq!(letter.header(OMITTED).as_deref(), Some("headers"));
        assert_eq!(letter.header(REASON).as_deref(), Some("fingerprint-mismatch"));
    }

    #[test]
    fn id_4_a_message_shows_neither_body_nor_headers() {
        let shown =
            format!("{:?}", message(BasicProperties::default().with_message_id("m-secret".into())));
        assert!(!shown.contains("secret") && !shown.contains("id"), "{shown}");
        assert_eq!(message(BasicProperties::default()).json::<u8>(), Err(Poison::Unreadable));
    }
}
