// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandlerContext`]: runs the handler on each message of a partition until the message is
//! answered (LST-2).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use retryproof_core::listener::{AttemptRules, Poison, Reason, Verdict, VerdictCounters};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::answer::offsets::OffsetTracker;
use crate::answer::store_offset;
use crate::dead_letter::DeadLetterTopic;
use crate::delivery::Delivery;
use crate::receive::QueuedMessage;
use crate::receive::assignment::{GroupConsumer, PartitionStop};

/// The state that all partitions of a listener share.
pub(crate) struct HandlerContext {
    pub(crate) consumer: GroupConsumer,
    pub(crate) dead_letters: DeadLetterTopic,
    pub(crate) rules: AttemptRules,
    /// How many messages of one partition are handled at the same time.
    pub(crate) partition_concurrency: usize,
    pub(crate) counters: Arc<VerdictCounters>,
}

impl HandlerContext {
    /// Handles the messages of a partition until the partition is revoked or the listener stops.
    /// After that, starts no new handler, and resolves when the running handlers have finished.
    pub(crate) async fn handle_partition<H, Fut>(
        self: Arc<Self>,
        mut messages: mpsc::UnboundedReceiver<QueuedMessage>,
        handler: Arc<H>,
        mut stop: PartitionStop,
    ) where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(self.partition_concurrency));
        let tracker = Arc::new(Mutex::new(OffsetTracker::default()));
        let mut handlers = JoinSet::new();
        loop {
            while handlers.try_join_next().is_some() {}
            // Take a permit before taking a message. If there is only one permit, each message then
            // waits until the previous message is answered.
            let next = async {
                let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
                Some((permit, messages.recv().await?))
            };
            let (permit, (delivery, unanswered)) = tokio::select! {
                biased;
                () = stop.requested() => break,
                next = next => match next {
                    Some(next) => next,
                    None => break,
                },
            };
            let open =
                tracker.lock().unwrap_or_else(PoisonError::into_inner).begin(delivery.offset());
            let (context, handler, tracker, stop) =
                (Arc::clone(&self), Arc::clone(&handler), Arc::clone(&tracker), stop.clone());
            handlers.spawn(async move {
                if context.handle(&delivery, &*handler, stop).await {
                    store_offset(&context.consumer, &delivery, open, &tracker);
                }
                drop((permit, unanswered));
            });
        }
        while handlers.join_next().await.is_some() {}
    }

    /// Runs the handler until the message has its final answer. Returns whether the offset can move
    /// past the message. Returns `false` if the partition is revoked, or if the listener stops
    /// before the final answer. The partition's next owner then receives the message.
    async fn handle<H, Fut>(
        &self,
        delivery: &Delivery,
        handler: &H,
        mut stop: PartitionStop,
    ) -> bool
    where
        H: Fn(Delivery) -> Fut,
        Fut: Future<Output = Result<Verdict, Poison>>,
    {
        // `failures` counts the failed attempts, and `outages` the consecutive times that the store
        // was unavailable.
        let (mut failures, mut outages) = (0_u64, 0_u32);
        let verdict = loop {
            if stop.is_requested() {
                return false;
            }
            let verdict = delivery.call().handle(|| handler(delivery.clone())).await;
            failures += u64::from(verdict.is_failed_attempt());
            let is_outage = verdict.reason() == Reason::Store;
            outages = if is_outage { outages.saturating_add(1) } else { 0 };
            let verdict = self.rules.judge(verdict, failures, outages);
            let Verdict::Nack { after, .. } = verdict else { break verdict };
            self.count(&verdict, delivery);
            tokio::select! {
                () = sleep(after) => {}
                () = stop.requested() => return false,
            }
        };
        if let Verdict::DeadLetter { reason, .. } = verdict {
            let backoff = self.rules.backoff();
            if !self.dead_letters.publish_until(&mut stop, delivery, reason, backoff).await {
                return false;
            }
        }
        self.count(&verdict, delivery);
        !stop.is_revoked()
    }

    fn count(&self, verdict: &Verdict, delivery: &Delivery) {
        self.counters.count(verdict);
        verdict.log("kafka", delivery.call().identity());
    }
}
