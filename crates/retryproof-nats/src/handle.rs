// SPDX-License-Identifier: MIT OR Apache-2.0
//! One message, from its delivery to its answer (LST-2).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::AckKind;
use retryproof_core::Scope;
use retryproof_core::listener::{Backoff, Poison, Reason, Tally, Verdict, caught};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::answer::Broker;
use crate::delivery::{Delivery, KeyOf};

/// What all messages of a listener share.
pub(crate) struct Desk {
    pub(crate) broker: Broker,
    pub(crate) scope: Scope,
    pub(crate) key_of: Arc<KeyOf>,
    /// How often the server is told that a message is being worked on.
    pub(crate) progress_every: Duration,
    pub(crate) running: Semaphore,
    pub(crate) parked: Semaphore,
    pub(crate) backoff: Backoff,
    /// How long a request of this listener stays open. A stop gives back no sooner: the message
    /// would come back by that very request.
    pub(crate) pull_for: Duration,
    /// The last delivery that a message has.
    pub(crate) give_up_after: Option<u64>,
    /// The last one that the server makes: what is given back in it, or not answered, it drops.
    pub(crate) last_at_server: Option<u64>,
    /// Whether a message did not reach the store, since somebody looked.
    pub(crate) store_away: AtomicBool,
    pub(crate) tally: Arc<Tally>,
}

/// What is left of a message after its handler.
enum Turn {
    /// The server is to be told.
    Answer(Verdict),
    /// Not now, and without giving it back: it is looked at again after this time.
    Park(Duration),
}

impl Desk {
    /// Sees to it that the message is answered. `place` is its place among those fetched; a parked
    /// message leaves it to another.
    pub(crate) async fn serve<H, Fut>(
        self: Arc<Self>,
        delivery: Delivery,
        handler: Arc<H>,
        place: OwnedSemaphorePermit,
        mut stopped: watch::Receiver<bool>,
    ) where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send,
    {
        let answered = async {
            let verdict = self.decide(&delivery, &*handler, place, &mut stopped).await;
            self.answer(&delivery, verdict).await;
        };
        tokio::select! {
            () = answered => {}
            () = self.keep(&delivery) => {}
        }
    }

    /// Says for ever that the message is being worked on, also while it waits for its turn or is
    /// parked: the server delivers it to nobody else meanwhile, and counts no delivery.
    async fn keep(&self, delivery: &Delivery) {
        let mut tick = interval(self.progress_every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.tick().await; // the first one comes at once, and the server knows
        loop {
            tick.tick().await;
            self.broker.tell(delivery, AckKind::Progress).await;
        }
    }

    /// Runs the handler, again after each pause that the message is parked for.
    async fn decide<H, Fut>(
        &self,
        delivery: &Delivery,
        handler: &H,
        place: OwnedSemaphorePermit,
        stopped: &mut watch::Receiver<bool>,
    ) -> Verdict
    where
        H: Fn(Delivery) -> Fut,
        Fut: Future<Output = Result<Verdict, Poison>>,
    {
        let mut place = Some(place);
        let mut looks = 0_u32;
        loop {
            // Never closed.
            let running = self.running.acquire().await.ok();
            if *stopped.borrow() && !self.is_last_at_server(delivery) {
                return Verdict::put_off(self.pull_for);
            }
            let verdict = match delivery.key() {
                Ok(_) => {
                    caught(async {
                        handler(delivery.clone()).await.unwrap_or_else(Verdict::poison)
                    })
                    .await
                }
                Err(why) => Verdict::poison(why),
            };
            drop(running);
            looks += 1;
            let pause = match self.turn(delivery, verdict, looks) {
                Turn::Answer(verdict) => return verdict,
                Turn::Park(pause) => pause,
            };
            let Ok(_parked) = self.parked.try_acquire() else {
                return Verdict::put_off(pause);
            };
            verdict.log("nats", delivery.identity().as_ref());
            drop(place.take());
            tokio::select! {
                () = sleep(pause) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return Verdict::put_off(pause.max(self.pull_for)),
            }
        }
    }

    fn turn(&self, delivery: &Delivery, verdict: Verdict, looks: u32) -> Turn {
        let Verdict::Nack { after, why, .. } = verdict else {
            return Turn::Answer(verdict);
        };
        if why == Reason::Store {
            self.store_away.store(true, Ordering::Relaxed);
        }
        let last = self.give_up_after.is_some_and(|last| delivery.deliveries() >= last);
        match why {
            // Every delivery counts at the server, whatever it is for. A parked one is none.
            // Never without a pause: a handler may have made this verdict of nothing.
            Reason::InFlight => Turn::Park(after.max(self.backoff.after(1))),
            // Nothing ran: it does not lose its last chance to that. What ran and came to nothing,
            // also because its lease was lost, spends it.
            Reason::Store if last => Turn::Park(self.backoff.after(looks).max(after)),
            _ if last => Turn::Answer(verdict.given_up()),
            _ => Turn::Answer(verdict),
        }
    }

    fn is_last_at_server(&self, delivery: &Delivery) -> bool {
        self.last_at_server.is_some_and(|last| delivery.deliveries() >= last)
    }

    async fn answer(&self, delivery: &Delivery, verdict: Verdict) {
        let verdict = if self.is_last_at_server(delivery) { verdict.given_up() } else { verdict };
        let told = match verdict {
            Verdict::Ack { .. } => self.broker.confirmed(delivery, AckKind::Ack).await,
            Verdict::Nack { after, .. } => {
                let pause =
                    if verdict.is_failure() { self.pause(delivery).max(after) } else { after };
                self.broker.give_back(delivery, pause).await;
                Ok(())
            }
            Verdict::DeadLetter { why, .. } => {
                if !self.bury(delivery, why).await {
                    return;
                }
                self.broker.confirmed(delivery, AckKind::Term).await
            }
        };
        self.tally.count(&verdict);
        verdict.log("nats", delivery.identity().as_ref());
        if let Err(error) = told {
            tracing::warn!(delivery = ?delivery, %error, "answer not confirmed, its message may \
                 come again and run nothing");
        }
    }

    /// Whether the dead letter lies where it belongs. If not, the message is given back; in the
    /// last delivery, where the server would drop it, it is kept until the letter is taken.
    async fn bury(&self, delivery: &Delivery, why: Reason) -> bool {
        let mut failures = 0;
        while let Err(error) = self.broker.bury(delivery, why).await {
            failures += 1;
            let kept = self.is_last_at_server(delivery);
            tracing::error!(delivery = ?delivery, %error, kept, "dead letter not sent, its message stays");
            if !kept {
                self.broker.give_back(delivery, self.pause(delivery)).await;
                return false;
            }
            sleep(self.backoff.after(failures)).await;
        }
        true
    }

    fn pause(&self, delivery: &Delivery) -> Duration {
        self.backoff.after(u32::try_from(delivery.deliveries()).unwrap_or(u32::MAX))
    }
}
