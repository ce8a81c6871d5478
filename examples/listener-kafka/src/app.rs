// SPDX-License-Identifier: MIT OR Apache-2.0
//! The consumer, as an application would write it, and the publisher of its messages.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use retryproof::IdempotencyEngine;
use retryproof::JoinedEngine;
use retryproof::kafka::rdkafka::ClientConfig;
use retryproof::kafka::rdkafka::message::{Header, OwnedHeaders};
use retryproof::kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use retryproof::kafka::rdkafka::util::Timeout;
use retryproof::kafka::{Delivery, KafkaListener};
use retryproof::listener::{Poison, Verdict};
use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::BoxError;
use crate::receipts::{self, OrderPaid};

/// The header with the event's id. All copies of an event have the same id.
const EVENT_ID: &str = "event-id";

type Handled = Pin<Box<dyn Future<Output = Result<Verdict, Poison>> + Send>>;

/// Opens the file that contains both receipts and records, so that they commit together.
pub(crate) fn engine(db: &Path) -> Result<JoinedEngine<SqliteTx>, BoxError> {
    drop(receipts::open(db)?);
    SqliteConfig::new(db).migrate()?;
    let engine = IdempotencyEngine::new(SqliteStore::open(db)?.into_shared());
    Ok(engine.joined(SqliteTxSource::open(db)?)?)
}

/// Builds a member of the group `receipts`.
pub(crate) fn listener(brokers: &str, topic: &str) -> Result<KafkaListener, BoxError> {
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", brokers)
        .set("group.id", "receipts")
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "500");
    let listener = KafkaListener::builder(client, &[topic], "receipts.book")
        .key_header(EVENT_ID)
        .dead_letters(format!("{topic}.dead"))
        .build()?;
    Ok(listener)
}

/// Books one receipt for the order in a message.
pub(crate) fn book(
    engine: JoinedEngine<SqliteTx>,
) -> impl Fn(Delivery) -> Handled + Clone + Send + Sync {
    move |delivery| {
        let engine = engine.clone();
        Box::pin(async move {
            let paid: OrderPaid = delivery.json()?;
            let booked = engine
                .execute(delivery.context()?, async |tx: &mut SqliteTx| -> Result<i64, BoxError> {
                    // This pause stands for a call to another service. Keep such calls short,
                    // because the transaction locks the database file for all other writers until
                    // it ends.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    Ok(receipts::book(tx, &paid)?)
                })
                .await;
            let verdict = Verdict::of(&booked);
            tracing::info!(partition = delivery.partition(), offset = delivery.offset(), why = %verdict.reason(), "handled");
            Ok(verdict)
        })
    }
}

/// Books receipts until Ctrl-C, or SIGTERM from a service manager or a container runtime.
pub(crate) async fn listen(brokers: &str, topic: &str, db: &Path) -> Result<(), BoxError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    // Install the signal handlers first, so that a stop during start-up is orderly too.
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let engine = engine(db)?;
    tracing::info!(topic, db = %db.display(), "listening");
    listener(brokers, topic)?.run(book(engine), stop).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Publishes each paid order twice, like a publisher that got no confirmation.
pub(crate) async fn publish(brokers: &str, topic: &str, orders: usize) -> Result<(), BoxError> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers).set("message.timeout.ms", "30000");
    let producer: FutureProducer = client.create()?;
    for copy in ["once", "twice"] {
        for n in 0..orders {
            let order = format!("order-{}-{n}", std::process::id());
            let body = serde_json::to_vec(&OrderPaid { order: order.clone(), amount: 100 })?;
            let headers = OwnedHeaders::new().insert(Header { key: EVENT_ID, value: Some(&order) });
            // Kafka's own key selects the partition, so all orders of a customer are in one
            // partition.
            let customer = format!("customer-{}", n % 16);
            let record = FutureRecord::to(topic).key(&customer).payload(&body).headers(headers);
            producer.send(record, Timeout::Never).await.map_err(|(error, _)| error)?;
        }
        tracing::info!(orders, "published {copy}");
    }
    Ok(())
}
