// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RequeuePublisher`]: publishes copies of messages to wait queues and to the dead-letter queue.
//!
//! Copies are published over a separate connection. A broker that is short of memory stops reading
//! from connections that publish, but it must still read the acknowledgements. The separate
//! connection is opened when it is first needed. Each copy is published with `mandatory`, and the
//! original is acknowledged only after the broker has confirmed the copy. If the listener crashes
//! before it acknowledges the original, both the original and the copy exist. They have the same
//! key, so the work runs only once.
//!
//! All copies share one channel. If the broker closes the channel because one copy is too large,
//! the driver returns the same error for every unconfirmed copy. To find out whether a certain copy
//! is too large, the listener sends that copy alone over another connection.

use std::collections::HashSet;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Mutex;

use retryproof_core::{Error, Result};

use crate::error::{connection_lost, driver_error, invalid_setting, too_large};
use crate::receive::connection::{BrokerConnection, closed, with_timeout};
use crate::receive::url::BrokerUrl;
use crate::topology::{dead_lettering_to, declare};

/// The longest delay. A lease lasts at most a day, which rounds up to 2^17 seconds.
const MAX_DELAY_SECONDS: u64 = 1 << 17;

pub(crate) struct RequeuePublisher {
    url: BrokerUrl,
    queue: String,
    open: Mutex<Option<OpenChannel>>,
    /// A lock that is held while a copy is sent alone, so that only one extra connection is open at
    /// a time.
    alone: Mutex<()>,
}

/// How a copy is sent.
#[derive(Clone, Copy)]
pub(crate) enum Sending {
    /// The copy is sent over the channel that all copies share. A `too_large` error may be about
    /// another copy.
    Shared,
    /// The copy is sent over a separate connection.
    Alone,
}

struct OpenChannel {
    connection: BrokerConnection,
    channel: Channel,
    /// The delays, in seconds, of the wait queues that were declared over this connection.
    declared: HashSet<u64>,
}

impl RequeuePublisher {
    pub(crate) fn new(url: BrokerUrl, queue: &str) -> Self {
        Self { url, queue: queue.into(), open: Mutex::new(None), alone: Mutex::new(()) }
    }

    /// Publishes a copy to a wait queue. The copy returns to the work queue after `delay`, rounded
    /// up to a power of two in seconds. If the shared channel reports `too_large`, the copy is sent
    /// again alone, so a returned `too_large` is always about this copy.
    pub(crate) async fn publish_delayed(
        &self,
        delay: Duration,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let seconds = bucket(delay);
        let queue = wait_queue(&self.queue, seconds);
        let channel = self.channel(Some(seconds)).await?;
        let mut published = publish(&channel, &queue, body, properties.clone()).await;
        if published.as_ref().is_err_and(|error| too_large(error).is_some()) {
            published = self.publish_alone(&queue, body, properties).await;
        }
        // The queue might have been deleted, so the next copy has to declare the queue again.
        if published.is_err()
            && let Some(open) = self.open.lock().await.as_mut()
        {
            open.declared.remove(&seconds);
        }
        published
    }

    /// Publishes a copy to `queue`.
    pub(crate) async fn publish(
        &self,
        sending: Sending,
        queue: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        match sending {
            Sending::Shared => {
                let channel = self.channel(None).await?;
                publish(&channel, queue, body, properties).await
            }
            Sending::Alone => self.publish_alone(queue, body, properties).await,
        }
    }

    async fn publish_alone(
        &self,
        queue: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let _alone = self.alone.lock().await;
        let name = format!("retryproof: one copy, {}", self.queue);
        let open = async {
            let connection = BrokerConnection::open(&self.url, &name).await?;
            Ok((confirming(&connection).await?, connection))
        };
        let (channel, connection) = open.await.map_err(not_this_copy)?;
        publish(&channel, queue, body, properties).await?;
        connection.close().await;
        Ok(())
    }

    pub(crate) async fn close(&self) {
        if let Some(open) = self.open.lock().await.take() {
            open.connection.close().await;
        }
    }

