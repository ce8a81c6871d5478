// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Link`]: one shared connection to the primary, made anew when it fails, and calls over it, sent once more where that helps.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use redis::{Cmd, Pipeline, Value};
use retryproof_core::{Error, ErrorKind, Result};
use tokio::sync::Mutex;

use crate::error::{Failure, Remedy};
use crate::route::Route;
use crate::server::{Conn, Purpose};

/// What is sent in one flight.
#[derive(Clone, Copy)]
pub(crate) enum Ask<'a> {
    One(&'a Cmd),
    /// Several commands; their answers come as one array. The first error among them is the flight's.
    Flight(&'a Pipeline),
}

/// A connection that all callers share.
pub(crate) struct Link {
    route: Arc<Route>,
    purpose: Purpose,
    live: RwLock<Option<Arc<Live>>>,
    /// Held by whoever dials; what became of the last attempt.
    dialing: Mutex<Option<(ErrorKind, Cow<'static, str>)>>,
    /// Attempts that have ended.
    dialed: AtomicU64,
}

struct Live {
    conn: Conn,
    /// Which of the link's connections it is.
    serial: u64,
    /// How often the primary had moved when it was made.
    epoch: u64,
}

impl Link {
    pub(crate) fn new(route: Arc<Route>, purpose: Purpose) -> Self {
        let (live, dialing) = (RwLock::new(None), Mutex::new(None));
        Self { route, purpose, live, dialing, dialed: AtomicU64::new(0) }
    }

    /// Makes the connection, if there is none.
    pub(crate) async fn open(&self) -> Result<()> {
        self.connection().await.map(drop)
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
                    self.forget(live.serial);
                    return Err(failure);
                }
                Remedy::Resend => {
                    self.forget(live.serial);
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
    fn forget(&self, serial: u64) {
        let mut live = self.live.write();
        if live.as_ref().is_some_and(|live| live.serial == serial) {
            *live = None;
        }
    }

    /// The connection in use, or a new one. One caller dials, the others share what becomes of it.
    async fn connection(&self) -> Result<Arc<Live>> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let before = self.dialed.load(Ordering::Acquire);
        let mut last = self.dialing.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if self.dialed.load(Ordering::Acquire) != before
            && let Some((kind, message)) = &*last
        {
            return Err(Error::new(*kind, message.clone()));
        }
        let opened = self.route.open(&self.purpose).await;
        let serial = self.dialed.fetch_add(1, Ordering::AcqRel) + 1;
        match opened {
            Ok((conn, epoch)) => {
                let live = Arc::new(Live { conn, serial, epoch });
                *last = None;
                *self.live.write() = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(error) => {
                *last = Some((error.kind(), Cow::Owned(format!("no connection: {error}"))));
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("is_connected", &self.live.read().is_some()).finish_non_exhaustive()
    }
}
