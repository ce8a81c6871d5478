// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandlerContext`]: runs the handler on a message until it is answered (LST-2).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retryproof_core::Scope;
use retryproof_core::listener::{Backoff, Poison, Reason, Verdict, verdict_of};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::answer::ServerReplies;
use crate::delivery::{Delivery, KeyOf};

/// What all messages of a listener share.
pub(crate) struct HandlerContext {
    pub(crate) replies: ServerReplies,
    pub(crate) scope: Scope,
    pub(crate) key_of: Arc<KeyOf>,
    /// How often the server receives a progress report on each unanswered message.
    pub(crate) progress_interval: Duration,
    /// One permit for each handler that may run.
    pub(crate) running: Semaphore,
    /// One permit for each message that may be parked.
    pub(crate) parked: Semaphore,
    pub(crate) backoff: Backoff,
    /// How long a fetch request stays open. A stop gives messages back with at least this delay:
    /// otherwise the server would deliver them to the request that is still open.
    pub(crate) fetch_timeout: Duration,
    /// After this delivery, a message that fails becomes a dead letter.
    pub(crate) max_deliveries: Option<u64>,
    /// Whether the store was away for a message since [`take_store_away`](Self::take_store_away).
    pub(crate) store_away: AtomicBool,
}

/// What follows a verdict.
enum NextStep {
    Answer(Verdict),
    /// Keep the message without an answer, and run the handler again after this time.
    Park(Duration),
}

impl HandlerContext {
    /// Handles a message and answers it. `fetched` is its permit among the fetched messages; a
    /// message that is parked releases it.
    pub(crate) async fn handle<H, Fut>(
        self: Arc<Self>,
        delivery: Delivery,
        handler: Arc<H>,
        fetched: OwnedSemaphorePermit,
        mut stopping: watch::Receiver<bool>,
    ) where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send,
    {
        let answered = async {
            let verdict = self.decide(&delivery, &*handler, fetched, &mut stopping).await;
            self.replies.answer(&delivery, verdict).await;
        };
        tokio::select! {
            () = answered => {}
            () = self.report_progress(&delivery) => {}
        }
    }

    /// Whether the store was away for any message since the last call.
    pub(crate) fn take_store_away(&self) -> bool {
        self.store_away.swap(false, Ordering::Relaxed)
    }

    /// Reports progress for ever, also while the message waits for a handler or is parked: until
    /// its answer, the server does not redeliver it and counts no delivery.
    async fn report_progress(&self, delivery: &Delivery) {
        let mut ticks = interval(self.progress_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await; // The first tick comes at once, just after the delivery.
        loop {
            ticks.tick().await;
            self.replies.report_progress(delivery).await;
        }
    }

    /// Runs the handler, again after each time the message was parked.
    async fn decide<H, Fut>(
        &self,
        delivery: &Delivery,
        handler: &H,
        fetched: OwnedSemaphorePermit,
        stopping: &mut watch::Receiver<bool>,
    ) -> Verdict
    where
        H: Fn(Delivery) -> Fut,
        Fut: Future<Output = Result<Verdict, Poison>>,
    {
        let mut fetched = Some(fetched);
        let mut runs = 0_u32;
        loop {
            // The semaphore is never closed.
            let running = self.running.acquire().await.ok();
            if *stopping.borrow() && !self.replies.is_last_delivery(delivery) {
                return Verdict::delayed(self.fetch_timeout);
            }
            let verdict = match delivery.key() {
                Ok(_) => {
                    verdict_of(async {
                        handler(delivery.clone()).await.unwrap_or_else(Verdict::poison)
                    })
                    .await
                }
                Err(poison) => Verdict::poison(poison),
            };
            drop(running);
            runs += 1;
            let pause = match self.judge(delivery, verdict, runs) {
                NextStep::Answer(verdict) => return verdict,
                NextStep::Park(pause) => pause,
            };
            let Ok(_parked) = self.parked.try_acquire() else {
                return Verdict::delayed(pause);
            };
            verdict.log("nats", delivery.identity().as_ref());
            drop(fetched.take());
            tokio::select! {
                () = sleep(pause) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {
                    return Verdict::delayed(pause.max(self.fetch_timeout));
                }
            }
        }
    }

    fn judge(&self, delivery: &Delivery, verdict: Verdict, runs: u32) -> NextStep {
        let Verdict::Nack { after, reason, .. } = verdict else {
            return NextStep::Answer(verdict);
        };
        if reason == Reason::Store {
            self.store_away.store(true, Ordering::Relaxed);
        }
        let last = self.max_deliveries.is_some_and(|last| delivery.deliveries() >= last);
        match reason {
            // Giving the message back would cost a delivery, parking it does not. Never without a
            // pause: a handler that returns this verdict at once would otherwise run in a hot loop.
            Reason::InFlight => NextStep::Park(after.max(self.backoff.after(1))),
            // Nothing ran, so the message keeps its last delivery.
            Reason::Store if last => NextStep::Park(self.backoff.after(runs).max(after)),
            // The work ran without a result, possibly because it lost its lease.
            _ if last => NextStep::Answer(verdict.given_up()),
            _ => NextStep::Answer(verdict),
        }
    }
}
