// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Topology`]: the queues that a consumer wants, made on request (STO-3 in spirit: nothing is
//! made behind its owner's back but the wait queues).

use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, LongString};

use retryproof_core::Result;

use crate::config::dead_letters_of;
use crate::receive::connection::{Link, within};
use crate::receive::url::{Roots, Server};

/// A work queue that loses nothing, and the queue for its dead letters.
///
/// The work queue is a quorum queue: the broker counts how often a message went back because its
/// consumer died, and after [`delivery_limit`](Self::delivery_limit) of those it is a dead letter.
/// Both dead-letter at least once: the broker removes a message only when the next queue has it.
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
#[must_use = "a topology is made by `declare`"]
pub struct Topology {
    queue: String,
    dead_letters: String,
    delivery_limit: u32,
    roots: Roots,
}

impl Topology {
    /// For this work queue; its dead letters go to the queue `NAME.dead`.
    pub fn new(queue: &str) -> Self {
        Self {
            queue: queue.into(),
            dead_letters: dead_letters_of(queue),
            delivery_limit: 20,
            roots: None,
        }
    }

    /// Another queue for the dead letters.
    pub fn dead_letters(mut self, queue: &str) -> Self {
        self.dead_letters = queue.into();
        self
    }

    /// How often a message goes back because its consumer, or the connection, died, before it is a
    /// dead letter: a message that kills its consumer ends there. 20 unless set. All that a
    /// consumer had been handed counts, worked on or not.
    pub fn delivery_limit(mut self, limit: u32) -> Self {
        self.delivery_limit = limit;
        self
    }

    /// The certificates, in PEM, of whoever signed the broker's, for `amqps://`. Unless set, those
    /// that the host trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Makes both, unless they are there. Bind the work queue to exchanges as you like.
    ///
    /// # Errors
    /// `Config` where a queue of that name has other arguments, the user may not make it, or the
    /// broker's certificate is by nobody who is trusted; `Unsupported` for `amqps://` without the
    /// feature `tls`; `Unavailable` when the broker is away.
    ///
    /// # Cancel safety
    /// Dropped, one of them may be made; call it again.
    pub async fn declare(&self, url: &str) -> Result<()> {
        let link = Link::open(&Server::parse(url, &self.roots)?, "retryproof: declare").await?;
        let channel = link.channel().await?;
        declare(&channel, &self.dead_letters, &[("x-queue-type", text("quorum"))]).await?;
        let mut arguments = safely_to(&self.dead_letters).to_vec();
        arguments.push(("x-delivery-limit", AMQPValue::LongLongInt(self.delivery_limit.into())));
        declare(&channel, &self.queue, &arguments).await?;
        link.close().await;
        Ok(())
    }
}

/// A quorum queue whose dead letters go to `queue` at least once. The broker asks for the overflow
/// policy with it.
pub(crate) fn safely_to(queue: &str) -> [(&'static str, AMQPValue); 5] {
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
    let declared =
        within(channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), table)).await;
    declared.map(drop).map_err(|error| error.during("declare").with("queue", queue))
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}
