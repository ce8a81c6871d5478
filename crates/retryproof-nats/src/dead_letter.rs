// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dead letters: the message as it was, with headers that say why it lies there.

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use retryproof_core::listener::Reason;

use crate::delivery::{Delivery, Place};

const REASON: &str = "Retryproof-Why";
const STREAM: &str = "Retryproof-Stream";
const CONSUMER: &str = "Retryproof-Consumer";
const SEQUENCE: &str = "Retryproof-Sequence";
const SUBJECT: &str = "Retryproof-Subject";
const DELIVERIES: &str = "Retryproof-Deliveries";
/// What was left out, for want of room: `body`, `headers`, or `body and headers`.
const LEFT_OUT: &str = "Retryproof-Left-Out";
/// Put before the names of those headers that a server would act on.
const ASIDE: &str = "Retryproof-Original-";

/// What of a message its letter holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) headers: bool,
    pub(crate) body: bool,
}

/// The headers of the dead letter of `delivery`.
///
/// Headers named `Nats-…` are orders to the server (`Nats-Rollup` would empty the subject,
/// `Nats-Expected-…` have it refuse the message, `Nats-Msg-Id` take two letters with one key for
/// one), so they are set aside under another name.
pub(crate) fn headers(delivery: &Delivery, why: Reason, extent: Extent) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let kept = delivery.headers().filter(|_| extent.headers);
    for (name, values) in kept.into_iter().flat_map(HeaderMap::iter) {
        let name = renamed(name);
        values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
    }
    headers.insert(REASON, why.as_str());
    match (extent.headers, extent.body) {
        (true, true) => {}
        (true, false) => headers.insert(LEFT_OUT, "body"),
        (false, true) => headers.insert(LEFT_OUT, "headers"),
        (false, false) => headers.insert(LEFT_OUT, "body and headers"),
    }
    if let Some(Place { stream, consumer, sequence, published, .. }) = delivery.place() {
        // The letter of this very message, whoever sends it again: the stream of the dead letters
        // keeps one.
        headers.insert(
            NATS_MESSAGE_ID,
            format!("{stream}:{consumer}:{sequence}:{published}").as_str(),
        );
        headers.insert(STREAM, stream.as_str());
        headers.insert(CONSUMER, consumer.as_str());
        headers.insert(SEQUENCE, HeaderValue::from(*sequence));
    }
    headers.insert(SUBJECT, delivery.subject());
    headers.insert(DELIVERIES, HeaderValue::from(delivery.deliveries()));
    headers
}

fn renamed(name: &HeaderName) -> HeaderName {
    let text: &str = name.as_ref();
    if text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
        // Both parts were header names.
        format!("{ASIDE}{text}").parse().unwrap_or_else(|_| name.clone())
    } else {
        name.clone()
    }
}
