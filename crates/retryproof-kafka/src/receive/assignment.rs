// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which partitions are ours: given by the group, and taken away again at any time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::watch;

/// A partition's name.
pub(crate) type At = (String, i32);

/// When work on a partition is over before its messages are.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    /// The partition is somebody else's.
    pub(crate) gone: watch::Receiver<bool>,
    /// The listener stops.
    pub(crate) stopped: watch::Receiver<bool>,
}

impl Ending {
    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Whether nothing new is to begin.
    pub(crate) fn is_here(&self) -> bool {
        self.is_gone() || *self.stopped.borrow()
    }

    /// Waits for it. A sender that was dropped is an end as well.
    pub(crate) async fn comes(&mut self) {
        tokio::select! {
            _ = self.gone.wait_for(|gone| *gone) => {}
            _ = self.stopped.wait_for(|stopped| *stopped) => {}
        }
    }
}

/// The partitions that are being worked on, each with a switch that says when it is no longer ours.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ours(Arc<Mutex<HashMap<At, watch::Sender<bool>>>>);

impl Ours {
    /// A partition that work begins on.
    pub(crate) fn begin(&self, at: &At) -> watch::Receiver<bool> {
        let (gone, is_gone) = watch::channel(false);
        self.lock().insert(at.clone(), gone);
        is_gone
    }

    fn take_away(&self, partitions: &TopicPartitionList) {
        let mut ours = self.lock();
        for partition in partitions.elements() {
            if let Some(gone) = ours.remove(&(partition.topic().to_owned(), partition.partition()))
            {
                gone.send_replace(true);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<At, watch::Sender<bool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears of rebalances.
#[derive(Debug, Default)]
pub(crate) struct Member {
    pub(crate) ours: Ours,
}

impl ClientContext for Member {}

impl ConsumerContext for Member {
    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // A partition that was held up when it was taken away comes back as any other.
        if let Rebalance::Assign(partitions) = rebalance
            && let Err(error) = consumer.resume(partitions)
        {
            tracing::debug!(%error, "partitions not resumed");
        }
    }

    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            // What is stored by now is committed on the way out. What still runs goes on, and its
            // record is what the next owner of the partition finds.
            Rebalance::Revoke(partitions) => {
                tracing::info!(
                    partitions = partitions.count(),
                    "partitions taken away by the group"
                );
                self.ours.take_away(partitions);
            }
            Rebalance::Assign(partitions) => {
                tracing::info!(partitions = partitions.count(), "partitions given by the group");
            }
            Rebalance::Error(error) => {
                tracing::warn!(%error, "the group could not share out its partitions")
            }
        }
    }
}
