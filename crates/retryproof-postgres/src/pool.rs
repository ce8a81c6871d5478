// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Pool`] chooses the connection for each operation. The store has its own connections, and
//! reserves some of them for lease holders.
//!
//! The store does not use the driver's pool, for two reasons. The driver's pool tests each returned
//! connection, which would cost every operation a second round trip. It also cannot keep acquires
//! from taking the connections that heartbeats need (RUN-2).

mod share;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::config::Pooler;
use retryproof_core::{Error, Result};
use retryproof_store_kit::{CallPriority, while_running};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::PostgresConfig;
use crate::connection::hosts::{HostSelector, OpenedConnection};
use crate::connection::{are_direct, open_with};
use crate::error::{Failure, classify, is_connection_limit};
use crate::schema;

pub(crate) use share::PooledConnection;
use share::{IdleConnection, Origin, Share};

/// How often to check for a returned connection while a new connection is slow to open.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How many times to retry while the server accepts no more connections and the share has no open
/// connection.
const MAX_REFUSALS: u32 = 5;

pub(crate) struct Pool {
    hosts: Arc<HostSelector>,
    connect_timeout: Duration,
    /// Whether each connection keeps its server process. `false` behind a pooler that can run each
    /// transaction on a different server connection.
    direct: AtomicBool,
    /// The settings that each new connection gets.
    settings: Mutex<Option<Arc<str>>>,
    normal: Arc<Share>,
    reserved: Arc<Share>,
}

