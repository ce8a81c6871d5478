// SPDX-License-Identifier: MIT OR Apache-2.0
//! The consumer, as an application would write it, and the publisher of its messages.

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::stream::Config as StreamConfig;
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use retryproof::listener::{Reason, Verdict};
use retryproof::nats::{Delivery, NatsListener};
use retryproof::sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource};
use retryproof::{IdempotencyConfig, IdempotencyEngine};
use tracing_subscriber::EnvFilter;

use crate::BoxError;
use crate::invoices::{self, OrderPaid};

/// The header with the event's id. The id is the same in every stream and in all copies of an
/// event.
pub(crate) const EVENT_ID: &str = "Event-Id";
/// The consumer's name.
pub(crate) const CONSUMER: &str = "invoices";

/// Returns the subject of paid orders.
pub(crate) fn subject(name: &str) -> String {
    format!("{name}.paid")
}

/// Returns the stream and the subject of the dead letters.
pub(crate) fn dead(name: &str) -> (String, String) {
    (format!("{name}-dead"), format!("dead.{name}"))
}

/// Creates the streams that do not exist.
pub(crate) async fn streams(jetstream: &Context, name: &str) -> Result<(), BoxError> {
    let (dead_stream, dead_subject) = dead(name);
    for (stream, subject) in [(name, format!("{name}.>")), (&dead_stream, dead_subject)] {
        let config = StreamConfig {
            name: stream.to_owned(),
            subjects: vec![subject],
            ..StreamConfig::default()
        };
        jetstream.get_or_create_stream(config).await?;
    }
    Ok(())
}

/// Creates the consumer if it does not exist.
pub(crate) async fn consumer(jetstream: &Context, name: &str) -> Result<PullConsumer, BoxError> {
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        // The server delivers a message again if the consumer sends nothing about it for this time.
        // Long work does not need a longer time, because the listener reports progress.
        ack_wait: Duration::from_secs(5),
        // Do not set `max_deliver`: the server would not deliver a message again if the consumer
        // was killed during the last delivery that `max_deliver` allows. Use the listener's
        // `max_deliveries` instead.
        ..pull::Config::default()
    };
    Ok(jetstream.get_stream(name).await?.get_or_create_consumer(CONSUMER, config).await?)
}

pub(crate) async fn connect(url: &str) -> Result<Context, BoxError> {
    let client = ConnectOptions::new().retry_on_initial_connect().connect(url).await?;
    Ok(jetstream::new(client))
}

/// Books an invoice for each paid order, until Ctrl-C or SIGTERM.
pub(crate) async fn listen(
    url: &str,
    name: &str,
    db: &Path,
    lease: Duration,
) -> Result<(), BoxError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();

    drop(invoices::open(db)?);
    SqliteConfig::new(db).migrate()?;
    let mut config = IdempotencyConfig::default();
    config.default_lease = lease;
    let engine =
        IdempotencyEngine::builder(SqliteStore::open(db)?.into_shared()).config(config).build()?;
    // An invoice and its order's record commit together.
    let engine = engine.joined(SqliteTxSource::open(db)?)?;

    let jetstream = connect(url).await?;
    streams(&jetstream, name).await?;
    let consumer = consumer(&jetstream, name).await?;
    let listener = NatsListener::builder(jetstream, consumer, "invoices.book")
        .key_header(EVENT_ID)
        .dead_letters(dead(name).1)
        .max_deliveries(100)
        .build()?;
    // Install the signal handler before logging the next line, because a process that reads the log
    // may then stop this process.
    let stop = stop_signal()?;
    tracing::info!(stream = name, db = %db.display(), "listening");

    let handle = move |delivery: Delivery| {
        let engine = engine.clone();
        async move {
            let paid: OrderPaid = delivery.json()?;
            let booked = engine
                .execute(delivery.context()?, async |tx: &mut SqliteTx| -> Result<i64, BoxError> {
                    // This pause stands for a call to another service. Keep such calls short,
                    // because the transaction locks the database file for all other writers until
                    // it ends.
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    Ok(invoices::book(tx, &paid)?)
                })
                .await;
            let verdict = Verdict::of(&booked);
            match verdict.reason() {
                Reason::Executed => tracing::info!(sequence = delivery.sequence(), "booked"),
                Reason::Replayed => tracing::info!(sequence = delivery.sequence(), "booked before"),
                Reason::InFlight => tracing::info!(sequence = delivery.sequence(), "in flight"),
                why => tracing::warn!(sequence = delivery.sequence(), %why, "not booked"),
            }
            Ok(verdict)
        }
    };
    listener.run(handle, stop).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Resolves at Ctrl-C, and at the SIGTERM that service managers and container runtimes send.
#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Resolves at Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

/// Publishes each paid order twice, like a publisher that got no confirmation.
pub(crate) async fn publish(url: &str, name: &str, orders: usize) -> Result<(), BoxError> {
    let jetstream = connect(url).await?;
    streams(&jetstream, name).await?;
    for n in 0..orders {
        let order = format!("order-{}-{n}", std::process::id());
        for _ in 0..2 {
            send(&jetstream, name, &order, 100).await?;
        }
        println!("published {order} twice");
    }
    Ok(())
}

/// Publishes one message, and waits until the stream confirms it.
pub(crate) async fn send(
    jetstream: &Context,
    name: &str,
    order: &str,
    amount: i64,
) -> Result<(), BoxError> {
    let mut headers = HeaderMap::new();
    headers.insert(EVENT_ID, order);
    let body = serde_json::to_vec(&OrderPaid { order: order.to_owned(), amount })?;
    jetstream.publish_with_headers(subject(name), headers, body.into()).await?.await?;
    Ok(())
}
