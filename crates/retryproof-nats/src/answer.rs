// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ServerReplies`] sends the server the answer to each message (LST-2).

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Client, Request};
use retryproof_core::Result;
use retryproof_core::listener::{Backoff, Reason, Verdict, VerdictCounters};
use tokio::time::sleep;

use crate::dead_letter::DeadLetterSubject;
use crate::delivery::Delivery;
use crate::error::{no_reply_subject, reply_not_confirmed};

/// The maximum number of times that an unconfirmed answer is sent. If the last try fails too, the
/// server may redeliver the message, but completed work does not run again.
const MAX_TRIES: u32 = 3;

/// Sends the answers of one listener.
pub(crate) struct ServerReplies {
    pub(crate) client: Client,
    /// How long to wait for the confirmation of an answer.
    pub(crate) timeout: Duration,
    pub(crate) dead_letters: DeadLetterSubject,
    pub(crate) backoff: Backoff,
    /// The consumer's `max_deliver`. The server delivers a message at most this many times, even if
    /// the message is given back or not answered.
    pub(crate) max_deliver: Option<u64>,
    pub(crate) counters: Arc<VerdictCounters>,
}

impl ServerReplies {
    /// Answers a message according to its verdict, and counts and logs the verdict.
    pub(crate) async fn answer(&self, delivery: &Delivery, verdict: Verdict) {
        let verdict = if self.is_last_delivery(delivery) { verdict.given_up() } else { verdict };
        let answered = match verdict {
            Verdict::Ack { .. } => self.confirm(delivery, AckKind::Ack).await,
            Verdict::Nack { after, .. } => {
                self.give_back(delivery, after).await;
                Ok(())
            }
            Verdict::DeadLetter { reason, .. } => {
                if !self.publish_dead_letter(delivery, reason).await {
                    return;
                }
                self.confirm(delivery, AckKind::Term).await
            }
        };
        self.counters.count(&verdict);
        verdict.log("nats", delivery.call().identity());
        if let Err(error) = answered {
            tracing::warn!(delivery = ?delivery, %error, "answer not confirmed; the server may \
                 redeliver the message");
        }
    }

    /// Reports that the message is still being handled, so the server restarts the message's
    /// `ack_wait`.
    pub(crate) async fn report_progress(&self, delivery: &Delivery) {
        self.send(delivery, AckKind::Progress).await;
    }

    /// Whether this is the last time that the server delivers the message.
    pub(crate) fn is_last_delivery(&self, delivery: &Delivery) -> bool {
        self.max_deliver.is_some_and(|last| delivery.deliveries() >= last)
    }

    /// Publishes the dead letter. Returns whether the dead-letter stream has confirmed the letter.
    /// If publishing fails, gives the message back. In the last delivery, the server would drop a
    /// message that is given back, so the listener retries until publishing succeeds.
    async fn publish_dead_letter(&self, delivery: &Delivery, reason: Reason) -> bool {
        let mut failures = 0;
        while let Err(error) = self.dead_letters.publish(delivery, reason).await {
            failures += 1;
            let kept = self.is_last_delivery(delivery);
            tracing::error!(delivery = ?delivery, %error, kept, "dead letter not published; the \
             original message stays in the stream");
            if !kept {
                let deliveries = u32::try_from(delivery.deliveries()).unwrap_or(u32::MAX);
                self.give_back(delivery, self.backoff.after(deliveries)).await;
                return false;
            }
            sleep(self.backoff.after(failures)).await;
        }
        true
    }

    /// Sends an answer up to `MAX_TRIES` times, until the server confirms it. If the server
    /// receives no answer, it redelivers the message.
    async fn confirm(&self, delivery: &Delivery, kind: AckKind) -> Result<()> {
        let mut tries = 1;
        loop {
            match self.request(delivery, kind).await {
                Ok(()) => return Ok(()),
                Err(error) if tries >= MAX_TRIES => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    async fn request(&self, delivery: &Delivery, kind: AckKind) -> Result<()> {
        let reply = delivery.message().reply.clone().ok_or_else(no_reply_subject)?;
        let request = Request::new().payload(kind.into()).timeout(Some(self.timeout));
        self.client.send_request(reply, request).await.map(drop).map_err(reply_not_confirmed)
    }

    /// Gives the message back. The server redelivers it after `pause` at the earliest.
    async fn give_back(&self, delivery: &Delivery, pause: Duration) {
        self.send(delivery, AckKind::Nak(Some(pause).filter(|pause| !pause.is_zero()))).await;
    }

    /// Sends an answer without waiting for a confirmation. If the answer is lost, the server
    /// redelivers the message when its `ack_wait` runs out.
    async fn send(&self, delivery: &Delivery, kind: AckKind) {
        if let Err(error) = delivery.message().ack_with(kind).await {
            tracing::debug!(delivery = ?delivery, %error, "answer not sent");
        }
    }
}
