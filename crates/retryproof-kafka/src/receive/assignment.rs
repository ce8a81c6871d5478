// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Assignment`]: the partitions that the group has assigned to this member and can revoke at any
//! time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::watch;

/// The topic of a partition, and its number.
pub(crate) type PartitionId = (String, i32);

/// A consumer that reports rebalances to [`GroupCallbacks`].
pub(crate) type GroupConsumer = StreamConsumer<GroupCallbacks>;

/// Signals when the work on a partition has to stop, even if some of its messages are unanswered.
#[derive(Debug, Clone)]
pub(crate) struct PartitionStop {
    /// Whether the group has revoked the partition.
    pub(crate) revoked: watch::Receiver<bool>,
    /// Whether the listener is stopping.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl PartitionStop {
    pub(crate) fn is_revoked(&self) -> bool {
        *self.revoked.borrow()
    }

    /// Whether the partition was revoked or the listener is stopping, so that no new handler
    /// begins.
    pub(crate) fn is_requested(&self) -> bool {
        self.is_revoked() || *self.stopping.borrow()
    }

    /// Resolves when the stop is requested, or when a sender is dropped.
    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.revoked.wait_for(|revoked| *revoked) => {}
            _ = self.stopping.wait_for(|stopping| *stopping) => {}
        }
    }
}

/// The partitions with work in progress, each with a channel that reports its revocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignment(Arc<Mutex<HashMap<PartitionId, watch::Sender<bool>>>>);

impl Assignment {
    /// Registers a partition on which work begins, and returns the channel that reports its
    /// revocation.
    pub(crate) fn begin(&self, partition: &PartitionId) -> watch::Receiver<bool> {
        let (revoke, revoked) = watch::channel(false);
        self.lock().insert(partition.clone(), revoke);
        revoked
    }

    fn revoke(&self, partitions: &TopicPartitionList) {
        let mut assigned = self.lock();
        for partition in partitions.elements() {
            let id = (partition.topic().to_owned(), partition.partition());
            if let Some(revoke) = assigned.remove(&id) {
                revoke.send_replace(true);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PartitionId, watch::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The callbacks that librdkafka calls on a rebalance.
#[derive(Debug, Default)]
pub(crate) struct GroupCallbacks {
    pub(crate) assignment: Assignment,
}

impl ClientContext for GroupCallbacks {}

impl ConsumerContext for GroupCallbacks {
    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // Resume assigned partitions, because a partition may have been paused when it was revoked.
        if let Rebalance::Assign(partitions) = rebalance
            && let Err(error) = consumer.resume(partitions)
        {
            tracing::debug!(%error, "partitions not resumed");
        }
    }

    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            // librdkafka commits the stored offsets before the partitions move. Running handlers
            // continue, and the next owner finds their records.
            Rebalance::Revoke(partitions) => {
                tracing::info!(partitions = partitions.count(), "partitions revoked by the group");
                self.assignment.revoke(partitions);
            }
            Rebalance::Assign(partitions) => {
                tracing::info!(partitions = partitions.count(), "partitions assigned by the group");
            }
            Rebalance::Error(error) => {
                tracing::warn!(%error, "the group could not assign its partitions")
            }
        }
    }
}
