// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Outbox`]: copies of messages on their way to a wait queue or to the dead letters.
//!
//! A connection of its own, opened when it is first needed: a broker that is short of memory stops
//! reading from connections that publish, and must go on reading the acknowledgements. Every copy
//! is published with `mandatory` and waits for the broker's confirmation; only then is the original
//! acknowledged. A crash in between leaves both, and the key sees to it that one of them runs
//! nothing.

use std::collections::HashSet;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Mutex;

use retryproof_core::{Error, ErrorKind, Result};

use crate::receive::connection::{Link, within};
use crate::receive::url::Server;
use crate::topology::{declare, safely_to};

/// The longest lease is a day; the next power of two in seconds is a day and a half.
const LONGEST_WAIT: u64 = 1 << 17;

pub(crate) struct Outbox {
    server: Server,
    queue: String,
    open: Mutex<Option<Open>>,
}

struct Open {
    link: Link,
    channel: Channel,
    /// Wait queues that are known to be there, by their seconds.
    made: HashSet<u64>,
}

impl Outbox {
    pub(crate) fn new(server: Server, queue: &str) -> Self {
        Self { server, queue: queue.into(), open: Mutex::new(None) }
    }

    /// To the wait queue from which it comes back after `delay` or somewhat more, never sooner.
    pub(crate) async fn put_off(
        &self,
        delay: Duration,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let seconds = bucket(delay);
        let queue = wait_queue(&self.queue, seconds);
        let channel = self.channel(Some(seconds)).await?;
        let sent = self.publish(&channel, &queue, body, properties).await;
        // Somebody may have deleted it: the next message makes it again.
        if sent.is_err()
            && let Some(open) = self.open.lock().await.as_mut()
        {
            open.made.remove(&seconds);
        }
        sent
    }

    /// To the dead letters.
    pub(crate) async fn bury(
        &self,
        queue: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let channel = self.channel(None).await?;
        self.publish(&channel, queue, body, properties).await
    }

    pub(crate) async fn close(&self) {
        if let Some(open) = self.open.lock().await.take() {
            open.link.close().await;
        }
    }

    /// A channel that confirms; with the wait queue of so many seconds made.
    async fn channel(&self, seconds: Option<u64>) -> Result<Channel> {
        let mut open = self.open.lock().await;
        if open.as_ref().is_none_or(|open| !open.channel.status().connected()) {
            drop(open.take());
            let link =
                Link::open(&self.server, &format!("retryproof: put off, {}", self.queue)).await?;
            let channel = link.channel().await?;
            within(channel.confirm_select(ConfirmSelectOptions::default())).await?;
            *open = Some(Open { link, channel, made: HashSet::new() });
        }
        let Some(Open { channel, link, made }) = open.as_mut() else {
            return Err(Error::unavailable("unreachable"));
        };
        if let Some(seconds) = seconds.filter(|seconds| !made.contains(seconds)) {
            let mut arguments = safely_to(&self.queue).to_vec();
            let ttl = i64::try_from(seconds * 1_000).unwrap_or(i64::MAX);
            arguments.push(("x-message-ttl", AMQPValue::LongLongInt(ttl)));
            // On a channel of its own: a refusal ends it, and not the copies that are on their way.
            let own = link.channel().await?;
            declare(&own, &wait_queue(&self.queue, seconds), &arguments).await?;
            let _ = within(own.close(200, "made".into())).await;
            made.insert(seconds);
        }
        Ok(channel.clone())
    }

    async fn publish(
        &self,
        channel: &Channel,
        queue: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = async {
            channel.basic_publish("".into(), queue.into(), options, body, properties).await?.await
        };
        let refused = |message: &'static str| {
            Err(Error::new(ErrorKind::Config, message).during("publish").with("queue", queue))
        };
        match within(sent).await.map_err(|error| error.during("publish").with("queue", queue))? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => refused("the broker has no such queue any more"),
            _ => Err(Error::unavailable(
                "the broker does not take it: the queue is full, or its leader is away",
            )
            .during("publish")
            .with("queue", queue)),
        }
    }
}

/// Powers of two, in seconds: few queues for all delays, and messages of one queue leave it in the
/// order they came in. Queues with a delay for each message would hold a short one back behind a
/// long one.
fn bucket(delay: Duration) -> u64 {
    let up = delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0));
    up.clamp(1, LONGEST_WAIT).next_power_of_two()
}

fn wait_queue(queue: &str, seconds: u64) -> String {
    format!("{queue}.wait.{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_a_delay_is_rounded_up_and_never_down() {
        let seconds = |ms| bucket(Duration::from_millis(ms));
        assert_eq!([0, 1, 1_000, 1_001, 2_000, 2_001, 30_000].map(seconds), [1, 1, 1, 2, 2, 4, 32]);
        assert_eq!(seconds(86_400_000), LONGEST_WAIT);
        assert_eq!(bucket(Duration::MAX), LONGEST_WAIT);
    }
}
