// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Pool`]: the store's own connections.
//!
//! The store does not use the driver's pool, for two reasons. The driver's pool pings each returned
//! connection, which would cost every operation a second round trip (ACQ-8). It also reuses the
//! connection of a dropped call, even if part of the statement's result is unread. This pool closes
//! such a connection.
//!
//! Acquires, peeks and purges use shared permits. Heartbeats, completions and releases can use
//! reserved permits as well as shared ones, so holders keep their leases in a rush of new calls
//! (RUN-2).

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Error;
use retryproof_store_kit::{CallPriority, jitter};
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::Source;
use crate::connection::{Connection, not_in_time};
use crate::error::{Failure, Recovery};

/// Servers and firewalls drop silent connections. The pool therefore does not reuse a connection
/// that has been idle for longer than `MAX_IDLE`. A connection older than `MAX_AGE` serves only
/// holders. The maximum age varies by up to a fifth, so connections that were opened together do
/// not all expire together.
const MAX_AGE: Duration = Duration::from_secs(1_800);
const MAX_IDLE: Duration = Duration::from_secs(300);
/// How often a call that waits for a returned connection checks that the pool still has an open
/// connection.
const RETURN_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Pool {
    source: Source,
    connect_timeout: Duration,
    shared: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    max_connections: usize,
    idle: Arc<IdleConnections>,
}

/// The connections that no call is using.
#[derive(Default)]
struct IdleConnections {
    /// A stack, so that surplus connections stay at the bottom and expire.
    stack: Mutex<Vec<IdleConnection>>,
    /// The epoch increases when a call finds a dead connection or a read-only server. Connections
    /// of an older epoch are not used again.
    epoch: AtomicU64,
    /// Notified when an open connection is returned. A call that waits for a new connection can
    /// then use the returned one.
    returned: Notify,
    /// Counts the open connections. Each open connection, idle or in use, holds a clone of this
    /// `Arc`.
    open: Arc<()>,
}

struct IdleConnection {
    connection: Connection,
    epoch: u64,
    retires_at: Instant,
    idle_since: Instant,
    open: Arc<()>,
}

impl IdleConnection {
    /// Whether the connection has been idle for too long, or is too old for a call of the given
    /// priority. A holder uses a connection of any age, because the holder's lease could end before
    /// a new connection is open (RUN-1).
    fn is_stale(&self, now: Instant, priority: CallPriority) -> bool {
        now.saturating_duration_since(self.idle_since) > MAX_IDLE
            || (priority == CallPriority::Normal && now > self.retires_at)
    }

    fn lend(
        self,
        idle: Arc<IdleConnections>,
        permit: OwnedSemaphorePermit,
        was_idle: bool,
    ) -> PooledConnection {
        let Self { connection, epoch, retires_at, open, .. } = self;
        PooledConnection { connection, was_idle, retires_at, idle, epoch, open, _permit: permit }
    }
}

/// A connection in use. If it is dropped without [`release`](Self::release), it is closed.
pub(crate) struct PooledConnection {
    pub(crate) connection: Connection,
    /// Whether the connection was idle before this call, and may have died unnoticed.
    pub(crate) was_idle: bool,
    retires_at: Instant,
    idle: Arc<IdleConnections>,
    epoch: u64,
    open: Arc<()>,
    _permit: OwnedSemaphorePermit,
}

/// A connection on its way to the call that requested it. If that call has ended, the connection
/// becomes idle.
struct Unclaimed(Option<PooledConnection>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.release();
        }
    }
}

