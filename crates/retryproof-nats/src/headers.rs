// SPDX-License-Identifier: MIT OR Apache-2.0
//! The headers of a dead letter, and how they are read in a letter that was moved back.

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use retryproof_core::listener::dead_letter::REASON;

pub(crate) const STREAM: &str = "retryproof-stream";
pub(crate) const CONSUMER: &str = "retryproof-consumer";
pub(crate) const SEQUENCE: &str = "retryproof-sequence";
/// The prefix that keeps a server from acting on a header.
const ORIGINAL: &str = "retryproof-original-";

/// Returns a header's name for the dead letter, if a server would act on the name that it has.
pub(crate) fn inert(name: &HeaderName) -> Option<HeaderName> {
    let text: &str = name.as_ref();
    let acts = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
    // Parsing cannot fail, because every character of the prefix is allowed in a header name.
    if acts { format!("{ORIGINAL}{text}").parse().ok() } else { None }
}

/// Returns the first value of a header, as the publisher of the message set it. A dead letter that
/// was moved back has the first message's headers `Nats-…` under other names, and a `Nats-Msg-Id`
/// of its own.
pub(crate) fn published<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let value = headers.get(name.clone());
    let moved_back = headers.get(REASON).is_some();
    let Some(original) = inert(name).filter(|_| moved_back) else { return value };
    headers.get(original).or_else(|| value.filter(|value| !is_letter_id(headers, value)))
}

/// Whether the value is the `Nats-Msg-Id` that the listener gave to the dead letter.
fn is_letter_id(headers: &HeaderMap, value: &HeaderValue) -> bool {
    let of = |name| headers.get(name).map_or("", HeaderValue::as_str);
    let start = format!("{}:{}:{}:", of(STREAM), of(CONSUMER), of(SEQUENCE));
    value.as_str().starts_with(&start)
}
