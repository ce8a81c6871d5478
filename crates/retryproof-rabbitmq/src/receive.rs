// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives messages through a queue's consumers, which all use one connection.

use std::pin::Pin;
use std::task::Poll;

use futures_core::Stream;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use retryproof_core::{Error, Result};

use crate::error::{consumer_cancelled, driver_error};
use connection::with_timeout;

pub(crate) mod connection;
pub(crate) mod ramp_up;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod url;

/// Begins to consume from a queue, with at most `prefetch` unanswered messages.
pub(crate) async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Result<Consumer> {
    let consumer = async {
        with_timeout(channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let options = BasicConsumeOptions::default();
        let consumer =
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        with_timeout(consumer).await
    };
    consumer.await.map_err(|error: Error| error.during("consume"))
}

/// Returns the next message from any of the consumers.
///
/// # Errors
/// Fails if the connection is lost, or if one of the consumers has ended.
pub(crate) async fn next_delivery(consumers: &mut [Consumer]) -> Result<Delivery> {
    let next = std::future::poll_fn(|cx| {
        let next = consumers
            .iter_mut()
            .map(|consumer| Pin::new(consumer).poll_next(cx))
            .find(Poll::is_ready);
        next.unwrap_or(Poll::Pending)
    });
    match next.await {
        Some(delivery) => delivery.map_err(driver_error),
        None => Err(consumer_cancelled()),
    }
}

/// Cancels the consumers. Otherwise, the broker would deliver another message after each answer.
pub(crate) async fn cancel(channel: &Channel, consumers: &[Consumer]) {
    for consumer in consumers {
        let cancelled = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        drop(with_timeout(cancelled).await);
    }
}
