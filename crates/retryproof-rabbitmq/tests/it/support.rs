// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue for each test on the server of `cargo xtask services`, and a listener that runs beside
//! the test.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use retryproof_core::listener::{Poison, Reason, Verdict, VerdictCounters};
use retryproof_core::{IdempotencyEngine, OwnerId, Result};
use retryproof_rabbitmq::{Delivery, RabbitmqListener, RabbitmqListenerBuilder, Topology};
use retryproof_testkit::broker::{self, Gate, counted, gated};
use retryproof_testkit::wire::WireProxy;

pub(crate) use broker::{PATIENCE, eventually};

/// A text in keys and bodies. No output may show it (ID-4).
pub(crate) const CANARY: &str = "canary-4711";

/// Returns the URL of the broker that `cargo xtask services up` has started.
pub(crate) fn url() -> String {
    service("RETRYPROOF_TEST_RABBITMQ")
}

pub(crate) fn service(name: &str) -> String {
    broker::service(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), name).unwrap_or_else(|| {
        panic!("no {name} for this test: run `cargo xtask services up rabbitmq`")
    })
}

/// A work queue with its dead letters, and the test's own channel to both.
pub(crate) struct TestQueues {
    pub(crate) queue: String,
    pub(crate) channel: Channel,
    connection: Connection,
}

/// A dead letter, or another message of a queue.
pub(crate) struct Found {
    pub(crate) body: Vec<u8>,
    pub(crate) why: Option<String>,
    pub(crate) omitted: Option<String>,
    pub(crate) exchange: Option<String>,
    pub(crate) trace: Option<String>,
    pub(crate) failures: Option<i64>,
    pub(crate) properties: BasicProperties,
}

impl TestQueues {
    pub(crate) async fn new() -> Self {
        Self::new_at(&url()).await
    }

    /// Declares the queues at the broker at `url`, for tests that do not use the shared broker.
    pub(crate) async fn new_at(url: &str) -> Self {
        let queues = Self::again(url, &own_name()).await;
        Topology::new(&queues.queue).declare(url).await.expect("declared");
        queues
    }

    /// Connects to queues with a new name, but declares none of them.
    pub(crate) async fn bare() -> Self {
        Self::again(&url(), &own_name()).await
    }

    /// Opens another connection to the queues with this name.
    pub(crate) async fn again(url: &str, queue: &str) -> Self {
        let connection =
            Connection::connect(url, ConnectionProperties::default()).await.expect("connected");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        Self { queue: queue.to_owned(), channel, connection }
    }

    pub(crate) fn dead(&self) -> String {
        format!("{}.dead", self.queue)
    }

    pub(crate) fn wait(&self, seconds: u64) -> String {
        format!("{}.wait.{seconds}s", self.queue)
    }

    pub(crate) fn listener(&self) -> RabbitmqListenerBuilder {
        self.listener_at(&url())
    }

    /// Returns a builder for a listener that connects to the broker at `url`.
    pub(crate) fn listener_at(&self, url: &str) -> RabbitmqListenerBuilder {
        RabbitmqListener::builder(url, &self.queue, "rabbitmq.tests").dead_letters(self.dead())
    }

    /// Publishes `body` under the key, and waits until the broker confirms it.
    pub(crate) async fn publish(&self, key: &str, body: &str) {
        self.send(body.as_bytes(), BasicProperties::default().with_message_id(key.into())).await;
    }

    pub(crate) async fn send(&self, body: &[u8], properties: BasicProperties) {
        let options = BasicPublishOptions::default();
        let sent = self.channel.basic_publish(
            "".into(),
            self.queue.as_str().into(),
            options,
            body,
            properties,
        );
        let confirmed = sent.await.expect("sent").await.expect("confirmed");
        assert!(confirmed.is_ack(), "{confirmed:?}");
    }

    /// Returns how many messages of a queue wait for a consumer; zero if there is no such queue.
    pub(crate) async fn ready(&self, queue: &str) -> u32 {
        let channel = self.connection.create_channel().await.expect("a channel");
        let look = QueueDeclareOptions::default().passive();
        let found = channel.queue_declare(queue.into(), look, FieldTable::default()).await;
        let count = found.map_or(0, |queue| queue.message_count());
        let _ = channel.close(200, "done".into()).await;
        count
    }