impl Pool {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        let hosts = HostSelector::new(config);
        // One or two reserved connections are enough: completions share statements, and holders
        // also use normal connections.
        let reserved = if config.connections < 4 { 1 } else { 2 };
        Self {
            connect_timeout: config.connect_timeout,
            direct: AtomicBool::new(false),
            settings: Mutex::default(),
            normal: Share::new(config.connections - reserved, &hosts),
            reserved: Share::new(reserved, &hosts),
            hosts,
        }
    }

    pub(crate) fn hosts(&self) -> &Arc<HostSelector> {
        &self.hosts
    }

    /// Returns how many connections serve normal calls.
    pub(crate) fn normal_size(&self) -> usize {
        self.normal.size
    }

    /// Whether each connection keeps its server process. If so, statements can be prepared, and
    /// notifications arrive.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    pub(crate) fn set_direct(&self, direct: bool, settings: Option<Arc<str>>) {
        self.direct.store(direct, Ordering::Relaxed);
        *self.settings.lock() = settings;
        self.invalidate_idle();
    }

    pub(crate) fn invalidate_idle(&self) {
        self.normal.invalidate_idle();
        self.reserved.invalidate_idle();
    }

    /// Checks the server and the schema, and finds out whether connections are direct.
    pub(crate) async fn check(&self, config: &PostgresConfig, table: &str) -> Result<()> {
        let connect = || async {
            match timeout(self.connect_timeout, self.hosts.connect()).await {
                Ok(Ok(opened)) => Ok(opened.conn),
                Ok(Err(failure)) => Err(failure.at_connect()),
                Err(_) => Err(PoolError::TooSlow.into_error(self)),
            }
        };
        let mut conn = connect().await?;
        let secret = config.identity_secret.as_ref();
        let server = schema::check(&mut conn, table, secret, config.dialect).await?;
        let direct = match config.pooler {
            Pooler::Session => true,
            Pooler::Transaction => false,
            Pooler::Detect => {
                let detected = are_direct(&mut conn, &mut connect().await?).await;
                detected.map_err(|error| config.undetected(error))?
            }
        };
        // Send no settings through a pooler, because the settings would reach the connections of
        // other clients. Behind a pooler, the settings are not needed, because each statement is
        // planned when it runs.
        self.set_direct(direct, direct.then_some(server.settings));
        Ok(())
    }

    /// Opens the reserved connections at start-up, because the server might refuse them later.
    pub(crate) async fn open_reserved(&self, deadline: Instant) -> Result<()> {
        let mut opened = Vec::new();
        while let Ok(permit) = Arc::clone(&self.reserved.permits).try_acquire_owned() {
            let connection = self.connect(&self.reserved, permit, deadline).await;
            opened.push(connection.map_err(|error| error.into_error(self))?);
        }
        opened.into_iter().for_each(PooledConnection::release);
        Ok(())
    }

    /// Takes an idle connection for one operation, or opens a new one.
    pub(crate) async fn acquire(
        &self,
        priority: CallPriority,
        deadline: Instant,
    ) -> Result<PooledConnection, PoolError> {
        let granted = match self.try_acquire_permit(priority) {
            None => timeout_at(deadline, self.acquire_permit(priority)).await.ok().flatten(),
            granted => granted,
        };
        let (share, permit) = granted.ok_or(PoolError::AllInUse)?;
        match share.pop() {
            Some(IdleConnection { conn, origin, .. }) => Ok(share.lend(permit, conn, origin, true)),
            None => self.connect(share, permit, deadline).await,
        }
    }

    /// Takes a permit if one is free now. While most normal connections are idle, a holder tries
    /// those first, because their server processes have just read the record. Otherwise, or if no
    /// reserved connection was used recently, a holder tries the reserved connections first.
    /// Reserved connections must be used now and then: a connection that was idle for too long may
    /// be closed when a holder needs it, and the server may refuse a new connection.
    fn try_acquire_permit(
        &self,
        priority: CallPriority,
    ) -> Option<(&Arc<Share>, OwnedSemaphorePermit)> {
        let shares: &[&Arc<Share>] = match priority {
            CallPriority::Normal => &[&self.normal],
            CallPriority::Holder
                if self.reserved.was_used_recently() && self.normal.is_mostly_idle() =>
            {
                &[&self.normal, &self.reserved]
            }
            CallPriority::Holder => &[&self.reserved, &self.normal],
        };
        shares.iter().find_map(|&share| {
            let permit = Arc::clone(&share.permits).try_acquire_owned().ok()?;
            Some((share, permit))
        })
    }

    /// Waits until a permit is free. A normal call waits for a normal permit, and a holder's call
    /// for a permit of either kind.
    async fn acquire_permit(
        &self,
        priority: CallPriority,
    ) -> Option<(&Arc<Share>, OwnedSemaphorePermit)> {
        let of = |share: &Arc<Share>| Arc::clone(&share.permits);
        if priority == CallPriority::Normal {
            return Some((&self.normal, of(&self.normal).acquire_owned().await.ok()?));
        }
        let (mut reserved, mut normal) =
            (pin!(of(&self.reserved).acquire_owned()), pin!(of(&self.normal).acquire_owned()));
        poll_fn(|cx| {
            if let Poll::Ready(permit) = reserved.as_mut().poll(cx) {
                return Poll::Ready(permit.ok().map(|permit| (&self.reserved, permit)));
            }
            normal.as_mut().poll(cx).map(|permit| Some((&self.normal, permit.ok()?)))
        })
        .await
    }

    /// Opens a new connection in a separate task. If the operation ends first, the task continues,
    /// and the connection becomes idle in the share, where a later heartbeat can use it (RUN-1).
    async fn connect(
        &self,
        share: &Arc<Share>,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<PooledConnection, PoolError> {
        let (hosts, settings) = (Arc::clone(&self.hosts), self.settings.lock().clone());
        let (share, connect_timeout) = (Arc::clone(share), self.connect_timeout);
        let attempt = ConnectAttempt { hosts, settings, connect_timeout, share, deadline };
        let opened = tokio::spawn(attempt.run(permit)).await;
        let mut connection = opened.map_err(|_| PoolError::TooSlow)??;
        connection.is_reusable = false;
        Ok(connection)
    }

    fn free_permits(&self) -> usize {
        self.normal.permits.available_permits() + self.reserved.permits.available_permits()
    }
}

