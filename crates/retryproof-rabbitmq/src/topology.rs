// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Topology`]: declares the queues of a listener on request. The listener itself creates only its
//! wait queues. STO-3 has the same rule for tables.

use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, LongString};

use retryproof_core::Result;

use crate::receive::connection::{BrokerConnection, with_timeout};
use crate::receive::url::{BrokerUrl, RootCertificates};

/// A work queue that loses no message, and the queue for its dead letters.
///
/// The work queue is a quorum queue. The broker counts how often a message returns to the queue,
/// for example because its consumer died. When a message has returned
/// [`delivery_limit`](Self::delivery_limit) times, it becomes a dead letter. The broker removes a
/// dead letter from the work queue only after the dead-letter queue has it.
///
/// ```no_run
/// # async fn run() -> retryproof_core::Result<()> {
/// use retryproof_rabbitmq::Topology;
///
/// Topology::new("orders.paid").declare("amqp://guest:guest@localhost").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a topology does nothing until `declare` is called"]
pub struct Topology {
    queue: String,
    dead_letters: String,
    delivery_limit: u32,
    roots: RootCertificates,
}

impl Topology {
    /// Creates a topology with the work queue `queue`. Dead letters go to the queue `QUEUE.dead`.
    pub fn new(queue: &str) -> Self {
        Self {
            queue: queue.into(),
            dead_letters: format!("{queue}.dead"),
            delivery_limit: 20,
            roots: None,
        }
    }

    /// Sets a different queue for the dead letters.
    pub fn dead_letters(mut self, queue: impl Into<String>) -> Self {
        self.dead_letters = queue.into();
        self
    }

    /// Sets how many times a message can return to the queue because its consumer or connection
    /// died. The default is 20. After that many returns, the message becomes a dead letter, so a
    /// message that kills its consumers does not block the queue. Every message that the consumer
    /// has prefetched counts as returned, even if its handler has not started.
    pub fn delivery_limit(mut self, limit: u32) -> Self {
        self.delivery_limit = limit;
        self
    }

    /// Sets the root certificates, in PEM, that verify the broker's certificate for `amqps://`.
    /// Default: the certificates that the host trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Creates both queues if they do not exist. The program must bind the work queue to its
    /// exchanges.
    ///
    /// # Errors
    /// `Config` if a queue with the same name but different arguments exists, if the user has no
    /// right to create a queue, or if the broker's certificate is not trusted; `Unsupported` for
    /// `amqps://` without the feature `tls`; `Unavailable` if the broker cannot be reached.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is possible that only one of the queues exists. Call `declare`
    /// again.
    pub async fn declare(&self, url: &str) -> Result<()> {
        let url = BrokerUrl::parse(url, &self.roots)?;
        let connection = BrokerConnection::open(&url, "retryproof: declare").await?;
        let channel = connection.channel().await?;
        declare(&channel, &self.dead_letters, &[("x-queue-type", text("quorum"))]).await?;
        let mut arguments = dead_lettering_to(&self.dead_letters).to_vec();
        arguments.push(("x-delivery-limit", AMQPValue::LongLongInt(self.delivery_limit.into())));
        declare(&channel, &self.queue, &arguments).await?;
        connection.close().await;
        Ok(())
    }
}

/// Returns the arguments of a quorum queue that dead-letters to `queue` at least once. The broker
/// requires `x-overflow` for the at-least-once strategy.
pub(crate) fn dead_lettering_to(queue: &str) -> [(&'static str, AMQPValue); 5] {
    [
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(queue)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ]
}

pub(crate) async fn declare(
    channel: &Channel,
    queue: &str,
    arguments: &[(&str, AMQPValue)],
) -> Result<()> {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let declared = channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), table);
    let declared = with_timeout(declared).await;
    declared.map(drop).map_err(|error| error.during("declare").with("queue", queue))
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}
