// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Link`]: one shared connection to the primary, made anew when it fails, and calls over it, sent
//! once more where that helps.

use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use redis::{Cmd, Pipeline, Value};
use retryproof_core::{Error, Result};
use tokio::sync::watch;

use crate::connection::{Conn, Purpose, Task};
use crate::error::{Failure, Remedy};
use crate::pool::primary::Route;

pub(crate) mod primary;
pub(crate) mod sentinel;

/// What is sent in one flight.
#[derive(Clone, Copy)]
pub(crate) enum Ask<'a> {
    One(&'a Cmd),
    /// Several commands; their answers come as one array. The first error among them is the
    /// flight's.
    Flight(&'a Pipeline),
}

/// A connection that all callers share.
pub(crate) struct Link {
    route: Arc<Route>,
    purpose: Purpose,
    live: Slot,
    /// The last attempt to connect.
    dial: Mutex<Option<Dial>>,
}

/// The connection in use.
type Slot = Arc<RwLock<Option<Arc<Live>>>>;

struct Live {
    conn: Conn,
    /// How often the primary had moved when it was made.
    epoch: u64,
}

/// An attempt to connect, shared by all calls that wait for it. It runs in a task of its own: a
/// call that ends leaves it running, so that a dial which takes longer than a call may, or a beat,
/// still comes to its end (RUN-1, STO-5).
struct Dial {
    /// `None` until it has ended; the sender goes with the task.
    outcome: watch::Receiver<Option<Outcome>>,
    _task: Task,
}

type Outcome = Result<Arc<Live>, Arc<Error>>;

impl Link {
    pub(crate) fn new(route: Arc<Route>, purpose: Purpose) -> Self {
        Self { route, purpose, live: Slot::default(), dial: Mutex::new(None) }
    }

    /// Makes the first connection.
    pub(crate) async fn open(&self) -> Result<()> {
        let (conn, epoch) = self.route.open(&self.purpose).await?;
        *self.live.write() = Some(Arc::new(Live { conn, epoch }));
        Ok(())
    }

    /// Sends and hears. After a failure that another connection cures the call is sent once more.
    pub(crate) async fn call(&self, ask: Ask<'_>) -> Result<Value, Failure> {
        let mut live = self.connection().await?;
        let mut first = true;
        loop {
            let failure = match self.exchange(&live, ask).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match failure.remedy() {
                Remedy::None => return Err(failure),
                Remedy::Reconnect => {
                    self.forget(&live);
                    return Err(failure);
                }
                Remedy::Resend => {
                    self.forget(&live);
                    if !first {
                        return Err(failure);
                    }
                    first = false;
                    live = self.connection().await?;
                }
            }
        }
    }

    async fn exchange(&self, live: &Live, ask: Ask<'_>) -> Result<Value, Failure> {
        let epoch = live.epoch;
        let _present = live.conn.crowd.enter();
        let mut driver = live.conn.driver.clone();
        let sent = async {
            match ask {
                Ask::One(cmd) => driver.send_packed_command(cmd).await,
                Ask::Flight(flight) => {
                    let count = flight.len();
                    driver.send_packed_commands(flight, 0, count).await.map(Value::Array)
                }
            }
        };
        let answer = if self.route.may_move() {
            tokio::select! {
                biased;
                answer = sent => answer,
                // The primary has moved: whatever the old one still answers is forgotten with it.
                () = self.route.moved(epoch) => Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into()),
            }
        } else {
            sent.await
        };
        match answer.map_err(Failure::Connection)? {
            Value::ServerError(error) => Err(Failure::Server(error)),
            Value::Array(answers) if matches!(ask, Ask::Flight(_)) => {
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

    fn current(&self) -> Option<Arc<Live>> {
        let live = self.live.read();
        live.as_ref().filter(|live| live.epoch == self.route.epoch()).cloned()
    }

    /// Takes a connection out of use; calls that wait on it go on waiting.
    fn forget(&self, gone: &Arc<Live>) {
        self.live.write().take_if(|live| Arc::ptr_eq(live, gone));
    }

    /// The connection in use, or what comes of the attempt to make one.
    async fn connection(&self) -> Result<Arc<Live>> {
        let mut outcome = {
            if let Some(live) = self.current() {
                return Ok(live);
            }
            let mut dial = self.dial.lock();
            let running = dial.as_ref().filter(|dial| dial.is_running());
            // One that ended a moment ago has left its connection behind.
            match (running, self.current()) {
                (Some(running), _) => running.outcome.clone(),
                (None, Some(live)) => return Ok(live),
                (None, None) => dial.insert(self.dial()).outcome.clone(),
            }
        };
        let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        ended
            .ok_or_else(|| {
                Error::unavailable("the runtime ended while the store connected; call again")
            })?
            .map_err(|error| {
                Error::new(error.kind(), format!("no connection: {error}")).because(error)
            })
    }

    fn dial(&self) -> Dial {
        let (to, outcome) = watch::channel(None);
        let (route, purpose, slot) =
            (Arc::clone(&self.route), self.purpose.clone(), Arc::clone(&self.live));
        let task = tokio::spawn(async move {
            let opened = route.open(&purpose).await;
            let outcome =
                opened.map(|(conn, epoch)| Arc::new(Live { conn, epoch })).map_err(Arc::new);
            if let Ok(live) = &outcome {
                *slot.write() = Some(Arc::clone(live));
            }
            to.send_replace(Some(outcome));
        });
        Dial { outcome, _task: Task(task.abort_handle()) }
    }
}

impl Dial {
    fn is_running(&self) -> bool {
        self.outcome.has_changed().is_ok() && self.outcome.borrow().is_none()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("is_connected", &self.live.read().is_some())
            .finish_non_exhaustive()
    }
}
