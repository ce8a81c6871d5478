// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker: its URL, its exchange and queues, and the publisher.

use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use retryproof::rabbitmq::Topology;
use retryproof_testkit::broker::service;
use tokio::time::sleep;

use crate::shop::Shop;
use crate::{BROKER, BoxError};

/// Returns the broker's URL from the environment, or else the URL of the test server.
pub(crate) fn url() -> Result<String, BoxError> {
    let set = std::env::var(BROKER).ok().filter(|url| !url.is_empty());
    let started =
        || service(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), "RETRYPROOF_TEST_RABBITMQ");
    Ok(set
        .or_else(started)
        .ok_or("no broker: set RABBITMQ_URL, or run `cargo xtask services up rabbitmq`")?)
}

/// Declares the exchange, the queues and their dead-letter queues. Existing ones stay unchanged. If
/// the broker is briefly unavailable, the function tries again, as the consumers do later.
pub(crate) async fn declare(url: &str, shop: &Shop) -> Result<(), BoxError> {
    for _ in 0..40 {
        if try_declare(url, shop).await.is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(250)).await;
    }
    try_declare(url, shop).await
}

async fn try_declare(url: &str, shop: &Shop) -> Result<(), BoxError> {
    let broker = Broker::connect(url).await?;
    let exchange = exchange(shop);
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let table = FieldTable::default;
    broker
        .channel
        .exchange_declare(exchange.as_str().into(), ExchangeKind::Fanout, durable, table())
        .await?;
    for queue in [Some(shop.ledger_queue()), shop.receipts.then(|| shop.receipts_queue())]
        .into_iter()
        .flatten()
    {
        Topology::new(&queue).declare(url).await?;
        let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
        broker
            .channel
            .queue_bind(queue, exchange, "".into(), QueueBindOptions::default(), table())
            .await?;
    }
    broker.close().await;
    Ok(())
}

pub(crate) fn exchange(shop: &Shop) -> String {
    format!("{}.orders", shop.prefix)
}

/// A message's key and body.
pub(crate) type Message = (Option<String>, Vec<u8>);

/// A connection for publishing and inspecting.
pub(crate) struct Broker {
    connection: Connection,
    channel: Channel,
}

impl Broker {
    pub(crate) async fn connect(url: &str) -> Result<Self, BoxError> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel })
    }

    /// Publishes the messages, and returns when the broker has confirmed all of them.
    pub(crate) async fn publish(
        &self,
        exchange: &str,
        messages: &[Message],
    ) -> Result<(), BoxError> {
        // Send 200 messages at once, then wait for the confirmation of each.
        for batch in messages.chunks(200) {
            let mut confirms = Vec::with_capacity(batch.len());
            for (key, body) in batch {
                let mut properties = BasicProperties::default().with_delivery_mode(2);
                if let Some(key) = key {
                    properties = properties.with_message_id(key.as_str().into());
                }
                let options = BasicPublishOptions::default();
                confirms.push(
                    self.channel
                        .basic_publish(exchange.into(), "".into(), options, body, properties)
                        .await?,
                );
            }
            for confirm in confirms {
                if !confirm.await?.is_ack() {
                    return Err("the broker did not confirm a message".into());
                }
            }
        }
        Ok(())
    }

    /// Returns how many messages wait in a queue, or zero if the queue does not exist.
    pub(crate) async fn ready(&self, queue: &str) -> Result<u32, BoxError> {
        let channel = self.connection.create_channel().await?;
        let look = QueueDeclareOptions::default().passive();
        let Ok(found) = channel.queue_declare(queue.into(), look, FieldTable::default()).await
        else {
            return Ok(0);
        };
        channel.close(200, "looked".into()).await?;
        Ok(found.message_count())
    }

    /// Returns how many messages wait for the listener of `queue`, including delayed messages.
    pub(crate) async fn ready_or_put_off(&self, queue: &str) -> Result<u32, BoxError> {
        let mut all = self.ready(queue).await?;
        // The first eight wait queues are enough, because leases and pauses of this program are
        // shorter than two minutes.
        for n in 0..8 {
            all += self.ready(&format!("{queue}.wait.{}s", 1 << n)).await?;
        }
        Ok(all)
    }

    /// Takes all messages from a queue. Each message comes with the reason why it is a dead letter.
    pub(crate) async fn take_all(&self, queue: &str) -> Result<Vec<(Vec<u8>, String)>, BoxError> {
        let mut all = Vec::new();
        while let Some(got) =
            self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await?
        {
            let headers = got.delivery.properties.headers().as_ref();
            let why = match headers.and_then(|table| table.inner().get("retryproof-reason")) {
                Some(AMQPValue::LongString(why)) => why.to_string(),
                _ => String::new(),
            };
            all.push((got.delivery.data, why));
        }
        Ok(all)
    }

    /// Deletes what [`declare`] and the listeners have created.
    pub(crate) async fn remove(&self, shop: &Shop) -> Result<(), BoxError> {
        for queue in [shop.ledger_queue(), shop.receipts_queue()] {
            let waits = (0..18).map(|n| format!("{queue}.wait.{}s", 1_u64 << n));
            for queue in waits.chain([format!("{queue}.dead"), queue.clone()]) {
                let channel = self.connection.create_channel().await?;
                drop(
                    channel
                        .queue_delete(queue.as_str().into(), QueueDeleteOptions::default())
                        .await,
                );
            }
        }
        let exchange = exchange(shop);
        self.channel.exchange_delete(exchange.as_str().into(), Default::default()).await?;
        Ok(())
    }

    pub(crate) async fn close(self) {
        let _ = self.connection.close(200, "bye".into()).await;
    }
}
