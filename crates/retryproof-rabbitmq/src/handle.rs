// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandlerContext`]: runs the handler on a message and answers it (LST-2).

use std::sync::{Arc, Mutex, PoisonError};

use retryproof_core::listener::{
    AttemptRules, Backoff, MessageSettings, Poison, Reason, Verdict, VerdictCounters,
};
use tokio::time::{Instant, sleep_until};

use crate::answer::{BrokerReplies, MAX_HOLD};
use crate::delivery::{Delivery, KeyOf, Message, MessageCounts};
use crate::receive::connection::ConnectionLost;

/// The state that all messages of one run share.
pub(crate) struct HandlerContext {
    pub(crate) replies: BrokerReplies,
    pub(crate) messages: Arc<MessageSettings>,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) subject_of: Option<Arc<KeyOf>>,
    pub(crate) rules: AttemptRules,
    pub(crate) store_pause: StorePause,
    pub(crate) counters: Arc<VerdictCounters>,
}

impl HandlerContext {
    /// Handles a message and answers it.
    pub(crate) async fn handle<H, Fut>(
        self: Arc<Self>,
        received: lapin::message::Delivery,
        handler: Arc<H>,
        lost: ConnectionLost,
    ) where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let acker = received.acker.clone();
        let (message, messages) = (Message::new(received), Arc::clone(&self.messages));
        let delivery = Delivery::new(message, messages, &*self.key_of, self.subject_of.as_deref());
        let verdict = delivery.call().handle(|| handler(delivery.clone())).await;
        let counts = delivery.counts_after(&verdict);
        let verdict = self.judge(verdict, counts);
        self.counters.count(&verdict);
        verdict.log("rabbitmq", delivery.call().identity());
        self.replies.answer(verdict, counts, &delivery, &acker, lost).await;
    }

    fn judge(&self, verdict: Verdict, counts: MessageCounts) -> Verdict {
        self.store_pause.note(verdict.reason(), self.rules.backoff());
        self.rules.judge(verdict, counts.failures.into(), counts.outages)
    }
}

/// Pauses the listener while the store is unavailable, because a message received during an outage
/// would only move to a wait queue and back.
#[derive(Default)]
pub(crate) struct StorePause(Mutex<Outages>);

#[derive(Default)]
struct Outages {
    count: u32,
    until: Option<Instant>,
}

impl StorePause {
    /// Records whether the store was available, if the verdict's reason shows it.
    fn note(&self, reason: Reason, backoff: Backoff) {
        let mut outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Reason::Store => {
                let now = Instant::now();
                // Messages that are handled at the same time run into the same outage, so count
                // that outage only once.
                if outages.until.is_none_or(|until| until <= now) {
                    outages.count = outages.count.saturating_add(1);
                    outages.until = Some(now + backoff.after(outages.count).min(MAX_HOLD));
                }
            }
            // A malformed message or a panic does not show whether the store is available.
            Reason::Poison(_) | Reason::Panicked => {}
            _ => *outages = Outages::default(),
        }
    }

    /// Resolves when the pause is over, or immediately if the listener is not paused.
    pub(crate) async fn over(&self) {
        let until = || self.0.lock().unwrap_or_else(PoisonError::into_inner).until;
        while let Some(until) = until().filter(|until| *until > Instant::now()) {
            sleep_until(until).await;
        }
    }
}
