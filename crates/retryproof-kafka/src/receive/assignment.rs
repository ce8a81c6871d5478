// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Assignment`]: the partitions that the group has assigned to this member. The group can revoke
//! them at any time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::watch;

/// The topic and the number of a partition.
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

    /// Whether the partition was revoked or the listener is stopping. If so, no new handler begins.
    pub(crate) fn is_requested(&self) -> bool {
        self.is_revoked() || *self.stopping.borrow()
    }

    /// Resolves when a stop is requested, or when the sender of one of the two signals is dropped.
    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.revoked.wait_for(|revoked| *revoked) => {}
            _ = self.stopping.wait_for(|stopping| *stopping) => {}
        }
    }
}

/// The partitions with work in progress. Each has a channel that reports its revocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignment(Arc<Mutex<HashMap<PartitionId, watch::Sender<bool>>>>);

impl Assignment {
    /// Registers a partition whose work begins, and returns the channel that reports the
    /// partition's revocation.
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
        // Resume the assigned partitions. Otherwise, a partition that was revoked while it was
        // paused would still be paused.
        if let Rebalance::Assign(partitions) = rebalance
            && let Err(error) = consumer.resume(partitions)
        {
            tracing::debug!(%error, "partitions not resumed");
        }
    }

    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            // librdkafka commits the stored offsets before the partitions move. Running handlers
            // continue, and the partition's next owner finds their records in the store.
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
