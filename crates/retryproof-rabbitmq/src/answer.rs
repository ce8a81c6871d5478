// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Desk`]: a verdict in the broker's words (LST-2).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use retryproof_core::ErrorKind;
use retryproof_core::listener::{Backoff, Reason, Verdict};

use crate::answer::wait_queue::Outbox;
use crate::delivery::Message;
use crate::receive::connection::within;

pub(crate) mod wait_queue;

/// Holding a message instead of putting it off keeps a lane and a place of the prefetch.
const LONGEST_HOLD: Duration = Duration::from_secs(30);

pub(crate) struct Desk {
    pub(crate) outbox: Outbox,
    pub(crate) dead_letters: String,
    pub(crate) most_failures: u32,
    pub(crate) backoff: Backoff,
    /// How many messages were answered so far.
    pub(crate) answered: watch::Sender<u64>,
    pub(crate) rest: Rest,
}

/// No message is taken while the store is thought to be away: each would only be moved to a wait
/// queue and back.
#[derive(Default)]
pub(crate) struct Rest(Mutex<Resting>);

#[derive(Default)]
struct Resting {
    outages: u32,
    until: Option<Instant>,
}

impl Rest {
    /// Whether the store answered, as far as the verdict tells.
    fn note(&self, why: Reason, backoff: Backoff) {
        let mut rest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Reason::Store => {
                let now = Instant::now();
                // Those that were in work side by side meet one outage, not many.
                if rest.until.is_none_or(|until| until <= now) {
                    rest.outages = rest.outages.saturating_add(1);
                    rest.until = Some(now + backoff.after(rest.outages).min(LONGEST_HOLD));
                }
            }
            // Nobody asked it.
            Reason::Poison(_) | Reason::Panicked => {}
            _ => *rest = Resting::default(),
        }
    }

    /// Resolves when messages may be taken.
    pub(crate) async fn over(&self) {
        let until = || self.0.lock().unwrap_or_else(PoisonError::into_inner).until;
        while let Some(until) = until().filter(|until| *until > Instant::now()) {
            sleep_until(until).await;
        }
    }
}

/// Whether it spends one of the message's attempts: what ran and came to nothing does, also because
/// its lease was lost or its completion was not recorded. While the store is away, or the engine
/// takes no more work, nothing runs.
fn counts(verdict: &Verdict) -> bool {
    verdict.is_failure() && verdict.why() != Reason::Store
}

impl Desk {
    pub(crate) fn answered(&self) -> u64 {
        *self.answered.borrow()
    }

    /// The last failure that a message may have is its end.
    pub(crate) fn judge(&self, verdict: Verdict, message: &Message) -> Verdict {
        self.rest.note(verdict.why(), self.backoff);
        let out_of_attempts = message.failures().saturating_add(1) >= self.most_failures;
        if counts(&verdict) && out_of_attempts { verdict.given_up() } else { verdict }
    }

    /// A message that cannot be answered comes again, since its connection is gone: nothing to do
    /// about it here. The driver may never end a call on a connection that broke in the middle of
    /// it, so `gone` ends the wait for it.
    pub(crate) async fn answer(
        &self,
        verdict: Verdict,
        message: &Message,
        acker: &Acker,
        mut gone: Gone,
    ) {
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
        let failures = message.failures().saturating_add(u32::from(counts(&verdict)));
        let mut unmoved = 0_u32;
        let answered = loop {
            let (moved, delay) = match verdict {
                Verdict::Ack { .. } => (Ok(()), Duration::ZERO),
                Verdict::Nack { after, why, .. } => {
                    let outages =
                        if why == Reason::Store { message.outages().saturating_add(1) } else { 0 };
                    let pause = match why {
                        Reason::Store => self.backoff.after(outages),
                        Reason::InFlight => Duration::ZERO,
                        _ => self.backoff.after(failures),
                    };
                    let delay = after.max(pause);
                    let copy = message.copied(failures, outages, None);
                    (self.outbox.put_off(delay, message.body(), copy).await, delay)
                }
                Verdict::DeadLetter { why, .. } => {
                    let copy = message.copied(failures, 0, Some(why));
                    let buried = self.outbox.bury(&self.dead_letters, message.body(), copy).await;
                    (buried, self.backoff.after(1))
                }
            };
            match moved {
                Ok(()) => break within(acker.ack(BasicAckOptions::default())).await,
                // Given back, it would count against the broker's limit for nothing: the message
                // stays ours, and the move is tried again.
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    unmoved = unmoved.saturating_add(1);
                    let again = Backoff::new(Duration::from_secs(1), LONGEST_HOLD).after(unmoved);
                    tracing::warn!(%error, ?again, "a message could not be moved to another \
                         queue; it is held, and moved later");
                    sleep(again).await;
                }
                Err(error) => {
                    // Kept here for the delay and given back to the broker's own queue, so that it
                    // is neither lost nor in a hot loop. The broker counts that against its limit.
                    let held = delay.clamp(Duration::from_secs(1), LONGEST_HOLD);
                    tracing::warn!(%error, ?held, "a message could not be moved to another \
                         queue; it is held and given back");
                    sleep(held).await;
                    let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
                    break within(acker.nack(again)).await;
                }
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
