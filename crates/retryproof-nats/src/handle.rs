// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandlerContext`]: runs the handler on a message until the message is answered (LST-2).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retryproof_core::listener::{AttemptRules, Poison, Reason, Verdict};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::answer::ServerReplies;
use crate::delivery::Delivery;

/// The state that all messages of a listener share.
pub(crate) struct HandlerContext {
    pub(crate) replies: ServerReplies,
    /// The rules for attempts. Each delivery counts as an attempt, because JetStream counts
    /// deliveries and a message cannot carry a count of failures.
    pub(crate) rules: AttemptRules,
    /// The time between two progress reports on an unanswered message.
    pub(crate) progress_interval: Duration,
    /// One permit for each handler that can run at the same time.
    pub(crate) running: Semaphore,
    /// One permit for each message that can be parked at the same time.
    pub(crate) parked: Semaphore,
    /// How long a fetch request stays open. A stop gives messages back with at least this delay.
    /// Otherwise, the server would deliver them to the request that is still open.
    pub(crate) fetch_timeout: Duration,
    /// How long a handler can run after a stop has begun.
    pub(crate) drain_timeout: Duration,
    /// The number of the first delivery in which a failure is final: a message that fails in that
    /// delivery or a later one becomes a dead letter.
    pub(crate) max_deliveries: Option<u64>,
    /// Whether the store was unavailable for any message since the last call to
    /// [`take_store_away`](Self::take_store_away).
    pub(crate) store_away: AtomicBool,
}

impl HandlerContext {
    /// Handles a message and answers it. Holds the permit `fetched` until the message is answered
    /// or parked.
    pub(crate) async fn handle<H, Fut>(
        self: Arc<Self>,
        delivery: Delivery,
        handler: Arc<H>,
        fetched: OwnedSemaphorePermit,
        stopping: watch::Receiver<bool>,
    ) where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send,
    {
        let answered = async {
            let mut fetched = Some(fetched);
            let verdict = self.decide(&delivery, &*handler, &mut fetched, &stopping).await;
            self.replies.answer(&delivery, verdict).await;
        };
        tokio::select! {
            () = answered => {}
            () = self.report_progress(&delivery) => {}
        }
    }

    /// Whether the store was unavailable for any message since the last call.
    pub(crate) fn take_store_away(&self) -> bool {
        self.store_away.swap(false, Ordering::Relaxed)
    }

    /// Reports progress forever, even while the message waits for a handler or is parked. Until the
    /// message is answered, these reports keep the server from redelivering it and counting another
    /// delivery.
    async fn report_progress(&self, delivery: &Delivery) {
        let mut ticks = interval(self.progress_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await; // the first tick comes at once, just after the delivery
        loop {
            ticks.tick().await;
            self.replies.report_progress(delivery).await;
        }
    }

    /// Runs the handler. If the message is parked, runs the handler again after a pause.
    ///
    /// A stop gives back the messages whose handler has not started. The server would drop a
    /// message on its last delivery, so that message can still start until the drain timeout. After
    /// that, each handler is dropped, and a message on its last delivery becomes a dead letter.
    async fn decide<H, Fut>(
        &self,
        delivery: &Delivery,
        handler: &H,
        fetched: &mut Option<OwnedSemaphorePermit>,
        stopping: &watch::Receiver<bool>,
    ) -> Verdict
    where
        H: Fn(Delivery) -> Fut,
        Fut: Future<Output = Result<Verdict, Poison>>,
    {
        let given_back = Verdict::delayed(self.fetch_timeout);
        let is_last = self.replies.is_last_delivery(delivery);
        let start_within = if is_last { self.drain_timeout } else { Duration::ZERO };
        let mut too_late_to_start = pin!(stopped_for(start_within, stopping.clone()));
        let mut drained = pin!(stopped_for(self.drain_timeout, stopping.clone()));
        let mut runs = 0_u32;
        loop {
            let running = tokio::select! {
                biased;
                () = &mut too_late_to_start => return given_back,
                // `acquire` cannot fail, because the semaphore is never closed.
                running = self.running.acquire() => running.ok(),
            };
            let verdict = tokio::select! {
                biased;
                verdict = delivery.call().handle(|| handler(delivery.clone())) => verdict,
                () = &mut drained => {
                    tracing::warn!(?delivery, "handler dropped: it was still running after the \
                         drain timeout");
                    return given_back;
                }
            };
            drop(running);
            runs += 1;
            let verdict = self.judge(delivery, verdict, runs);
            let Verdict::Nack { after: pause, reason, .. } = verdict else { return verdict };
            if !self.is_parked(delivery, reason) {
                return verdict;
            }
            let Ok(_parked) = self.parked.try_acquire() else {
                return Verdict::delayed(pause);
            };
            verdict.log("nats", delivery.call().identity());
            drop(fetched.take());
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped_for(Duration::ZERO, stopping.clone()) => {
                    return Verdict::delayed(pause.max(self.fetch_timeout));
                }
            }
        }
    }

    fn judge(&self, delivery: &Delivery, verdict: Verdict, runs: u32) -> Verdict {
        if verdict.reason() == Reason::Store {
            self.store_away.store(true, Ordering::Relaxed);
        }
        let deliveries = delivery.deliveries();
        // During the last delivery, the listener keeps the message while the store is unavailable,
        // so each run of the handler counts as an outage. Before that, each delivery counts as one
        // outage.
        let outages = if self.is_last(delivery) {
            runs
        } else {
            u32::try_from(deliveries).unwrap_or(u32::MAX)
        };
        self.rules.judge(verdict, deliveries, outages)
    }

    /// Whether the listener keeps the unanswered message until the handler runs again. If it gave
    /// the message back, a delivery would be used up although no work has run.
    fn is_parked(&self, delivery: &Delivery, reason: Reason) -> bool {
        match reason {
            Reason::InFlight => true,
            Reason::Store => self.is_last(delivery),
            _ => false,
        }
    }

    fn is_last(&self, delivery: &Delivery) -> bool {
        self.max_deliveries.is_some_and(|last| delivery.deliveries() >= last)
    }
}

/// Resolves when a stop has begun and `time` has passed since then.
async fn stopped_for(time: Duration, mut stopping: watch::Receiver<bool>) {
    // `wait_for` cannot fail, because the sender outlives the messages.
    let _ = stopping.wait_for(|stopping| *stopping).await;
    // Even a sleep of no length would let a handler start.
    if !time.is_zero() {
        sleep(time).await;
    }
}
