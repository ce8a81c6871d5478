// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the server is told of a message, and whether it has heard it.

use std::error::Error as _;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{AckKind, Context};
use async_nats::{Client, Request};
use retryproof_core::listener::Reason;
use retryproof_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::dead_letter::{self, Extent};
use crate::delivery::Delivery;

/// Tries of an answer that has to be confirmed. The last failure costs one redelivery, which runs
/// nothing.
const TRIES: u32 = 3;

/// What JetStream calls a message that is longer than the `max_msg_size` of its stream.
const TOO_LARGE_FOR_STREAM: &str = "error code 10054";
/// And headers of more than 64 KiB.
const TOO_LARGE_HEADERS: &str = "error code 10097";

/// The way to the server.
#[derive(Debug, Clone)]
pub(crate) struct Broker {
    pub(crate) jetstream: Context,
    pub(crate) client: Client,
    /// For one answer of the server.
    pub(crate) answer_within: Duration,
    /// Where dead letters go.
    pub(crate) dead_letters: String,
}

impl Broker {
    /// Tells the server and waits until it has confirmed: what it has not heard, it delivers again.
    pub(crate) async fn confirmed(&self, delivery: &Delivery, kind: AckKind) -> Result<()> {
        let mut tries = 1;
        loop {
            match self.ask(delivery, kind).await {
                Ok(()) => return Ok(()),
                Err(error) if tries >= TRIES => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    async fn ask(&self, delivery: &Delivery, kind: AckKind) -> Result<()> {
        let Some(reply) = delivery.message().reply.clone() else {
            return Err(Error::new(
                ErrorKind::Unexpected,
                "the message has no subject to be answered on",
            ));
        };
        let request = Request::new().payload(kind.into()).timeout(Some(self.answer_within));
        match self.client.send_request(reply, request).await {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(Error::unavailable("the server did not confirm the answer").because(error))
            }
        }
    }

    /// Tells the server without waiting: what gets lost is made up for by `ack_wait`.
    pub(crate) async fn tell(&self, delivery: &Delivery, kind: AckKind) {
        if let Err(error) = delivery.message().ack_with(kind).await {
            tracing::debug!(delivery = ?delivery, %error, "answer not sent");
        }
    }

    /// Has the server deliver the message again, no sooner than after `pause`.
    pub(crate) async fn give_back(&self, delivery: &Delivery, pause: Duration) {
        self.tell(delivery, AckKind::Nak(Some(pause).filter(|pause| !pause.is_zero()))).await;
    }

    /// Has the message in the stream of the dead letters, confirmed; only then may it leave its
    /// own. Of one that is too large for that stream, the body is left out or the headers, or both:
    /// a letter that nobody takes would keep the message coming for ever.
    pub(crate) async fn bury(&self, delivery: &Delivery, why: Reason) -> Result<()> {
        let mut extent = Extent { headers: true, body: true };
        loop {
            let failed = match self.send(delivery, why, extent).await {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            match too_large(&failed) {
                Some(Part::Headers) if extent.headers => extent.headers = false,
                Some(Part::Whole) if extent.body => extent.body = false,
                Some(Part::Whole) if extent.headers => extent.headers = false,
                _ => {
                    return Err(
                        Error::unavailable("the dead letter was not confirmed").because(failed)
                    );
                }
            }
        }
    }

    async fn send(
        &self,
        delivery: &Delivery,
        why: Reason,
        extent: Extent,
    ) -> Result<(), PublishError> {
        let headers = dead_letter::headers(delivery, why, extent);
        let mut body = delivery.message().payload.clone();
        if !extent.body {
            body.clear();
        }
        let sent = async {
            let sent =
                self.jetstream.publish_with_headers(self.dead_letters.clone(), headers, body).await;
            sent?.await.map(drop)
        };
        match timeout(self.answer_within, sent).await {
            Ok(sent) => sent,
            Err(_) => Err(PublishError::new(PublishErrorKind::TimedOut)),
        }
    }
}

/// What there is too much of for the server or the stream.
enum Part {
    Headers,
    Whole,
}

fn too_large(error: &PublishError) -> Option<Part> {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Some(Part::Whole),
        PublishErrorKind::Other => {
            // The client keeps the type of what a stream answered to itself, so the number is
            // looked for in its text.
            let said = error.source()?.to_string();
            let whole = said.contains(TOO_LARGE_FOR_STREAM).then_some(Part::Whole);
            whole.or_else(|| said.contains(TOO_LARGE_HEADERS).then_some(Part::Headers))
        }
        _ => None,
    }
}
