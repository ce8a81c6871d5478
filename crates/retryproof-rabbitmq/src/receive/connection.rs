// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BrokerConnection`]: a connection to the broker. Each call on it has a timeout.

use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use retryproof_core::Result;

use crate::error::{driver_error, timed_out};
use crate::receive::url::BrokerUrl;

/// How long each call may take. Waiting for messages has no limit.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const LOSS_CHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct BrokerConnection(Connection);

impl BrokerConnection {
    pub(crate) async fn open(url: &BrokerUrl, name: &str) -> Result<Self> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = with_timeout(url.connect(properties)).await;
        connection.map(Self).map_err(|error| error.during("connect"))
    }

    pub(crate) async fn channel(&self) -> Result<Channel> {
        with_timeout(self.0.create_channel()).await
    }

    /// Checks that the queue exists. Uses a new channel, because the broker closes the channel if
    /// there is no such queue.
    pub(crate) async fn find_queue(&self, queue: &str) -> Result<()> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions::default().passive();
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
        let found = with_timeout(declared).await;
        found.map(drop).map_err(|error| error.during("find").with("queue", queue))
    }

    /// Resolves when the connection or `channel` has ended. Polls, because the driver does not
    /// report every way in which a connection or a channel can end.
    pub(crate) async fn lost(&self, channel: &Channel) {
        while self.0.status().connected() && channel.status().connected() {
            sleep(LOSS_CHECK_INTERVAL).await;
        }
    }

    /// Closes the connection. If the broker does not answer in time, drops the connection. The
    /// broker then notices the loss.
    pub(crate) async fn close(self) {
        let _ = timeout(CALL_TIMEOUT, self.0.close(200, "closed".into())).await;
    }
}

pub(crate) async fn with_timeout<T>(call: impl Future<Output = lapin::Result<T>>) -> Result<T> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(driver_error),
        Err(_) => Err(timed_out()),
    }
}

/// Resolves when the channel has ended. Polls, for the same reason as [`BrokerConnection::lost`].
pub(crate) async fn closed(channel: &Channel) {
    while channel.status().connected() {
        sleep(LOSS_CHECK_INTERVAL).await;
    }
}

/// Signals that the connection over which a message arrived is no longer in use.
#[derive(Clone)]
pub(crate) struct ConnectionLost(watch::Receiver<()>);

/// A value that is held while the connection is in use.
pub(crate) struct ConnectionAlive {
    _sender: watch::Sender<()>,
}

impl ConnectionLost {
    pub(crate) fn new() -> (ConnectionAlive, Self) {
        let (sender, receiver) = watch::channel(());
        (ConnectionAlive { _sender: sender }, Self(receiver))
    }

    pub(crate) async fn wait(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}
