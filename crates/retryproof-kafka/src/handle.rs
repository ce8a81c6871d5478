// SPDX-License-Identifier: MIT OR Apache-2.0
//! One partition: its messages in their order, each seen to until it is answered (LST-2).

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use retryproof_core::Scope;
use retryproof_core::listener::{Backoff, Poison, Reason, Tally, Verdict, caught};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::answer::offsets::{Begun, Marks};
use crate::dead_letter::Grave;
use crate::delivery::{Delivery, KeyOf};
use crate::receive::assignment::{Ending, Member};

/// What all partitions of a listener share.
pub(crate) struct Desk {
    pub(crate) consumer: StreamConsumer<Member>,
    pub(crate) grave: Grave,
    pub(crate) scope: Scope,
    pub(crate) key_of: Arc<KeyOf>,
    pub(crate) backoff: Backoff,
    pub(crate) attempts: u32,
    pub(crate) side_by_side: usize,
    pub(crate) tally: Arc<Tally>,
}

/// How many messages of a partition were read and not answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead(Arc<AtomicUsize>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Place(Ahead);

impl Ahead {
    pub(crate) fn one_more(&self) -> Place {
        self.0.fetch_add(1, Ordering::SeqCst);
        Place(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A message and its place.
pub(crate) type Taken = (Delivery, Place);

impl Desk {
    /// Works through a partition until it is taken away, or the listener stops: then what is at
    /// work is ended, and nothing new begun.
    pub(crate) async fn work<H, Fut>(
        self: Arc<Self>,
        mut messages: mpsc::UnboundedReceiver<Taken>,
        handler: Arc<H>,
        mut ending: Ending,
    ) where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let lanes = Arc::new(Semaphore::new(self.side_by_side));
        let marks = Arc::new(Mutex::new(Marks::default()));
        let mut at_work = JoinSet::new();
        loop {
            while at_work.try_join_next().is_some() {}
            // The next message begins when a lane is free: with one lane, when the one before it is
            // answered.
            let next = async {
                let lane = Arc::clone(&lanes).acquire_owned().await.ok()?;
                Some((lane, messages.recv().await?))
            };
            let (lane, (delivery, place)) = tokio::select! {
                biased;
                () = ending.comes() => break,
                next = next => match next {
                    Some(next) => next,
                    None => break,
                },
            };
            let begun =
                marks.lock().unwrap_or_else(PoisonError::into_inner).begin(delivery.offset());
            let (desk, handler, marks, ending) =
                (Arc::clone(&self), Arc::clone(&handler), Arc::clone(&marks), ending.clone());
            at_work.spawn(async move {
                if desk.see_to(&delivery, &*handler, ending).await {
                    desk.move_on(&delivery, begun, &marks);
                }
                drop((lane, place));
            });
        }
        while at_work.join_next().await.is_some() {}
    }

    /// Runs the handler until there is an answer for good, and says whether the offset may move on.
    /// A message whose partition is taken away, and one that waits when the listener stops, stay
    /// unanswered: whoever has the partition next gets them.
    async fn see_to<H, Fut>(&self, delivery: &Delivery, handler: &H, mut ending: Ending) -> bool
    where
        H: Fn(Delivery) -> Fut,
        Fut: Future<Output = Result<Verdict, Poison>>,
    {
        let (mut runs, mut looks) = (0_u32, 0_u32);
        let verdict = loop {
            if ending.is_here() {
                return false;
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
            let Verdict::Nack { after, why, .. } = verdict else { break verdict };
            looks = looks.saturating_add(1);
            let pause = match why {
                // An answer without a pause, as a handler of its own may give, must not become a
                // hot loop.
                Reason::InFlight => after.max(self.backoff.after(1)),
                // Nothing ran, so the message keeps its attempts. What ran and came to nothing,
                // also because its lease was lost, spends one.
                Reason::Store => self.backoff.after(looks).max(after),
                _ => {
                    runs += 1;
                    if runs >= self.attempts {
                        break verdict.given_up();
                    }
                    self.backoff.after(runs).max(after)
                }
            };
            self.tally.count(&verdict);
            verdict.log("kafka", delivery.identity().as_ref());
            tokio::select! {
                () = sleep(pause) => {}
                () = ending.comes() => return false,
            }
        };
        if let Verdict::DeadLetter { why, .. } = verdict
            && !self.bury(delivery, why, &mut ending).await
        {
            return false;
        }
        self.tally.count(&verdict);
        verdict.log("kafka", delivery.identity().as_ref());
        !ending.is_gone()
    }

    /// Whether the letter was delivered. It is repeated until then, or until the partition is
    /// somebody else's, or the listener stops.
    async fn bury(&self, delivery: &Delivery, why: Reason, ending: &mut Ending) -> bool {
        let mut failures = 0;
        while let Err(error) = self.grave.bury(delivery, why).await {
            failures += 1;
            let pause: Duration = self.backoff.after(failures);
            tracing::error!(delivery = ?delivery, %error, ?pause, "dead letter not sent, its message stays");
            tokio::select! {
                () = sleep(pause) => {}
                () = ending.comes() => return false,
            }
        }
        true
    }

    /// The offset goes past what is done; librdkafka commits it soon, and before the partition is
    /// given away.
    fn move_on(&self, delivery: &Delivery, begun: Begun, marks: &Mutex<Marks>) {
        let message = delivery.message();
        // Stored under the lock: a mark that is lower must not come later.
        let mut marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mark) = marks.done(begun) else { return };
        let stored = || -> KafkaResult<()> {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(message.topic(), message.partition(), Offset::Offset(mark))?;
            self.consumer.store_offsets(&list)
        };
        if let Err(error) = stored() {
            tracing::debug!(delivery = ?delivery, %error, "offset not stored, the partition is \
                 somebody else's");
        }
    }
}
