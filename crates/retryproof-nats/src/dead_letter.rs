// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DeadLetterSubject`]: publishes dead letters. Each holds the message and headers with its
//! reason and position.

use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use retryproof_core::Result;
use retryproof_core::listener::Reason;
use tokio::time::timeout;

use crate::delivery::{Delivery, StreamPosition};
use crate::error::{
    TooLarge, dead_letter_not_confirmed, dead_letter_stream_unknown, invalid_setting, too_large,
};

const REASON: &str = "Retryproof-Why";
const STREAM: &str = "Retryproof-Stream";
const CONSUMER: &str = "Retryproof-Consumer";
const SEQUENCE: &str = "Retryproof-Sequence";
const SUBJECT: &str = "Retryproof-Subject";
const DELIVERIES: &str = "Retryproof-Deliveries";
/// The parts that were omitted for size: `body`, `headers`, or `body and headers`.
const OMITTED: &str = "Retryproof-Left-Out";
/// The prefix of headers that a server would otherwise act on.
const ORIGINAL: &str = "Retryproof-Original-";

/// The subject that takes the dead letters.
pub(crate) struct DeadLetterSubject {
    pub(crate) jetstream: Context,
    pub(crate) subject: String,
    /// How long one letter waits for its confirmation.
    pub(crate) timeout: Duration,
}

/// The parts of its message that a dead letter holds.
#[derive(Debug, Clone, Copy)]
struct LetterParts {
    headers: bool,
    body: bool,
}

impl DeadLetterSubject {
    /// Checks that a stream takes the subject, and that this is not `source`, the stream that the
    /// listener reads: it would receive its own dead letters.
    pub(crate) async fn check(&self, source: &str) -> Result<()> {
        match self.jetstream.stream_by_subject(self.subject.clone()).await {
            Ok(stream) if stream == source => Err(invalid_setting(
                "the stream that is read also takes the dead letters; use another stream for them",
            )),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == GetStreamByNameErrorKind::Request => {
                Err(dead_letter_stream_unknown(error))
            }
            Err(_) => Err(invalid_setting("no stream takes the subject of the dead letters")
                .with("subject", &self.subject)),
        }
    }

    /// Publishes the letter and waits until its stream confirms it; only then may the message leave
    /// its own stream. A letter that is too large for the stream is reduced by its body, its
    /// headers, or both: otherwise its message would be redelivered for ever.
    pub(crate) async fn publish(&self, delivery: &Delivery, reason: Reason) -> Result<()> {
        let mut parts = LetterParts { headers: true, body: true };
        loop {
            let Err(error) = self.send(delivery, reason, parts).await else { return Ok(()) };
            match too_large(&error) {
                Some(TooLarge::Headers) if parts.headers => parts.headers = false,
                Some(TooLarge::Letter) if parts.body => parts.body = false,
                Some(TooLarge::Letter) if parts.headers => parts.headers = false,
                _ => return Err(dead_letter_not_confirmed(error)),
            }
        }
    }

    async fn send(
        &self,
        delivery: &Delivery,
        reason: Reason,
        parts: LetterParts,
    ) -> Result<(), PublishError> {
        let headers = headers(delivery, reason, parts);
        let mut body = delivery.message().payload.clone();
        if !parts.body {
            body.clear();
        }
        let published = async {
            let subject = self.subject.clone();
            let confirmation = self.jetstream.publish_with_headers(subject, headers, body).await;
            confirmation?.await.map(drop)
        };
        match timeout(self.timeout, published).await {
            Ok(published) => published,
            Err(_) => Err(PublishError::new(PublishErrorKind::TimedOut)),
        }
    }
}

/// The headers of the dead letter of `delivery`.
///
/// The message's headers named `Nats-…` are kept under another name, because a server acts on them:
/// `Nats-Rollup` would purge the subject, `Nats-Expected-…` could make the server reject the
/// letter, and `Nats-Msg-Id` would drop the second of two letters with the same key.
fn headers(delivery: &Delivery, reason: Reason, parts: LetterParts) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let original = delivery.headers().filter(|_| parts.headers);
    for (name, values) in original.into_iter().flat_map(HeaderMap::iter) {
        let name = inert(name);
        values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
    }
    headers.insert(REASON, reason.as_str());
    match (parts.headers, parts.body) {
        (true, true) => {}
        (true, false) => headers.insert(OMITTED, "body"),
        (false, true) => headers.insert(OMITTED, "headers"),
        (false, false) => headers.insert(OMITTED, "body and headers"),
    }
    if let Some(StreamPosition { stream, consumer, sequence, published, .. }) = delivery.position()
    {
        // The same for each letter of this message: the stream keeps one of them.
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

/// The name under which a server does not act on a header.
fn inert(name: &HeaderName) -> HeaderName {
    let text: &str = name.as_ref();
    if text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
        // It cannot fail: a prefix of header characters and a header name make a header name.
        format!("{ORIGINAL}{text}").parse().unwrap_or_else(|_| name.clone())
    } else {
        name.clone()
    }
}
