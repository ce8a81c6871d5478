// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandlerContext`]: runs the handler on a message and answers it (LST-2).

use std::sync::{Arc, Mutex, PoisonError};

use lapin::message::Delivery;
use tokio::time::{Instant, sleep_until};

use retryproof_core::Scope;
use retryproof_core::listener::{Backoff, Reason, Verdict, VerdictCounters, verdict_of};

use crate::answer::{BrokerReplies, MAX_HOLD, is_failed_attempt};
use crate::config::settings::{Decode, Settings};
use crate::delivery::{Incoming, Message};
use crate::receive::connection::ConnectionLost;

/// What all messages of one run share.
pub(crate) struct HandlerContext<T> {
    pub(crate) replies: BrokerReplies,
    pub(crate) scope: Scope,
    pub(crate) settings: Arc<Settings>,
    pub(crate) decode: Arc<Decode<T>>,
    pub(crate) store_pause: StorePause,
    pub(crate) counters: Arc<VerdictCounters>,
}

impl<T: Send + 'static> HandlerContext<T> {
    /// Handles a message: reads it, runs the work, answers.
    pub(crate) async fn handle<F, Fut>(
        self: Arc<Self>,
        delivery: Delivery,
        work: Arc<F>,
        lost: ConnectionLost,
    ) where
        F: Fn(Incoming<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let acker = delivery.acker.clone();
        let message = Arc::new(Message::new(delivery));
        let mut identity = None;
        // A panic of the decoder is verdict_of too: without an answer, the message would count to the
        // prefetch for ever.
        let handled = verdict_of(async {
            match self.settings.read(&self.scope, &*self.decode, &message) {
                Ok((ctx, body)) => {
                    identity = Some(ctx.identity().clone());
                    work(Incoming { ctx, body, message: Arc::clone(&message) }).await
                }
                Err(poison) => Verdict::poison(poison),
            }
        });
        let verdict = handled.await;
        let verdict = self.judge(verdict, &message);
        self.counters.count(&verdict);
        verdict.log("rabbitmq", identity.as_ref());
        self.replies.answer(verdict, &message, &acker, lost).await;
    }

    /// Turns the last failed attempt into a dead letter.
    fn judge(&self, verdict: Verdict, message: &Message) -> Verdict {
        self.store_pause.note(verdict.reason(), self.settings.backoff);
        let attempts = message.failures().saturating_add(1);
        if is_failed_attempt(&verdict) && attempts >= self.settings.max_attempts {
            verdict.given_up()
        } else {
            verdict
        }
    }
}

/// Pauses the listener while the store is away: each message that it received then would only move
/// to a wait queue and back.
#[derive(Default)]
pub(crate) struct StorePause(Mutex<Outages>);

#[derive(Default)]
struct Outages {
    count: u32,
    until: Option<Instant>,
}

impl StorePause {
    /// Notes whether the store answered, as far as the verdict's reason shows.
    fn note(&self, reason: Reason, backoff: Backoff) {
        let mut outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Reason::Store => {
                let now = Instant::now();
                // Messages that are handled at the same time meet the same outage.
                if outages.until.is_none_or(|until| until <= now) {
                    outages.count = outages.count.saturating_add(1);
                    outages.until = Some(now + backoff.after(outages.count).min(MAX_HOLD));
                }
            }
            // The store was not needed.
            Reason::Poison(_) | Reason::Panicked => {}
            _ => *outages = Outages::default(),
        }
    }

    /// Resolves when messages may be received.
    pub(crate) async fn over(&self) {
        let until = || self.0.lock().unwrap_or_else(PoisonError::into_inner).until;
        while let Some(until) = until().filter(|until| *until > Instant::now()) {
            sleep_until(until).await;
        }
    }
}
