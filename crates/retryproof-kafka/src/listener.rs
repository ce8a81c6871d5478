// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KafkaListener`]: handles the messages of a consumer group's member.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use retryproof_core::listener::{Poison, Verdict, VerdictCounters};
use retryproof_core::{IntoScope, Result};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::config::KafkaListenerBuilder;
use crate::delivery::Delivery;
use crate::error::client_failed;
use crate::handle::HandlerContext;
use crate::receive::PartitionQueues;
use crate::receive::assignment::PartitionStop;

/// Handles the messages of some topics as a member of a consumer group.
pub struct KafkaListener {
    pub(crate) context: Arc<HandlerContext>,
    pub(crate) topics: Vec<String>,
    pub(crate) partition_prefetch: usize,
    pub(crate) drain_timeout: Duration,
}

impl fmt::Debug for KafkaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaListener")
            .field("scope", &self.context.scope)
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

impl KafkaListener {
    /// Starts with the client's settings (`bootstrap.servers`, `group.id` and whatever else
    /// librdkafka takes), the topics, and the scope of the messages' records. Name the scope after
    /// the work, not after the group.
    pub fn builder(
        client: ClientConfig,
        topics: &[&str],
        scope: impl IntoScope,
    ) -> KafkaListenerBuilder {
        KafkaListenerBuilder::new(client, topics, scope)
    }

    /// Counts verdicts by reason. A message that waits, for another owner or for its next attempt,
    /// counts as a nack each time, although Kafka receives no answer then.
    #[must_use]
    pub fn counters(&self) -> Arc<VerdictCounters> {
        Arc::clone(&self.context.counters)
    }

    /// Handles messages until `shutdown` resolves, over rebalances and outages. Then begins no new
    /// handler, waits for those that run, commits, and drops handlers that run longer than
    /// [`drain_timeout`](KafkaListenerBuilder::drain_timeout): their leases run out, and their messages are
    /// delivered again. So are messages that were read and not begun, and those that wait for
    /// another owner or for their next attempt.
    ///
    /// The handler returns a verdict on its message; a panic counts as a failed attempt. It runs
    /// again, after a pause, while the message is in flight elsewhere, and while it fails with
    /// attempts left.
    ///
    /// # Errors
    /// When librdkafka reports that the client cannot continue (`Fatal`).
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config), before the first message, when the
    /// brokers report that the dead-letter topic does not exist; brokers that create topics on
    /// demand create it.
    ///
    /// # Cancel safety
    /// Dropping the future drops the running handlers: their leases run out, and the messages are
    /// delivered to the next owner of their partition.
    pub async fn run<H, Fut>(&self, handler: H, shutdown: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let mut shutdown = pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            found = self.context.dead_letters.find() => found?,
        }
        let handler = Arc::new(handler);
        let consumer = &self.context.consumer;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| client_failed(error, "subscribe"))?;
        let mut queues = PartitionQueues::new(consumer, self.partition_prefetch);
        let mut partitions = JoinSet::new();
        let (stop, stopping) = watch::channel(false);
        let ended = loop {
            while partitions.try_join_next().is_some() {}
            let received = tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                received = queues.receive() => received,
            };
            let message = match received {
                Ok(message) => message,
                Err(error) => break Err(error),
            };
            let delivery =
                Delivery::new(message, self.context.scope.clone(), &*self.context.key_of);
            queues.push(delivery, |messages, revoked| {
                let (context, handler) = (Arc::clone(&self.context), Arc::clone(&handler));
                let stop = PartitionStop { revoked, stopping: stopping.clone() };
                partitions.spawn(context.handle_partition(messages, handler, stop));
            });
        };
        stop.send_replace(true);
        drop(queues);
        self.drain(partitions).await;
        self.commit().await;
        consumer.unsubscribe();
        ended
    }

    async fn drain(&self, mut partitions: JoinSet<()>) {
        let finished = async { while partitions.join_next().await.is_some() {} };
        if timeout(self.drain_timeout, finished).await.is_err() {
            tracing::warn!(
                partitions = partitions.len(),
                "handlers dropped: they ran longer than the drain timeout"
            );
        }
        partitions.shutdown().await;
    }

    async fn commit(&self) {
        let context = Arc::clone(&self.context);
        let committed =
            spawn_blocking(move || context.consumer.commit_consumer_state(CommitMode::Sync)).await;
        if let Ok(Err(error)) = committed
            && error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoOffset)
        {
            tracing::warn!(%error, "offsets not committed; the next owner receives their messages \
                 again and skips them");
        }
    }
}
