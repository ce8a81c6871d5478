// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream, a consumer and a stream of dead letters for each test, and the answers on the wire.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Info, PullConsumer, pull};
use async_nats::jetstream::stream::{Config as StreamConfig, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, HeaderMap, Subscriber};
use futures_util::StreamExt;
use retryproof_core::IdempotencyEngine;
use retryproof_core::listener::{Backoff, Poison, Verdict};
use retryproof_memory::MemoryStore;
use retryproof_nats::{Delivery, NatsListener, NatsListenerBuilder};
use retryproof_testkit::broker::{self, Gate, Running, counted, gated};
use tokio::time::{sleep, timeout};

pub(crate) use broker::{PATIENCE, until};

pub(crate) const SCOPE: &str = "orders.paid";
/// The header with the key in most tests: they publish duplicates, and a stream drops a second message
/// with the same `Nats-Msg-Id`.
const KEY: &str = "Event-Id";

/// Returns the URL of the server that `cargo xtask services up nats` has started.
pub(crate) fn url() -> String {
    broker::service(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "RETRYPROOF_TEST_NATS")
        .expect("no nats for this test: run `cargo xtask services up nats`")
}

/// The streams of one test; [`leave`](Self::leave) deletes them.
pub(crate) struct TestStreams {
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) jetstream: Context,
    pub(crate) engine: IdempotencyEngine,
    storage: StorageType,
}

impl TestStreams {
    pub(crate) async fn new() -> Self {
        Self::with(IdempotencyEngine::new(MemoryStore::new())).await
    }

    pub(crate) async fn with(engine: IdempotencyEngine) -> Self {
        Self::at(&url(), engine, StorageType::Memory).await
    }

