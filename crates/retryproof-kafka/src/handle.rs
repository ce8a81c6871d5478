// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandlerContext`]: runs the handler on the messages of a partition, each until it is answered
//! (LST-2).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retryproof_core::Scope;
use retryproof_core::listener::{Backoff, Poison, Reason, Verdict, VerdictCounters, verdict_of};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::answer::offsets::OffsetTracker;
use crate::answer::store_offset;
use crate::dead_letter::DeadLetterTopic;
use crate::delivery::{Delivery, KeyOf};
use crate::receive::QueuedMessage;
use crate::receive::assignment::{GroupConsumer, PartitionStop};

/// What all partitions of a listener share.
pub(crate) struct HandlerContext {
    pub(crate) consumer: GroupConsumer,
    pub(crate) dead_letters: DeadLetterTopic,
    pub(crate) scope: Scope,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) backoff: Backoff,
    pub(crate) max_attempts: u32,
    /// Messages of one partition that are handled at the same time.
    pub(crate) partition_concurrency: usize,
    pub(crate) counters: Arc<VerdictCounters>,
}

/// The failures of a message so far.
#[derive(Default)]
struct Attempts {
    /// Runs that failed.
    failed: u32,
    /// Negative verdicts of any kind.
    nacks: u32,
}

/// What follows a verdict.
enum NextStep {
    Answer(Verdict),
    RunAgainAfter(Duration),
}

impl HandlerContext {
    /// Handles the messages of a partition until it is revoked or the listener stops. Then no new
    /// handler begins, and those that run finish.
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
            // The permit comes first: with one permit, the next message begins when the previous
            // one is answered.
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

    /// Runs the handler until the message has its final answer. Returns whether the offset may move
    /// past it. A message stays unanswered if its partition is revoked, or if it waits for its next
    /// attempt when the listener stops: the partition's next owner receives it.
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
        let mut attempts = Attempts::default();
        let verdict = loop {
            if stop.is_requested() {
                return false;
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
            let pause = match self.judge(verdict, &mut attempts) {
                NextStep::Answer(verdict) => break verdict,
                NextStep::RunAgainAfter(pause) => pause,
            };
            self.count(&verdict, delivery);
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.requested() => return false,
            }
        };
        if let Verdict::DeadLetter { reason, .. } = verdict
            && !self.dead_letters.publish_until(&mut stop, delivery, reason, self.backoff).await
        {
            return false;
        }
        self.count(&verdict, delivery);
        !stop.is_revoked()
    }

    fn judge(&self, verdict: Verdict, attempts: &mut Attempts) -> NextStep {
        let Verdict::Nack { after, reason, .. } = verdict else { return NextStep::Answer(verdict) };
        attempts.nacks = attempts.nacks.saturating_add(1);
        let pause = match reason {
            // Never without a pause: a handler that returns this verdict at once would otherwise
            // run in a hot loop.
            Reason::InFlight => self.backoff.after(1),
            // Nothing ran, so this is not an attempt.
            Reason::Store => self.backoff.after(attempts.nacks),
            // The work ran without a result, possibly because it lost its lease.
            _ => {
                attempts.failed += 1;
                if attempts.failed >= self.max_attempts {
                    return NextStep::Answer(verdict.given_up());
                }
                self.backoff.after(attempts.failed)
            }
        };
        NextStep::RunAgainAfter(pause.max(after))
    }

    fn count(&self, verdict: &Verdict, delivery: &Delivery) {
        self.counters.count(verdict);
        verdict.log("kafka", delivery.identity().as_ref());
    }
}