impl Pool {
    /// Creates a pool of at most `max_connections` connections, of which `reserved` serve only
    /// holders. `connect_timeout` limits how long opening a connection may take.
    pub(crate) fn new(
        source: Source,
        max_connections: usize,
        reserved: usize,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            source,
            connect_timeout,
            shared: Arc::new(Semaphore::new(max_connections.saturating_sub(reserved))),
            reserved: Arc::new(Semaphore::new(reserved)),
            max_connections,
            idle: Arc::default(),
        }
    }

    /// Adds the connection that `connect()` has checked.
    pub(crate) fn add(&self, connection: Connection) {
        let epoch = self.idle.epoch.load(Ordering::Acquire);
        self.idle.stack.lock().push(self.idle.opened(connection, epoch));
    }

    /// Waits for a permit, then takes an idle connection or opens one.
    pub(crate) async fn acquire(
        &self,
        priority: CallPriority,
        deadline: Instant,
    ) -> Result<PooledConnection, Failure> {
        let permit = self.acquire_permit(priority, deadline).await?;
        match self.idle.pop(priority) {
            Some(found) => Ok(found.lend(Arc::clone(&self.idle), permit, true)),
            None => self.open(priority, permit, deadline).await,
        }
    }

    /// Waits for a new connection, or for a connection that another call returns earlier. A
    /// separate task opens the new connection. If the call ends first, the task continues, and the
    /// new connection becomes idle. A later heartbeat can then use the connection, even if opening
    /// it took longer than a single heartbeat waits (RUN-1).
    async fn open(
        &self,
        priority: CallPriority,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<PooledConnection, Failure> {
        let options = self.source.options();
        let connect_timeout = self.connect_timeout;
        let (idle, epoch) = (Arc::clone(&self.idle), self.idle.epoch.load(Ordering::Acquire));
        let (mut to, opened) = oneshot::channel();
        tokio::spawn(async move {
            let mut opening = pin!(timeout(connect_timeout, Connection::open(&options)));
            let returned = tokio::select! {
                opened = &mut opening => Err(opened),
                returned = idle.returned(priority) => Ok(returned),
                // The call has ended. Finish opening the connection, and leave returned connections
                // to the calls that are still waiting.
                () = to.closed() => Err(opening.await),
            };
            let (found, was_idle) = match returned {
                Ok(returned) => (Ok(returned), true),
                Err(Ok(Ok(connection))) => (Ok(idle.opened(connection, epoch)), false),
                Err(Ok(Err(failure))) => (Err(failure), false),
                Err(Err(_)) => (Err(not_in_time()), false),
            };
            let answer = match found {
                Ok(found) => Ok(Unclaimed(Some(found.lend(idle, permit, was_idle)))),
                Err(failure) => Err((failure, permit)),
            };
            drop(to.send(answer));
        });
        let ended = || {
            Error::unavailable("the runtime shut down while the store was connecting; try again")
        };
        let answer = timeout_at(deadline, opened).await.map_err(|_| not_in_time())?;
        match answer.map_err(|_| ended())? {
            Ok(mut unclaimed) => unclaimed.0.take().ok_or_else(|| ended().into()),
            Err((failure, permit)) if failure.recovery == Recovery::AwaitReturned => {
                match timeout_at(deadline, self.idle.returned_if_any(priority)).await {
                    Ok(Some(found)) => Ok(found.lend(Arc::clone(&self.idle), permit, true)),
                    _ => Err(failure),
                }
            }
            Err((failure, _)) => Err(failure),
        }
    }

    async fn acquire_permit(
        &self,
        priority: CallPriority,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let (shared, reserved) = (|| Arc::clone(&self.shared), || Arc::clone(&self.reserved));
        let free = match priority {
            CallPriority::Normal => shared().try_acquire_owned(),
            CallPriority::Holder => {
                reserved().try_acquire_owned().or_else(|_| shared().try_acquire_owned())
            }
        };
        if let Ok(permit) = free {
            return Ok(permit);
        }
        let wait = async {
            match priority {
                CallPriority::Normal => shared().acquire_owned().await,
                CallPriority::Holder => self.acquire_any_permit().await,
            }
        };
        match timeout_at(deadline, wait).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::unavailable(
                "none of the store's connections became free in time; raise `max-connections`, or \
                 find out why the server is slow",
            )
            .with("max_connections", self.max_connections)
            .into()),
        }
    }

    /// Waits for the first permit that becomes free, reserved or shared.
    async fn acquire_any_permit(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        let of = |permits: &Arc<Semaphore>| Arc::clone(permits).acquire_owned();
        let (mut reserved, mut shared) = (pin!(of(&self.reserved)), pin!(of(&self.shared)));
        poll_fn(|cx| match reserved.as_mut().poll(cx) {
            Poll::Ready(permit) => Poll::Ready(permit),
            Poll::Pending => shared.as_mut().poll(cx),
        })
        .await
    }
}

impl IdleConnections {
    /// Wraps a connection that has just been opened.
    fn opened(&self, connection: Connection, epoch: u64) -> IdleConnection {
        let (now, open) = (Instant::now(), Arc::clone(&self.open));
        let retires_at = now + jitter(MAX_AGE);
        IdleConnection { connection, epoch, retires_at, idle_since: now, open }
    }

    fn pop(&self, priority: CallPriority) -> Option<IdleConnection> {
        let (epoch, now) = (self.epoch.load(Ordering::Acquire), Instant::now());
        let mut stack = self.stack.lock();
        std::iter::from_fn(|| stack.pop())
            .find(|idle| idle.epoch == epoch && !idle.is_stale(now, priority))
    }

    /// Waits for another call to return a connection, and takes that connection.
    async fn returned(&self, priority: CallPriority) -> IdleConnection {
        loop {
            let returned = self.returned.notified();
            if let Some(idle) = self.pop(priority) {
                return idle;
            }
            returned.await;
        }
    }

    /// Like [`returned`](Self::returned), but returns `None` as soon as the pool has no open
    /// connection.
    async fn returned_if_any(&self, priority: CallPriority) -> Option<IdleConnection> {
        while Arc::strong_count(&self.open) > 1 {
            if let Ok(found) = timeout(RETURN_POLL_INTERVAL, self.returned(priority)).await {
                return Some(found);
            }
        }
        None
    }
}

impl PooledConnection {
    /// Closes this connection and all idle ones of the same or an older epoch, because the server
    /// is gone or is no longer the primary.
    pub(crate) fn invalidate_idle(self) {
        let next = self.epoch + 1;
        let Self { idle, epoch, .. } = &self;
        if idle.epoch.compare_exchange(*epoch, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let old = std::mem::take(&mut *idle.stack.lock());
            drop(old);
        }
    }

    /// Makes the connection idle again. Call this after the statement's result has been read to the
    /// end.
    pub(crate) fn release(self) {
        let Self { connection, retires_at, idle, epoch, open, _permit, .. } = self;
        let now = Instant::now();
        let mut stack = idle.stack.lock();
        if idle.epoch.load(Ordering::Acquire) == epoch {
            stack.push(IdleConnection { connection, epoch, retires_at, idle_since: now, open });
        }
        // The connection at the bottom of the stack has been idle the longest. It is enough to
        // close one expired connection per call.
        let expired = match stack.first() {
            Some(longest) if longest.is_stale(now, CallPriority::Holder) => Some(stack.remove(0)),
            _ => None,
        };
        drop(stack);
        drop(expired);
        idle.returned.notify_one();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("max_connections", &self.max_connections)
            .field("idle", &self.idle.stack.lock().len())
            .finish_non_exhaustive()
    }
}