/// An attempt to open one more connection for a share.
struct ConnectAttempt {
    hosts: Arc<HostSelector>,
    settings: Option<Arc<str>>,
    connect_timeout: Duration,
    share: Arc<Share>,
    deadline: Instant,
}

impl ConnectAttempt {
    /// Returns a new connection. If the server is slow or accepts no more connections, the attempt
    /// instead returns a connection that another call has released. If the result is dropped
    /// unused, the connection becomes idle in the share.
    async fn run(self, permit: OwnedSemaphorePermit) -> Result<PooledConnection, PoolError> {
        let Self { share, deadline, .. } = &self;
        let lend = |conn, origin, was_idle| {
            let mut connection = share.lend(permit, conn, origin, was_idle);
            connection.is_reusable = true;
            connection
        };
        let mut opening = pin!(self.open());
        let (mut refused, mut refusals) = (None, 0);
        loop {
            let round_end = (*deadline).min(Instant::now() + RETURN_POLL_INTERVAL);
            if refused.is_some() {
                let _ = timeout_at(round_end, share.returned.notified()).await;
            } else {
                match timeout_at(round_end, opening.as_mut()).await {
                    Ok(Ok(OpenedConnection { conn, epoch, .. })) => {
                        share.open.fetch_add(1, Ordering::AcqRel);
                        return Ok(lend(conn, Origin { opened_at: Instant::now(), epoch }, false));
                    }
                    Ok(Err(error)) if error.is_about_load() => refused = Some(error),
                    Ok(Err(error)) => return Err(error),
                    Err(_) => {}
                }
            }
            if let Some(IdleConnection { conn, origin, .. }) = share.pop() {
                return Ok(lend(conn, origin, true));
            }
            let none_can_return = refused.is_some() && share.open.load(Ordering::Acquire) == 0;
            if round_end == *deadline || (none_can_return && refusals == MAX_REFUSALS) {
                return Err(refused.unwrap_or(PoolError::TooSlow));
            }
            if none_can_return {
                // Try again, because the server might not have noticed yet that a connection was
                // closed a moment ago.
                let pause_end = (*deadline).min(Instant::now() + RETURN_POLL_INTERVAL);
                tokio::time::sleep_until(pause_end).await;
                refusals += 1;
                refused = None;
                opening.set(self.open());
            }
        }
    }

    async fn open(&self) -> Result<OpenedConnection, PoolError> {
        let opening = open_with(&self.hosts, self.settings.as_ref());
        match timeout(self.connect_timeout, opening).await {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(Failure::Driver(error))) => Err(PoolError::Driver(error)),
            Ok(Err(Failure::Store(error))) => Err(PoolError::NoPrimary(error)),
            Err(_) => Err(PoolError::TooSlow),
        }
    }
}

/// Why an operation got no connection.
pub(crate) enum PoolError {
    AllInUse,
    /// The server did not open a connection in time.
    TooSlow,
    Driver(sqlx_core::Error),
    /// None of several hosts can be used.
    NoPrimary(Error),
}

impl PoolError {
    /// Whether the server's load is the cause of the error. If so, the call can wait for a
    /// connection that another call returns.
    fn is_about_load(&self) -> bool {
        match self {
            Self::TooSlow => true,
            Self::Driver(error) => is_connection_limit(error),
            Self::AllInUse | Self::NoPrimary(_) => false,
        }
    }

    pub(crate) fn into_error(self, pool: &Pool) -> Error {
        match self {
            Self::AllInUse => Error::unavailable(
                "all of the store's connections are in use; raise `max-connections`, or find out \
                 what keeps the server busy",
            )
            .with("free", pool.free_permits()),
            Self::TooSlow => Error::unavailable(
                "the server did not open a connection in time; check whether it is overloaded",
            ),
            Self::Driver(error) => classify(&error),
            Self::NoPrimary(error) => while_running(error),
        }
    }
}
