// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Link`]: one connection to the broker, every call of which ends in time.

use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::{sleep, timeout};

use retryproof_core::Result;

use crate::error::{classify, late};
use crate::receive::url::Server;

/// For every call but those that wait for messages.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

const LOOKS_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Link(Connection);

impl Link {
    pub(crate) async fn open(server: &Server, name: &str) -> Result<Self> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = within(server.connect(properties)).await;
        connection.map(Self).map_err(|error| error.during("connect"))
    }

    pub(crate) async fn channel(&self) -> Result<Channel> {
        within(self.0.create_channel()).await
    }

    /// Whether the queue is there. On a channel of its own, since the broker ends one on which the
    /// answer is no.
    pub(crate) async fn find(&self, queue: &str) -> Result<()> {
        let channel = self.channel().await?;
        let look = QueueDeclareOptions::default().passive();
        let found = within(channel.queue_declare(queue.into(), look, FieldTable::default())).await;
        found.map(drop).map_err(|error| error.during("find").with("queue", queue))
    }

    /// Until the connection or this channel of it is over, whichever way. Looked at instead of
    /// listened for: not every way is told.
    pub(crate) async fn lost(&self, channel: &Channel) {
        while self.0.status().connected() && channel.status().connected() {
            sleep(LOOKS_EVERY).await;
        }
    }

    /// In order; a broker that does not answer finds out by itself.
    pub(crate) async fn close(self) {
        let _ = timeout(ANSWERS_WITHIN, self.0.close(200, "bye".into())).await;
    }
}

pub(crate) async fn within<T>(call: impl Future<Output = lapin::Result<T>>) -> Result<T> {
    match timeout(ANSWERS_WITHIN, call).await {
        Ok(answer) => answer.map_err(classify),
        Err(_) => Err(late()),
    }
}
