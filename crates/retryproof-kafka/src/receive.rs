// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PartitionQueues`]: receives messages and queues them by partition, up to a bound.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::OwnedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use retryproof_core::Result;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::delivery::Delivery;
use crate::error::client_failed;
use assignment::{GroupConsumer, PartitionId};

pub(crate) mod assignment;

/// How often paused partitions are checked while no message arrives.
const RESUME_INTERVAL: Duration = Duration::from_millis(100);

/// A message that waits for its handler. Its guard is dropped when the work on the message ends.
pub(crate) type QueuedMessage = (Delivery, UnansweredGuard);

/// Queues received messages by partition. The first message of a partition creates its queue.
pub(crate) struct PartitionQueues<'a> {
    consumer: &'a GroupConsumer,
    /// How many unanswered messages of one partition the listener can hold.
    prefetch: usize,
    queues: HashMap<PartitionId, PartitionQueue>,
}

struct PartitionQueue {
    messages: mpsc::UnboundedSender<QueuedMessage>,
    unanswered: UnansweredCount,
    /// Whether the listener has paused the partition in the client.
    paused: bool,
    revoked: watch::Receiver<bool>,
}

impl<'a> PartitionQueues<'a> {
    pub(crate) fn new(consumer: &'a GroupConsumer, prefetch: usize) -> Self {
        Self { consumer, prefetch, queues: HashMap::new() }
    }

    /// Receives the next message of any partition. The listener must keep calling this method, even
    /// while no handler is free, because the group removes a member that stops polling.
    ///
    /// # Errors
    /// Fails if librdkafka reports that the client cannot continue (`Fatal`).
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub(crate) async fn receive(&mut self) -> Result<OwnedMessage> {
        loop {
            self.forget_revoked();
            self.resume_drained();
            let received = tokio::select! {
                biased;
                received = self.consumer.recv() => received.map(|message| message.detach()),
                () = sleep(RESUME_INTERVAL) => continue,
            };
            match received {
                Ok(message) => return Ok(message),
                Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) => {
                    return Err(client_failed(error, "receive"));
                }
                Err(error) => {
                    tracing::warn!(%error, "no messages could be received; librdkafka keeps \
                                            trying");
                }
            }
        }
    }

    /// Queues a message. For the first message of a partition, calls `start`, which begins the work
    /// on the partition's queue. Pauses the partition when its unanswered messages reach
    /// `prefetch`.
    pub(crate) fn push(
        &mut self,
        delivery: Delivery,
        start: impl FnOnce(mpsc::UnboundedReceiver<QueuedMessage>, watch::Receiver<bool>),
    ) {
        // Remove revoked queues first, because after a rebalance, an existing queue can belong to
        // an earlier assignment.
        self.forget_revoked();
        let id = (delivery.topic().to_owned(), delivery.partition());
        let queue = self.queues.entry(id.clone()).or_insert_with_key(|id| {
            let revoked = self.consumer.context().assignment.begin(id);
            let (messages, queued) = mpsc::unbounded_channel();
            start(queued, revoked.clone());
            let unanswered = UnansweredCount::default();
            PartitionQueue { messages, unanswered, paused: false, revoked }
        });
        // Ignore any error: sending fails only if the partition was revoked, and its next owner
        // then receives the message.
        let _ = queue.messages.send((delivery, queue.unanswered.guard()));
        if queue.unanswered.count() >= self.prefetch && !queue.paused {
            queue.paused = self.consumer.pause(&partition_list(&id)).is_ok();
        }
    }

    fn forget_revoked(&mut self) {
        self.queues.retain(|_, queue| !*queue.revoked.borrow());
    }

    /// Resumes each paused partition whose unanswered messages have fallen to half of `prefetch`.
    fn resume_drained(&mut self) {
        let drained = |queue: &PartitionQueue| queue.unanswered.count() <= self.prefetch / 2;
        for (id, queue) in self.queues.iter_mut().filter(|(_, q)| q.paused && drained(q)) {
            queue.paused = self.consumer.resume(&partition_list(id)).is_err();
        }
    }
}

fn partition_list((topic, partition): &PartitionId) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, *partition);
    list
}

/// Counts the messages of a partition that were received but not yet answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnansweredCount(Arc<AtomicUsize>);

/// Counts one message as unanswered until the guard is dropped.
#[derive(Debug)]
pub(crate) struct UnansweredGuard(UnansweredCount);

impl UnansweredCount {
    fn guard(&self) -> UnansweredGuard {
        self.0.fetch_add(1, Ordering::SeqCst);
        UnansweredGuard(self.clone())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for UnansweredGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
