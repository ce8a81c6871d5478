// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Desk`]: a verdict in the broker's words (LST-2).

use std::time::Duration;

use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::watch;
use tokio::time::sleep;

use retryproof_core::listener::{Backoff, Verdict};

use crate::link::within;
use crate::message::Message;
use crate::outbox::Outbox;

/// Holding a message instead of putting it off keeps a lane and a place of the prefetch.
const LONGEST_HOLD: Duration = Duration::from_secs(30);

pub(crate) struct Desk {
    pub(crate) outbox: Outbox,
    pub(crate) dead_letters: String,
    pub(crate) most_failures: u32,
    pub(crate) backoff: Backoff,
    /// How many messages were answered so far.
    pub(crate) answered: watch::Sender<u64>,
}

impl Desk {
    pub(crate) fn answered(&self) -> u64 {
        *self.answered.borrow()
    }

    /// The last failure that a message may have is its end.
    pub(crate) fn judge(&self, verdict: Verdict, message: &Message) -> Verdict {
        let out_of_attempts = message.failures().saturating_add(1) >= self.most_failures;
        if verdict.is_failure() && out_of_attempts { verdict.given_up() } else { verdict }
    }

    /// A message that cannot be answered comes again, since its connection is gone: nothing to do about it here. The driver may never end a
    /// call on a connection that broke in the middle of it, so `gone` ends the wait for it.
    pub(crate) async fn answer(&self, verdict: Verdict, message: &Message, acker: &Acker, mut gone: Gone) {
        let answered = tokio::select! {
            biased;
            answered = self.say(verdict, message, acker) => answered,
            () = gone.wait() => false,
        };
        if answered {
            self.answered.send_modify(|answered| *answered += 1);
        } else {
            tracing::debug!("the answer to a message was lost with its connection; it comes again");
        }
    }

    async fn say(&self, verdict: Verdict, message: &Message, acker: &Acker) -> bool {
        let failures = message.failures().saturating_add(u32::from(verdict.is_failure()));
        let (moved, delay) = match verdict {
            Verdict::Ack { .. } => (Ok(()), Duration::ZERO),
            Verdict::Nack { after, .. } => {
                let pause = if verdict.is_failure() { self.backoff.after(failures) } else { Duration::ZERO };
                let delay = after.max(pause);
                let copy = message.copied(failures, None);
                (self.outbox.put_off(delay, message.body(), copy).await, delay)
            }
            Verdict::DeadLetter { why, .. } => {
                let copy = message.copied(failures, Some(why));
                (self.outbox.bury(&self.dead_letters, message.body(), copy).await, self.backoff.after(1))
            }
        };
        let answered = match moved {
            Ok(()) => within(acker.ack(BasicAckOptions::default())).await,
            Err(error) => {
                // Kept here for the delay and given back to the broker's own queue, so that it is neither lost nor in a hot loop. The
                // broker counts that against its limit.
                let held = delay.clamp(Duration::from_secs(1), LONGEST_HOLD);
                tracing::warn!(%error, ?held, "a message could not be moved to another queue; it is held and given back");
                sleep(held).await;
                let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
                within(acker.nack(again)).await
            }
        };
        matches!(answered, Ok(true))
    }
}

/// Resolves when the connection that a message came by is given up.
#[derive(Clone)]
pub(crate) struct Gone(watch::Receiver<()>);

/// The other end: dropped with the connection.
pub(crate) struct Here {
    _alive: watch::Sender<()>,
}

impl Gone {
    pub(crate) fn new() -> (Here, Self) {
        let (alive, gone) = watch::channel(());
        (Here { _alive: alive }, Self(gone))
    }

    async fn wait(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}