    /// Returns the shared channel, which has publisher confirmations turned on. If `seconds` is
    /// given, first declares the wait queue for that delay, unless this connection has declared it
    /// before.
    async fn channel(&self, seconds: Option<u64>) -> Result<Channel> {
        let mut slot = self.open.lock().await;
        let open = match slot.take().filter(|open| open.channel.status().connected()) {
            Some(open) => open,
            None => {
                let name = format!("retryproof: put off, {}", self.queue);
                let connection = BrokerConnection::open(&self.url, &name).await?;
                let channel = confirming(&connection).await?;
                OpenChannel { connection, channel, declared: HashSet::new() }
            }
        };
        let OpenChannel { channel, connection, declared } = slot.insert(open);
        if let Some(seconds) = seconds.filter(|seconds| !declared.contains(seconds)) {
            let mut arguments = dead_lettering_to(&self.queue).to_vec();
            let ttl = i64::try_from(seconds * 1_000).unwrap_or(i64::MAX);
            arguments.push(("x-message-ttl", AMQPValue::LongLongInt(ttl)));
            // Declare the queue on a separate channel, because the broker closes the channel if
            // it rejects the declaration.
            let declared_alone = async {
                let separate = connection.channel().await?;
                declare(&separate, &wait_queue(&self.queue, seconds), &arguments).await?;
                let _ = with_timeout(separate.close(200, "declared".into())).await;
                Ok(())
            };
            // A `too_large` error here does not refer to this copy: another copy on the same
            // connection might have been too large, and ended the connection.
            declared_alone.await.map_err(not_this_copy)?;
            declared.insert(seconds);
        }
        Ok(channel.clone())
    }
}

/// Replaces a `too_large` error with the error for a lost connection. The `too_large` error
/// occurred before this copy was sent, so it is about another copy.
fn not_this_copy(error: Error) -> Error {
    if too_large(&error).is_some() { connection_lost() } else { error }
}

/// Opens a new channel and turns on publisher confirmations.
async fn confirming(connection: &BrokerConnection) -> Result<Channel> {
    let channel = connection.channel().await?;
    with_timeout(channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}

/// Publishes a message, and waits until the broker confirms it or the channel ends. A broker that
/// is short of memory or disk confirms late. The copy stays on its way meanwhile, so a time limit
/// would lead to a second copy.
async fn publish(
    channel: &Channel,
    queue: &str,
    body: &[u8],
    properties: BasicProperties,
) -> Result<()> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirmed = async {
        channel.basic_publish("".into(), queue.into(), options, body, properties).await?.await
    };
    let confirmed = tokio::select! {
        biased;
        confirmed = confirmed => confirmed.map_err(driver_error),
        () = closed(channel) => Err(connection_lost()),
    };
    let published = match confirmed {
        Ok(Confirmation::Ack(None)) => return Ok(()),
        Ok(Confirmation::Ack(Some(_))) => invalid_setting("the broker no longer has the queue"),
        Ok(_) => Error::unavailable(
            "the broker rejected the message, perhaps because the queue is full or its leader is \
             down",
        ),
        Err(error) => error,
    };
    Err(published.during("publish").with("queue", queue))
}

/// Rounds a delay up to a power of two in seconds. A few queues then serve all delays, and all
/// messages in a queue have the same delay. If the delays in a queue differed, a message with a
/// short delay would wait behind a message with a long delay.
fn bucket(delay: Duration) -> u64 {
    let up = delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0));
    up.clamp(1, MAX_DELAY_SECONDS).next_power_of_two()
}

fn wait_queue(queue: &str, seconds: u64) -> String {
    format!("{queue}.wait.{seconds}s")
}

/// Whether `name` is the name of a wait queue of `queue`.
pub(crate) fn is_wait_queue(name: &str, queue: &str) -> bool {
    (0..=MAX_DELAY_SECONDS.ilog2()).any(|power| wait_queue(queue, 1 << power) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_a_delay_is_rounded_up_and_never_down() {
        let seconds = |ms| bucket(Duration::from_millis(ms));
        assert_eq!([0, 1, 1_000, 1_001, 2_000, 2_001, 30_000].map(seconds), [1, 1, 1, 2, 2, 4, 32]);
        assert_eq!(seconds(86_400_000), MAX_DELAY_SECONDS);
        assert_eq!(bucket(Duration::MAX), MAX_DELAY_SECONDS);
    }
}