    /// Waits for the next message of a queue, and returns it.
    pub(crate) async fn take(&self, queue: &str) -> Found {
        let mut found = None;
        eventually("a message comes", async || {
            found = self
                .channel
                .basic_get(queue.into(), BasicGetOptions { no_ack: true })
                .await
                .expect("answered");
            found.is_some()
        })
        .await;
        let delivery = found.expect("there is one").delivery;
        let header = |name: &str| match delivery.properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            _ => None,
        };
        let count = |name: &str| match delivery.properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongLongInt(count) => Some(*count),
            _ => None,
        };
        Found {
            failures: count("retryproof-failures"),
            why: header("retryproof-reason"),
            omitted: header("retryproof-omitted"),
            exchange: header("retryproof-exchange"),
            trace: header("trace"),
            body: delivery.data,
            properties: delivery.properties,
        }
    }

    /// Deletes all queues. The queues of a failed test are deleted with the server.
    pub(crate) async fn clean(self) {
        let waits = (0..18).map(|n| self.wait(1 << n));
        for queue in waits.chain([self.dead(), self.queue.clone()]) {
            let channel = self.connection.create_channel().await.expect("a channel");
            drop(channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await);
        }
        drop(self.connection.close(200, "done".into()).await);
    }
}

/// A unique queue name.
fn own_name() -> String {
    let id = OwnerId::new();
    id.as_bytes().iter().take(6).fold("test-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// Starts a proxy to the broker. Returns the proxy and the URL through the proxy.
pub(crate) async fn proxied() -> (Arc<WireProxy>, String) {
    let url = url();
    let (login, address) = url.rsplit_once('@').expect("user and server");
    let proxy = WireProxy::to(address.parse().expect("an address")).await.expect("a proxy");
    let through = format!("{login}@{}", proxy.addr());
    (Arc::new(proxy), through)
}

/// A listener that runs in a task, and its counters.
pub(crate) struct Running {
    pub(crate) counters: Arc<VerdictCounters>,
    running: broker::Running,
}

impl Running {
    pub(crate) fn handling<H, Fut>(listener: RabbitmqListener, handler: H) -> Self
    where
        H: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Poison>> + Send + 'static,
    {
        let counters = listener.counters();
        let running =
            broker::Running::start(|stop| async move { listener.run(handler, stop).await });
        Self { counters, running }
    }

    /// Starts a listener whose handler decodes nothing, so that it always returns a verdict.
    pub(crate) fn start<F, Fut>(listener: RabbitmqListener, work: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        Self::handling(listener, move |delivery| {
            let verdict = work(delivery);
            async move { Ok(verdict.await) }
        })
    }

    /// Starts a listener whose work is guarded by the engine and counts its runs.
    pub(crate) fn counting(
        listener: RabbitmqListener,
        engine: &IdempotencyEngine,
        runs: &Arc<AtomicUsize>,
    ) -> Self {
        let (engine, runs) = (engine.clone(), Arc::clone(runs));
        Self::handling(listener, move |delivery| {
            let (engine, runs) = (engine.clone(), Arc::clone(&runs));
            async move { Ok(counted(&engine, delivery.context()?, &runs).await) }
        })
    }

    /// Starts a listener whose work is guarded by the engine and waits at the gate.
    pub(crate) fn waiting(
        listener: RabbitmqListener,
        engine: &IdempotencyEngine,
        gate: &Arc<Gate>,
    ) -> Self {
        let (engine, gate) = (engine.clone(), Arc::clone(gate));
        Self::handling(listener, move |delivery| {
            let (engine, gate) = (engine.clone(), Arc::clone(&gate));
            async move { Ok(gated(&engine, delivery.context()?, &gate).await) }
        })
    }

    /// Waits until this many messages have been answered for this reason.
    pub(crate) async fn answered(&self, why: Reason, times: u64) {
        eventually(&format!("{times} x {why}"), async || self.counters.count_of(why) >= times)
            .await;
    }

    /// Ends the listener immediately, as a crash does.
    pub(crate) async fn die(self) {
        self.running.die().await;
    }

    /// Signals the listener to stop, and returns as soon as it has received the signal.
    pub(crate) async fn ask_to_stop(&self) {
        self.running.ask_to_stop().await;
    }

    /// Stops the listener, and returns its result.
    pub(crate) async fn stop(self) -> Result<()> {
        self.running.ask_to_stop().await;
        self.ended().await
    }

    /// Waits until the listener ends, and returns its result.
    pub(crate) async fn ended(self) -> Result<()> {
        self.running.ended().await
    }
}
