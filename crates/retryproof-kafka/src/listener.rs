// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KafkaListener`]: a member of a consumer group that has each message answered.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use retryproof_core::listener::{Poison, Tally, Verdict};
use retryproof_core::{Error, ErrorKind, IntoScope, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::config::KafkaListenerBuilder;
use crate::delivery::Delivery;
use crate::handle::{Ahead, Desk, Taken};
use crate::receive::assignment::{At, Ending};

/// How often partitions that are held up are looked after while no message comes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Handles the messages of some topics as a member of a consumer group.
pub struct KafkaListener {
    pub(crate) desk: Arc<Desk>,
    pub(crate) topics: Vec<String>,
    pub(crate) ahead: usize,
    pub(crate) drain: Duration,
}

/// A partition being worked on.
struct Lane {
    messages: mpsc::UnboundedSender<Taken>,
    ahead: Ahead,
    /// Whether the client reads no more of it for now.
    paused: bool,
    gone: watch::Receiver<bool>,
}

impl fmt::Debug for KafkaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaListener")
            .field("scope", &self.desk.scope)
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

impl KafkaListener {
    /// Starts with the client's settings (`bootstrap.servers`, `group.id` and what else librdkafka
    /// takes), the topics, and the scope under which the messages have their records. Name the
    /// scope for what is done, not for the group.
    pub fn builder(
        client: ClientConfig,
        topics: &[&str],
        scope: impl IntoScope,
    ) -> KafkaListenerBuilder {
        KafkaListenerBuilder::new(client, topics, scope)
    }

    /// Counts what became of the messages, by reason. One that waits for another owner or for its
    /// next attempt is counted as a nack each time, although nothing is told to Kafka.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.desk.tally)
    }

    /// Handles messages until `stop` is ready, over rebalances and outages. Then begins no handler
    /// any more, waits for those at work, commits, and drops what takes longer than
    /// [`drain`](KafkaListenerBuilder::drain): those leases run out, and their messages come again.
    /// So do messages that were read and not begun, and those that wait, for another owner or for
    /// their next attempt.
    ///
    /// The handler says what became of a message; a panic of it counts as a failure. It is called
    /// again, after a pause, while the message is in flight elsewhere, and while it fails and has
    /// attempts left.
    ///
    /// # Errors
    /// When the client cannot go on, as librdkafka says (`Fatal`). [`ErrorKind::Config`] where
    /// brokers say that there is no topic for the dead letters, before the first message; brokers
    /// that make topics by themselves make it.
    ///
    /// # Cancel safety
    /// Dropped, it drops the handlers in the middle: leases run out, and messages come again to the
    /// next owner of their partition.
    pub async fn run<H, Fut>(&self, handler: H, stop: impl Future<Output = ()>) -> Result<()>
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let mut stop = pin!(stop);
        tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            found = self.desk.grave.find() => found?,
        }
        let handler = Arc::new(handler);
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        self.desk.consumer.subscribe(&topics).map_err(|error| cannot_go_on(error, "subscribe"))?;
        let mut lanes: HashMap<At, Lane> = HashMap::new();
        let mut at_work = JoinSet::new();
        let (stopping, stopped) = watch::channel(false);
        let ended = loop {
            while at_work.try_join_next().is_some() {}
            lanes.retain(|_, lane| !*lane.gone.borrow());
            self.resume(&mut lanes);
            // Asked all the while, whatever the handlers do: a member that does not ask is put out
            // of its group.
            let received = tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                received = self.desk.consumer.recv() => received.map(|message| message.detach()),
                () = sleep(LOOK_EVERY) => continue,
            };
            let message = match received {
                Ok(message) => message,
                Err(error) => match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::Fatal) => break Err(cannot_go_on(error, "receive")),
                    _ => {
                        // librdkafka connects again, and goes on, by itself.
                        tracing::warn!(%error, "no messages received, the client goes on");
                        continue;
                    }
                },
            };
            let at = (message.topic().to_owned(), message.partition());
            // A rebalance that was served on the way: what was ours is a lane of another owner.
            lanes.retain(|_, lane| !*lane.gone.borrow());
            let lane = lanes.entry(at).or_insert_with_key(|at| {
                let gone = self.desk.consumer.context().ours.begin(at);
                let (messages, queue) = mpsc::unbounded_channel();
                let ending = Ending { gone: gone.clone(), stopped: stopped.clone() };
                at_work.spawn(Arc::clone(&self.desk).work(queue, Arc::clone(&handler), ending));
                Lane { messages, ahead: Ahead::default(), paused: false, gone }
            });
            let delivery = Delivery::new(message, self.desk.scope.clone(), &*self.desk.key_of);
            let at = (delivery.message().topic().to_owned(), delivery.message().partition());
            // A lane ends after its sender, or with its partition.
            let _ = lane.messages.send((delivery, lane.ahead.one_more()));
            if lane.ahead.count() >= self.ahead && !lane.paused {
                lane.paused = self.desk.consumer.pause(&only(&at)).is_ok();
            }
        };
        stopping.send_replace(true);
        drop(lanes);
        let all = async { while at_work.join_next().await.is_some() {} };
        if timeout(self.drain, all).await.is_err() {
            tracing::warn!(
                partitions = at_work.len(),
                "handlers dropped, they took longer than the drain time"
            );
        }
        at_work.shutdown().await;
        let desk = Arc::clone(&self.desk);
        let committed =
            spawn_blocking(move || desk.consumer.commit_consumer_state(CommitMode::Sync)).await;
        if let Ok(Err(error)) = committed
            && error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoOffset)
        {
            tracing::warn!(%error, "offsets not committed, the next owner gets their messages \
                 again and runs nothing");
        }
        self.desk.consumer.unsubscribe();
        ended
    }

    /// Has the client read on where half of what was read ahead is answered.
    fn resume(&self, lanes: &mut HashMap<At, Lane>) {
        for (at, lane) in
            lanes.iter_mut().filter(|(_, lane)| lane.paused && lane.ahead.count() <= self.ahead / 2)
        {
            lane.paused = self.desk.consumer.resume(&only(at)).is_err();
        }
    }
}

fn only((topic, partition): &At) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, *partition);
    list
}

fn cannot_go_on(error: KafkaError, during: &'static str) -> Error {
    Error::new(ErrorKind::Unexpected, "the Kafka client cannot go on").during(during).because(error)
}
