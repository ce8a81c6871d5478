// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Node`]: the connections to one server, and one exchange with that server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use retryproof_core::Result;
use tokio::time::{Instant, timeout_at};

use super::primary::PrimaryLocator;
use super::{OpenConnection, SharedConnection};
use crate::connection::{Purpose, Request};
use crate::error::{Failure, Recovery};
use crate::waiters::subscriptions::Subscriptions;

/// The primary of a standalone server or Sentinel group, or one node of a cluster.
#[derive(Debug)]
pub(crate) struct Node {
    locator: Arc<PrimaryLocator>,
    calls: SharedConnection,
    /// The connection for calls that wait for replicas. On this connection, each call waits for the
    /// calls before it.
    calls_with_wait: Option<SharedConnection>,
    pub(crate) subscriptions: Subscriptions,
}

impl Node {
    pub(crate) fn new(locator: PrimaryLocator) -> Self {
        let locator = Arc::new(locator);
        let shared = |purpose| SharedConnection::new(Arc::clone(&locator), purpose);
        let waits = locator.config().wait_replicas.is_some();
        Self {
            calls: shared(Purpose::Calls),
            calls_with_wait: waits.then(|| shared(Purpose::CallsWithWait)),
            subscriptions: Subscriptions::default(),
            locator,
        }
    }

    /// Opens the first connection.
    pub(crate) async fn open(&self) -> Result<()> {
        self.calls.open().await
    }

    pub(crate) fn locator(&self) -> &Arc<PrimaryLocator> {
        &self.locator
    }

    /// Returns the connection for calls; for calls that wait for replicas if `waits` is true and
    /// that wait is configured.
    fn shared(&self, waits: bool) -> &SharedConnection {
        match &self.calls_with_wait {
            Some(shared) if waits => shared,
            _ => &self.calls,
        }
    }

    /// Returns the time limit for a call.
    pub(crate) fn call_timeout(&self, waits: bool) -> Duration {
        self.shared(waits).call_timeout()
    }

    /// Sends a request and waits for the answer. After a failure that a new connection can fix, the
    /// request is sent once more.
    pub(crate) async fn run(&self, request: Request<'_>, waits: bool) -> Result<Value, Failure> {
        let deadline = Instant::now() + self.call_timeout(waits);
        let failure = match self.attempt(request, waits, deadline, false).await {
            Err(failure) if failure.recovery() == Recovery::RetryOnNewConnection => failure,
            ended => return ended,
        };
        drop(failure);
        self.attempt(request, waits, deadline, true).await.map_err(|failure| {
            // The server has answered the second request, so the outcome is known.
            let is_answer = matches!(failure, Failure::Server(_))
                && failure.recovery() != Recovery::RetryOnNewConnection;
            if is_answer { failure } else { failure.after_lost_answer() }
        })
    }

    /// Sends a request once, over the connection in use or a new one. If a new connection can fix
    /// the failure, the connection goes out of use.
    ///
    /// The driver limits each exchange to the call timeout. Only a call that has first waited, for
    /// a connection or in an earlier attempt (`has_waited`), can outlast its deadline, so only such
    /// a call needs the deadline as a second limit.
    pub(crate) async fn attempt(
        &self,
        request: Request<'_>,
        waits: bool,
        deadline: Instant,
        has_waited: bool,
    ) -> Result<Value, Failure> {
        let shared = self.shared(waits);
        let current = shared.current();
        let has_waited = has_waited || current.is_none();
        let open = match current {
            Some(open) => open,
            None => within(deadline, shared.acquire()).await??,
        };
        let exchange = self.exchange(&open, request);
        let answered = if has_waited {
            within(deadline, exchange).await.unwrap_or_else(Err)
        } else {
            exchange.await
        };
        answered.inspect_err(|failure| match failure.recovery() {
            Recovery::RetryOnNewConnection | Recovery::ReconnectForNextCall => {
                shared.invalidate(&open);
            }
            Recovery::ReadOnly | Recovery::None => {}
        })
    }

    async fn exchange(
        &self,
        open: &OpenConnection,
        request: Request<'_>,
    ) -> Result<Value, Failure> {
        let sent = open.connection.send(request);
        let answer = if self.locator.can_move() {
            tokio::select! {
                biased;
                answer = sent => answer,
                // The primary has moved. Stop waiting, because a write on the old primary would be
                // lost.
                () = self.locator.moved(open.epoch) => {
                    Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into())
                }
            }
        } else {
            sent.await
        };
        match answer.map_err(Failure::Connection)? {
            Value::ServerError(error) => Err(Failure::Server(error)),
            // If one answer in the batch is an error, the batch fails with the first such error.
            Value::Array(answers) if matches!(request, Request::Batch(_)) => {
                match answers.iter().find_map(|answer| match answer {
                    Value::ServerError(error) => Some(error.clone()),
                    _ => None,
                }) {
                    Some(error) => Err(Failure::Server(error)),
                    None => Ok(Value::Array(answers)),
                }
            }
            answer => Ok(answer),
        }
    }
}

/// Returns the output of `work`, or a failure if `work` has not ended by `deadline`.
async fn within<T>(deadline: Instant, work: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| Failure::Connection(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout_at(deadline, work).await.map_err(late)
}
