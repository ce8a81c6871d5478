// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KafkaListener`]: handles messages as a member of a consumer group.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::{ClientConfig, FromClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::FutureProducer;
use retryproof_core::listener::{MessageSettings, Poison, Verdict, VerdictCounters, drain};
use retryproof_core::{IntoScope, Result};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};

use crate::config::{KafkaListenerBuilder, producer_settings};
use crate::dead_letter::DeadLetterTopic;
use crate::delivery::{Delivery, KeyOf};
use crate::error::{client_failed, invalid_client_setting};
use crate::handle::HandlerContext;
use crate::receive::PartitionQueues;
use crate::receive::assignment::{GroupCallbacks, GroupConsumer, PartitionStop};

/// Handles the messages of some topics as a member of a consumer group.
pub struct KafkaListener {
    context: Arc<HandlerContext>,
    topics: Vec<String>,
    key_of: Arc<KeyOf>,
    subject_of: Option<Arc<KeyOf>>,
    messages: Arc<MessageSettings>,
    partition_prefetch: usize,
    drain_timeout: Duration,
}

impl fmt::Debug for KafkaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaListener")
            .field("scope", self.messages.scope())
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

impl KafkaListenerBuilder {
    /// Creates the clients: a consumer, and a producer for the dead letters. Both clients connect
    /// in the background.
    ///
    /// The listener overrides `enable.auto.offset.store` and `enable.auto.commit` in the client's
    /// settings. It stores offsets when messages are answered. librdkafka commits stored offsets
    /// every `auto.commit.interval.ms` (1 s by default), before a partition is revoked, and when
    /// the listener ends. `auto.offset.reset` is `earliest` by default. LST-2 rules out
    /// librdkafka's own default: a new group, or a group with an expired offset, would skip all
    /// messages that are already in the topic.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config) if no key, no dead-letter topic,
    /// no topics or no `group.id` is set, if the listener also reads the dead-letter topic, if
    /// librdkafka rejects a setting, or if `build` is called outside a tokio runtime.
    /// [`ErrorKind::Invalid`](retryproof_core::ErrorKind::Invalid) for a scope or a duration out of
    /// range (ID-3, CTX-2).
    pub fn build(self) -> Result<KafkaListener> {
        let settings = self.check()?;
        let client = &settings.client;
        let consumer = GroupConsumer::from_config_and_context(client, GroupCallbacks::default())
            .map_err(invalid_client_setting)?;
        let producer = FutureProducer::from_config(&producer_settings(client))
            .map_err(invalid_client_setting)?;
        let context = HandlerContext {
            consumer,
            dead_letters: DeadLetterTopic { producer, topic: settings.dead_letters },
            rules: settings.rules,
            partition_concurrency: settings.partition_concurrency,
            counters: Arc::new(VerdictCounters::default()),
        };
        Ok(KafkaListener {
            context: Arc::new(context),
            topics: settings.topics,
            key_of: settings.key_of,
            subject_of: settings.subject_of,
            messages: settings.messages,
            partition_prefetch: settings.partition_prefetch,
            drain_timeout: settings.drain_timeout,
        })
    }
}

impl KafkaListener {
    /// Starts a builder with the client's settings (`bootstrap.servers`, `group.id` and any other
    /// setting of librdkafka), the topics, and the scope of the messages' records. Name the scope
    /// after the work, not after the group. List the topics by name: `build` refuses a pattern such
    /// as `^orders`, because it could also match the dead-letter topic.
    pub fn builder(
        client: ClientConfig,
        topics: &[&str],
        scope: impl IntoScope,
    ) -> KafkaListenerBuilder {
        KafkaListenerBuilder::new(client, topics, scope)
    }

    /// Returns the counters of the three kinds of verdict and of their reasons. Each pause before
    /// the handler runs again counts as a nack, although Kafka receives no answer.
    #[must_use]
    pub fn counters(&self) -> Arc<VerdictCounters> {
        Arc::clone(&self.context.counters)
    }

    /// Handles messages until `shutdown` resolves, and continues through rebalances and outages.
    /// The listener then starts no new handler, waits for the running handlers, and commits the
    /// offsets. Handlers that run longer than
    /// [`drain_timeout`](KafkaListenerBuilder::drain_timeout) are dropped: their leases run out,
    /// and their messages are delivered again. Messages that are waiting for their first or next
    /// run are also delivered again.
    ///
    /// The handler returns a verdict on its message;
    /// [`guarded`](retryproof_core::listener::guarded) returns the usual verdict. A panic counts as
    /// a failed attempt. If the message is in flight elsewhere, or fails and has attempts left, the
    /// handler runs again after a pause.
    ///
    /// # Errors
    /// Fails if librdkafka reports that the client cannot continue (`Fatal`). Fails with
    /// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config), before the first message, if the
    /// brokers report that the dead-letter topic does not exist. Brokers that create topics on
    /// demand create the topic at this point.
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
            let delivery = Delivery::new(
                message,
                Arc::clone(&self.messages),
                &*self.key_of,
                self.subject_of.as_deref(),
            );
            queues.push(delivery, |messages, revoked| {
                let (context, handler) = (Arc::clone(&self.context), Arc::clone(&handler));
                let stop = PartitionStop { revoked, stopping: stopping.clone() };
                partitions.spawn(context.handle_partition(messages, handler, stop));
            });
        };
        stop.send_replace(true);
        drop(queues);
        let left = drain(&mut partitions, self.drain_timeout).await;
        if left > 0 {
            tracing::warn!(
                partitions = left,
                "handlers dropped: they were still running after the drain timeout"
            );
        }
        self.commit().await;
        consumer.unsubscribe();
        ended
    }

    async fn commit(&self) {
        let context = Arc::clone(&self.context);
        let committed =
            spawn_blocking(move || context.consumer.commit_consumer_state(CommitMode::Sync)).await;
        if let Ok(Err(error)) = committed
            && error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoOffset)
        {
            tracing::warn!(%error, "offsets not committed; the partitions' next owner receives the \
                                    messages again and skips those that are done");
        }
    }
}
