// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mock cluster for each test, with a topic, a dead-letter topic, and listeners of one group.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, StreamConsumer};
use rdkafka::message::{Header, Headers, OwnedHeaders, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::util::Timeout;
use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::{Backoff, Poison, Verdict};
use retryproof_kafka::{Delivery, KafkaListener, KafkaListenerBuilder};
use retryproof_memory::MemoryStore;
use retryproof_testkit::broker::{self, Gate, Running, counted, gated};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

pub(crate) use broker::{PATIENCE, until};

use crate::unreadable;

/// How often the clients commit.
pub(crate) const COMMITS_EVERY: Duration = Duration::from_millis(50);
pub(crate) const SCOPE: &str = "orders.paid";
pub(crate) const TOPIC: &str = "orders";
pub(crate) const DEAD: &str = "orders.dead";

/// librdkafka's mock cluster: one broker in this process.
pub(crate) struct Mock {
    pub(crate) cluster: MockCluster<'static, DefaultProducerContext>,
    producer: FutureProducer,
    pub(crate) engine: IdempotencyEngine,
}

impl Mock {
    pub(crate) fn new(partitions: i32) -> Self {
        Self::with(partitions, IdempotencyEngine::new(MemoryStore::new()))
    }

    pub(crate) fn with(partitions: i32, engine: IdempotencyEngine) -> Self {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic(TOPIC, partitions, 1).expect("a topic");
        cluster.create_topic(DEAD, 1, 1).expect("a topic");
        let mut sender = ClientConfig::new();
        sender
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("message.max.bytes", "4000000");
        let producer = sender.create();
        Self { producer: producer.expect("a producer"), cluster, engine }
    }

    /// Returns client settings without `auto.offset.reset`, so that a new group starts with the
    /// first message.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "invoices")
            .set("auto.commit.interval.ms", COMMITS_EVERY.as_millis().to_string())
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "200")
            .set("reconnect.backoff.max.ms", "500")
            .set_log_level(RDKafkaLogLevel::Critical);
        client
    }

    /// Creates a builder for a listener with a short back-off.
    pub(crate) fn listener(&self) -> KafkaListenerBuilder {
        self.listener_of(self.client())
    }

    pub(crate) fn listener_of(&self, client: ClientConfig) -> KafkaListenerBuilder {
        let soon = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
        KafkaListener::builder(client, &[TOPIC], SCOPE)
            .key_header("event-id")
            .dead_letters(DEAD)
            .backoff(soon)
    }

    pub(crate) async fn publish(&self, partition: i32, key: &str, body: &str) {
        let id = Header { key: "event-id", value: Some(key) };
        self.publish_with(partition, OwnedHeaders::new().insert(id), body).await;
    }

    pub(crate) async fn publish_with(&self, partition: i32, headers: OwnedHeaders, body: &str) {
        let record = FutureRecord::<str, str>::to(TOPIC)
            .partition(partition)
            .headers(headers)
            .payload(body)
            .key("alice");
        self.producer.send(record, Timeout::Never).await.expect("stored");
    }

    /// Publishes a message with one header of this name, which need not be valid text. No client
    /// would send such a name, so the request is written byte by byte.
    pub(crate) async fn publish_named(&self, header: &'static [u8]) {
        let broker = self.cluster.bootstrap_servers();
        let sent = spawn_blocking(move || unreadable::produce(&broker, header));
        sent.await.expect("sent").expect("stored");
    }

    /// Returns the group's committed offset.
    pub(crate) async fn committed(&self, partition: i32) -> Option<i64> {
        let client = self.client();
        let looked_up = spawn_blocking(move || {
            let client: BaseConsumer = client.create().expect("a client");
            let mut list = TopicPartitionList::new();
            list.add_partition(TOPIC, partition);
            let offsets = client.committed_offsets(list, Duration::from_secs(20)).ok()?;
            match offsets.find_partition(TOPIC, partition)?.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            }
        });
        looked_up.await.expect("answered")
    }

    pub(crate) async fn until_committed(&self, partition: i32, offset: i64) {
        let there = async {
            while self.committed(partition).await != Some(offset) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, there).await.expect("committed");
    }

    /// Reads the first `count` dead letters.
    pub(crate) async fn letters(&self, count: usize) -> Vec<OwnedMessage> {
        let mut client = self.client();
        let reader: StreamConsumer = client.set("group.id", "reader").create().expect("a client");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(DEAD, 0, Offset::Beginning).expect("a partition");
        reader.assign(&list).expect("assigned");
        let mut letters = Vec::new();
        while letters.len() < count {
            let letter =
                timeout(PATIENCE, reader.recv()).await.expect("a letter").expect("no error");
            letters.push(letter.detach());
        }
        letters
    }

    /// Returns how many dead letters there are.
    pub(crate) async fn dead_letter_count(&self) -> i64 {
        let client = self.client();
        let looked_up = spawn_blocking(move || {
            let client: BaseConsumer = client.create().expect("a client");
            client.fetch_watermarks(DEAD, 0, Duration::from_secs(20)).expect("answered").1
        });
        looked_up.await.expect("answered")
    }
}

pub(crate) fn start<H, Fut>(listener: KafkaListener, handler: H) -> Running
where
    H: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
{
    Running::start(|stop| async move { listener.run(handler, stop).await })
}

type Handled = Pin<Box<dyn Future<Output = Result<Verdict, Poison>> + Send>>;

/// Handles messages through the engine, with an action that only counts its runs.
pub(crate) fn counting(
    mock: &Mock,
    runs: &Arc<AtomicUsize>,
) -> impl Fn(Delivery) -> Handled + Send + Sync + 'static {
    let (engine, runs) = (mock.engine.clone(), Arc::clone(runs));
    move |delivery: Delivery| {
        let (engine, runs) = (engine.clone(), Arc::clone(&runs));
        Box::pin(async move { Ok(counted(&engine, delivery.context()?, &runs).await) })
    }
}

/// Handles messages through the engine, with an action that waits at the gate.
pub(crate) fn waiting(
    mock: &Mock,
    gate: &Arc<Gate>,
) -> impl Fn(Delivery) -> Handled + Send + Sync + 'static {
    let (engine, gate) = (mock.engine.clone(), Arc::clone(gate));
    move |delivery: Delivery| {
        let (engine, gate) = (engine.clone(), Arc::clone(&gate));
        Box::pin(async move { Ok(gated(&engine, delivery.context()?, &gate).await) })
    }
}

pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let found = message.headers()?.iter().find(|header| header.key == name)?;
    Some(String::from_utf8_lossy(found.value?).into_owned())
}
