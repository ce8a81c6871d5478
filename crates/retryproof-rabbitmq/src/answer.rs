// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BrokerReplies`] sends the broker the answer to each message (LST-2).

use std::time::Duration;

use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::watch;
use tokio::time::sleep;

use retryproof_core::listener::{Backoff, Verdict};
use retryproof_core::{ErrorKind, Result};

use crate::dead_letter::{copied_properties, publish_dead_letter};
use crate::delivery::{Delivery, MessageCounts};
use crate::error::too_large;
use crate::receive::connection::{ConnectionLost, with_timeout};
use wait_queue::{RequeuePublisher, Sending};

pub(crate) mod wait_queue;

/// The longest pause before the listener retries or requeues a message that it could not move to
/// another queue. During the pause, the message occupies a worker and counts towards the prefetch.
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(30);

/// Sends the answers of one run of the listener.
pub(crate) struct BrokerReplies {
    pub(crate) publisher: RequeuePublisher,
    pub(crate) dead_letters: String,
    pub(crate) backoff: Backoff,
    /// How many messages have been answered so far.
    pub(crate) answered: watch::Sender<u64>,
}

impl BrokerReplies {
    pub(crate) fn answered(&self) -> u64 {
        *self.answered.borrow()
    }

    /// Answers a message according to its verdict. A copy of the message gets `counts`. If the
    /// connection is lost, the message cannot be acknowledged, and the broker delivers it again. A
    /// driver call on a lost connection might never resolve, so `answer` also stops waiting when
    /// `lost` resolves.
    pub(crate) async fn answer(
        &self,
        verdict: Verdict,
        counts: MessageCounts,
        delivery: &Delivery,
        acker: &Acker,
        mut lost: ConnectionLost,
    ) {
        let answered = tokio::select! {
            biased;
            answered = self.send(verdict, counts, delivery, acker) => answered,
            () = lost.wait() => false,
        };
        if answered {
            self.answered.send_modify(|answered| *answered += 1);
        } else {
            tracing::debug!(
                "an answer was lost with its connection; the message will be redelivered"
            );
        }
    }

    /// Moves the message as its verdict requires, and acknowledges it. Returns whether the answer
    /// reached the broker.
    async fn send(
        &self,
        verdict: Verdict,
        counts: MessageCounts,
        delivery: &Delivery,
        acker: &Acker,
    ) -> bool {
        let mut failed_moves = 0_u32;
        let answered = loop {
            match self.move_away(verdict, counts, delivery).await {
                Ok(()) => break with_timeout(acker.ack(BasicAckOptions::default())).await,
                // The listener keeps the message, because a nack would count against the queue's
                // delivery limit.
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    failed_moves = failed_moves.saturating_add(1);
                    let pause = Backoff::new(Duration::from_secs(1), MAX_HOLD).after(failed_moves);
                    tracing::warn!(%error, again = ?pause, "message could not be moved to another \
                         queue; the listener keeps the message and tries again");
                    sleep(pause).await;
                }
                Err(error) => {
                    // The pause before the nack prevents a hot loop. The nack keeps the message in
                    // its queue, and counts against the queue's delivery limit.
                    let delay = match verdict {
                        Verdict::Nack { after, .. } => after,
                        Verdict::Ack { .. } | Verdict::DeadLetter { .. } => self.backoff.after(1),
                    };
                    let held = delay.clamp(Duration::from_secs(1), MAX_HOLD);
                    tracing::warn!(%error, ?held, "message could not be moved to another queue; \
                         the listener pauses and then requeues the message");
                    sleep(held).await;
                    let requeue = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
                    break with_timeout(acker.nack(requeue)).await;
                }
            }
        };
        matches!(answered, Ok(true))
    }

    /// Publishes a copy of the message if the verdict needs one. If the copy is too large for the
    /// broker, the message cannot be delayed, so it becomes a dead letter.
    async fn move_away(
        &self,
        verdict: Verdict,
        counts: MessageCounts,
        delivery: &Delivery,
    ) -> Result<()> {
        let (reason, sending) = match verdict {
            Verdict::Ack { .. } => return Ok(()),
            Verdict::Nack { after, reason, .. } => {
                let copy = copied_properties(delivery.message(), counts);
                match self.publisher.publish_delayed(after, delivery.payload(), copy).await {
                    Err(error) if too_large(&error).is_some() => {
                        tracing::error!(%error, "message too large to be delayed; it becomes a dead \
                             letter");
                        (reason, Sending::Alone)
                    }
                    published => return published,
                }
            }
            Verdict::DeadLetter { reason, .. } => (reason, Sending::Shared),
        };
        let queue = &self.dead_letters;
        let failures = counts.failures;
        publish_dead_letter(&self.publisher, queue, delivery, failures, reason, sending).await
    }
}