    /// Creates the streams on the server at `url`; with file storage, they survive a restart of the
    /// server.
    pub(crate) async fn at(url: &str, engine: IdempotencyEngine, storage: StorageType) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let client = async_nats::connect(url).await.expect("a nats-server");
        let jetstream = jetstream::new(client.clone());
        let streams = Self { name, client, jetstream, engine, storage };
        streams.stream(&streams.name, &format!("{}.>", streams.name)).await;
        streams.stream(&streams.dead_stream(), &streams.dead()).await;
        streams
    }

    async fn stream(&self, name: &str, subject: &str) {
        let config = StreamConfig {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            storage: self.storage,
            ..StreamConfig::default()
        };
        self.jetstream.create_stream(config).await.expect("a stream");
    }

    pub(crate) fn subject(&self) -> String {
        format!("{}.orders", self.name)
    }

    /// Returns the name of the stream of the dead letters.
    pub(crate) fn dead_stream(&self) -> String {
        format!("dead-{}", self.name)
    }

    /// Returns the subject of the dead letters.
    pub(crate) fn dead(&self) -> String {
        format!("dead.{}", self.name)
    }

    pub(crate) async fn restore_dead_stream(&self) {
        self.stream(&self.dead_stream(), &self.dead()).await;
    }

    /// Deletes the stream and creates it again.
    pub(crate) async fn recreate(&self) {
        self.jetstream.delete_stream(&self.name).await.expect("removed");
        self.stream(&self.name, &format!("{}.>", self.name)).await;
    }

    /// Limits the size of dead letters from now on.
    pub(crate) async fn limit_dead_stream(&self, bytes: i32) {
        let mut stream = self.jetstream.get_stream(self.dead_stream()).await.expect("the stream");
        let config = stream.info().await.expect("answered").config.clone();
        let config = StreamConfig { max_message_size: bytes, ..config };
        self.jetstream.update_stream(config).await.expect("limited");
    }

    pub(crate) async fn consumer(&self, config: pull::Config) -> PullConsumer {
        self.consumer_over(&self.jetstream, config).await
    }

    /// Returns the consumer of this test with the settings `config`, over the connection of
    /// `jetstream`.
    pub(crate) async fn consumer_over(
        &self,
        jetstream: &Context,
        config: pull::Config,
    ) -> PullConsumer {
        let config = pull::Config { durable_name: Some("invoices".into()), ..config };
        jetstream.create_consumer_on_stream(config, self.name.clone()).await.expect("a consumer")
    }

    /// Returns a builder for a listener with a short back-off.
    pub(crate) async fn listener(&self, config: pull::Config) -> NatsListenerBuilder {
        let consumer = self.consumer(config).await;
        self.builder(self.jetstream.clone(), consumer)
    }

    pub(crate) fn builder(
        &self,
        jetstream: Context,
        consumer: PullConsumer,
    ) -> NatsListenerBuilder {
        let soon = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
        NatsListener::builder(jetstream, consumer, SCOPE)
            .dead_letters(self.dead())
            .key(|message| Some(message.headers.as_ref()?.get(KEY)?.as_str().to_owned()))
            .backoff(soon)
            .fetch_timeout(Duration::from_millis(300))
    }

    pub(crate) async fn publish(&self, key: &str, body: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(KEY, key);
        self.publish_with(headers, body).await;
    }

    pub(crate) async fn publish_with(&self, headers: HeaderMap, body: &str) {
        let sent = self
            .jetstream
            .publish_with_headers(self.subject(), headers, body.to_owned().into())
            .await;
        sent.expect("sent").await.expect("stored");
    }

    /// Returns the consumer's state, as the server reports it.
    pub(crate) async fn info(&self) -> Info {
        let stream = self.jetstream.get_stream(&self.name).await.expect("the stream");
        let consumer: PullConsumer = stream.get_consumer("invoices").await.expect("the consumer");
        consumer.cached_info().clone()
    }

    /// Waits until every message has been delivered and has its final answer.
    pub(crate) async fn until_done(&self) {
        let done = async {
            loop {
                let info = self.info().await;
                if info.num_pending == 0 && info.num_ack_pending == 0 {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, done).await.expect("all messages answered");
    }

    /// Returns the headers and the body of each dead letter so far.
    pub(crate) async fn letters(&self) -> Vec<(HeaderMap, String)> {
        // A reader without acknowledgements leaves the messages in the stream. (A message that is read
        // by its sequence number shows only one value of each header.)
        let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let reader = self
            .jetstream
            .create_consumer_on_stream(config, self.dead_stream())
            .await
            .expect("a reader");
        let mut letters =
            reader.fetch().max_messages(1_000).messages().await.expect("the dead letters");
        let mut read = Vec::new();
        while let Some(letter) = letters.next().await {
            let letter = letter.expect("a letter").message;
            read.push((
                letter.headers.unwrap_or_default(),
                String::from_utf8_lossy(&letter.payload).into_owned(),
            ));
        }
        let name = reader.cached_info().name.clone();
        self.jetstream
            .delete_consumer_from_stream(name, self.dead_stream())
            .await
            .expect("removed");
        read
    }

    pub(crate) async fn until_letters(&self, count: usize) -> Vec<(HeaderMap, String)> {
        let there = async {
            loop {
                let letters = self.letters().await;
                if letters.len() >= count {
                    return letters;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, there).await.expect("the dead letters")
    }

    /// Collects the answers to the consumer's messages from now on.
    pub(crate) async fn wire(&self) -> Wire {
        let subject = format!("$JS.ACK.{}.invoices.>", self.name);
        let answers = self.client.subscribe(subject).await.expect("subscribed");
        self.client.flush().await.expect("flushed");
        Wire(answers)
    }

    pub(crate) async fn leave(self) {
        self.jetstream.delete_stream(&self.name).await.expect("removed");
        self.jetstream.delete_stream(self.dead_stream()).await.expect("removed");
    }
}

/// The answers that the test intercepts on their way to the server.
pub(crate) struct Wire(Subscriber);

impl Wire {
    pub(crate) async fn next(&mut self) -> String {
        let next = timeout(PATIENCE, self.0.next()).await.expect("an answer").expect("subscribed");
        String::from_utf8_lossy(&next.payload).into_owned()
    }

    /// Returns the next answer that is not `+WPI`.
    pub(crate) async fn answer(&mut self) -> String {
        loop {
            let next = self.next().await;
            if next != "+WPI" {
                return next;
            }
        }
    }
}

pub(crate) fn start<H, Fut>(listener: NatsListener, handler: H) -> Running
where
    H: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
{
    Running::start(|stop| async move { listener.run(handler, stop).await })
}

type Handled = Pin<Box<dyn Future<Output = Result<Verdict, Poison>> + Send>>;

/// Returns a handler that uses the engine of `streams`, with an action that only counts its runs.
pub(crate) fn counting(
    streams: &TestStreams,
    runs: &Arc<AtomicUsize>,
) -> impl Fn(Delivery) -> Handled + Send + Sync + 'static {
    let (engine, runs) = (streams.engine.clone(), Arc::clone(runs));
    move |delivery: Delivery| {
        let (engine, runs) = (engine.clone(), Arc::clone(&runs));
        Box::pin(async move { Ok(counted(&engine, delivery.context()?, &runs).await) })
    }
}

/// Returns a handler that uses the engine of `streams`, with an action that waits at the gate.
pub(crate) fn waiting(
    streams: &TestStreams,
    gate: &Arc<Gate>,
) -> impl Fn(Delivery) -> Handled + Send + Sync + 'static {
    let (engine, gate) = (streams.engine.clone(), Arc::clone(gate));
    move |delivery: Delivery| {
        let (engine, gate) = (engine.clone(), Arc::clone(&gate));
        Box::pin(async move { Ok(gated(&engine, delivery.context()?, &gate).await) })
    }
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.as_str())
}
