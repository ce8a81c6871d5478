// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SharedConnection`]: one connection to the primary, which all calls share. When it fails, the
//! store opens a new connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use retryproof_core::{Error, Result};
use tokio::sync::watch;

use crate::connection::{Connection, Purpose, Task};

pub(crate) mod node;
pub(crate) mod primary;
mod sentinel;
pub(crate) mod sentinel_watchers;

use primary::PrimaryLocator;

pub(crate) struct SharedConnection {
    locator: Arc<PrimaryLocator>,
    purpose: Purpose,
    current: Current,
    /// The latest attempt to connect.
    attempt: Mutex<Option<ConnectAttempt>>,
}

/// The connection in use.
type Current = Arc<RwLock<Option<Arc<OpenConnection>>>>;

pub(crate) struct OpenConnection {
    pub(crate) connection: Connection,
    /// How many times the primary had moved when the connection was opened.
    pub(crate) epoch: u64,
}

/// An attempt to connect, shared by all calls that wait for it. The attempt runs in a separate
/// task. The task continues after the call or heartbeat that started it has ended, so connecting
/// can take longer than a call (RUN-1, STO-5).
struct ConnectAttempt {
    /// `None` until the attempt has ended; the task owns the sender.
    outcome: watch::Receiver<Option<OpenResult>>,
    _task: Task,
}

type OpenResult = Result<Arc<OpenConnection>, Arc<Error>>;

impl SharedConnection {
    pub(crate) fn new(locator: Arc<PrimaryLocator>, purpose: Purpose) -> Self {
        Self { locator, purpose, current: Current::default(), attempt: Mutex::new(None) }
    }

    /// Opens the first connection.
    pub(crate) async fn open(&self) -> Result<()> {
        let (connection, epoch) = self.locator.connect(&self.purpose).await?;
        *self.current.write() = Some(Arc::new(OpenConnection { connection, epoch }));
        Ok(())
    }

    /// Returns the connection in use. If no connection is in use, one caller connects; the others
    /// wait and get the same connection or the same error. If the attempt fails, a caller that
    /// joined it late takes part in one more attempt, because the server may be back by then.
    pub(crate) async fn acquire(&self) -> Result<Arc<OpenConnection>> {
        let (open, began_before) = self.attempt();
        match open.await {
            Err(_) if began_before => self.attempt().0.await,
            ended => ended,
        }
    }

    /// Returns a future that yields the connection in use. If no connection is in use, the future
    /// yields the outcome of the running attempt to connect, or of a new attempt. Also returns
    /// whether the future waits for an attempt that was already running.
    fn attempt(&self) -> (impl Future<Output = Result<Arc<OpenConnection>>> + use<>, bool) {
        let mut attempt = self.attempt.lock();
        let running = attempt.as_ref().filter(|attempt| attempt.is_running());
        // If an attempt has just succeeded, its connection is already in use, and `current` returns
        // that connection.
        let (found, was_running) = match (running, self.current()) {
            (_, Some(open)) => (Ok(open), false),
            (Some(running), None) => (Err(running.outcome.clone()), true),
            (None, None) => (Err(attempt.insert(self.connect()).outcome.clone()), false),
        };
        let open = async move {
            let mut outcome = match found {
                Ok(open) => return Ok(open),
                Err(outcome) => outcome,
            };
            let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            ended
                .ok_or_else(|| {
                    Error::unavailable(
                        "the runtime shut down while the store was connecting; try again",
                    )
                })?
                .map_err(|error| {
                    Error::new(error.kind(), format!("the store could not connect: {error}"))
                        .because(error)
                })
        };
        (open, was_running)
    }

    /// Takes a connection out of use. Calls that already wait for an answer on this connection keep
    /// waiting.
    pub(crate) fn invalidate(&self, open: &Arc<OpenConnection>) {
        self.current.write().take_if(|current| Arc::ptr_eq(current, open));
    }

    /// Returns the time limit for a call over this connection.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.purpose.timeout(self.locator.config())
    }

    /// Returns the connection in use, unless the primary has moved since the connection was opened.
    pub(crate) fn current(&self) -> Option<Arc<OpenConnection>> {
        let current = self.current.read();
        current.as_ref().filter(|open| open.epoch == self.locator.epoch()).cloned()
    }

    fn connect(&self) -> ConnectAttempt {
        let (to, outcome) = watch::channel(None);
        let (locator, purpose, current) =
            (Arc::clone(&self.locator), self.purpose.clone(), Arc::clone(&self.current));
        let task = tokio::spawn(async move {
            let connected = locator.connect(&purpose).await;
            let outcome = connected
                .map(|(connection, epoch)| Arc::new(OpenConnection { connection, epoch }))
                .map_err(Arc::new);
            if let Ok(open) = &outcome {
                *current.write() = Some(Arc::clone(open));
            }
            to.send_replace(Some(outcome));
        });
        ConnectAttempt { outcome, _task: Task(task.abort_handle()) }
    }
}

impl ConnectAttempt {
    fn is_running(&self) -> bool {
        self.outcome.has_changed().is_ok() && self.outcome.borrow().is_none()
    }
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConnection")
            .field("is_connected", &self.current.read().is_some())
            .finish_non_exhaustive()
    }
}
