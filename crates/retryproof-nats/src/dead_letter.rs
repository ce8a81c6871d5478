// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DeadLetterSubject`]: publishes dead letters. Each letter contains the message, and has headers
//! for the reason and the message's position.

use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind};
use async_nats::{HeaderMap, HeaderValue};
use retryproof_core::Result;
use retryproof_core::listener::Reason;
use retryproof_core::listener::dead_letter::{LetterContent, OMITTED, REASON};
use tokio::time::{sleep, timeout};

use crate::delivery::{Delivery, StreamPosition};
use crate::error::{dead_letter_not_confirmed, invalid_setting, too_large};
use crate::headers::{CONSUMER, SEQUENCE, STREAM, inert, published};

const SUBJECT: &str = "retryproof-subject";
const DELIVERIES: &str = "retryproof-deliveries";
/// The pause between two attempts to find the dead-letter stream.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The subject to which dead letters are published.
pub(crate) struct DeadLetterSubject {
    pub(crate) jetstream: Context,
    pub(crate) subject: String,
    /// How long to wait for the confirmation of a letter.
    pub(crate) timeout: Duration,
}

impl DeadLetterSubject {
    /// Finds the stream that captures the subject. While the server does not answer, keeps trying.
    /// Fails if no stream captures the subject. Also fails if that stream is `source`, the stream
    /// that the listener reads, because the listener would then receive its own dead letters.
    pub(crate) async fn find(&self, source: &str) -> Result<()> {
        loop {
            let found = self.jetstream.stream_by_subject(self.subject.clone()).await;
            let error = match found {
                Ok(stream) if stream == source => {
                    return Err(invalid_setting(
                        "the stream that the listener reads also captures the dead-letter subject; \
                         use another stream for it",
                    ));
                }
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == GetStreamByNameErrorKind::Request => error,
                Err(_) => {
                    let message = "no stream captures the dead-letter subject; add the subject to \
                                   a stream other than the one that the listener reads";
                    return Err(invalid_setting(message).with("subject", &self.subject));
                }
            };
            tracing::warn!(subject = self.subject, %error, "dead-letter stream not found; no \
                 messages are read until it is found");
            sleep(RETRY_DELAY).await;
        }
    }

    /// Publishes the letter and waits until the dead-letter stream confirms it. Call this before
    /// answering the message. A letter that is too large for the stream is published without its
    /// body, its headers, or both. Otherwise, the message would be redelivered forever.
    pub(crate) async fn publish(&self, delivery: &Delivery, reason: Reason) -> Result<()> {
        let mut content = LetterContent::WHOLE;
        loop {
            let Err(error) = self.send(delivery, reason, content).await else { return Ok(()) };
            let reduced = too_large(&error).and_then(|part| content.reduced(part));
            content = reduced.ok_or_else(|| dead_letter_not_confirmed(error))?;
        }
    }

    async fn send(
        &self,
        delivery: &Delivery,
        reason: Reason,
        content: LetterContent,
    ) -> Result<(), PublishError> {
        let headers = headers(delivery, reason, content);
        let mut body = delivery.message().payload.clone();
        if !content.body {
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

/// Returns the headers of the dead letter for `delivery`.
///
/// The letter has the message's `Nats-…` headers under different names, because a server would act
/// on the original names. `Nats-Rollup` would purge the subject, `Nats-Expected-…` could make the
/// server reject the letter, and `Nats-Msg-Id` would make the stream drop the second of two letters
/// with the same key.
fn headers(delivery: &Delivery, reason: Reason, content: LetterContent) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(original) = delivery.headers().filter(|_| content.headers) {
        for (name, values) in original.iter() {
            // If the message is a dead letter that was moved back, the letter's own headers
            // `Nats-…` are not those of the first message.
            if published(original, name).is_none_or(|value| Some(value) != values.first()) {
                continue;
            }
            let name = inert(name).unwrap_or_else(|| name.clone());
            values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
        }
    }
    headers.insert(REASON, reason.as_str());
    if let Some(omitted) = content.omitted() {
        headers.insert(OMITTED, omitted);
    }
    if let Some(StreamPosition { stream, consumer, sequence, published, .. }) = delivery.position()
    {
        // All dead letters for one message have the same ID. If several arrive within the
        // dead-letter stream's duplicate window, the stream therefore keeps only one.
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
