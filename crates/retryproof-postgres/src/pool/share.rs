// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Share`] holds the connections of one priority; a [`PooledConnection`] is a connection in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::connection::hosts::HostSelector;

/// Servers and firewalls drop silent connections. A connection that is older than `MAX_AGE`, or has
/// been idle for longer than `MAX_IDLE`, is therefore not used again.
const MAX_AGE: Duration = Duration::from_secs(1_800);
const MAX_IDLE: Duration = Duration::from_secs(300);
/// How long a reserved connection can be idle. After that, it is used before a normal connection.
const RECENT_USE: Duration = Duration::from_secs(60);
/// How long an abandoned statement may take to finish before its connection is closed.
const RECOVERY_TIMEOUT: Duration = Duration::from_millis(250);

/// The connections of one priority.
pub(super) struct Share {
    pub(super) size: usize,
    pub(super) permits: Arc<Semaphore>,
    idle: Mutex<Vec<IdleConnection>>,
    /// How many connections are open, whether idle or in use.
    pub(super) open: AtomicUsize,
    /// Notified when a connection is returned. A call that waits for a new connection can then use
    /// the returned one.
    pub(super) returned: Notify,
    hosts: Arc<HostSelector>,
}

/// When a connection was opened, and its epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) opened_at: Instant,
    pub(crate) epoch: u64,
}

pub(super) struct IdleConnection {
    pub(super) conn: PgConnection,
    pub(super) origin: Origin,
    idle_since: Instant,
}

impl Share {
    pub(super) fn new(connections: usize, hosts: &Arc<HostSelector>) -> Arc<Self> {
        Arc::new(Self {
            size: connections,
            permits: Arc::new(Semaphore::new(connections)),
            idle: Mutex::default(),
            open: AtomicUsize::new(0),
            returned: Notify::new(),
            hosts: Arc::clone(hosts),
        })
    }

    /// Whether the share can lend a connection to the other priority. After the loan, at least half
    /// of the share's connections must still be idle.
    pub(super) fn is_mostly_idle(&self) -> bool {
        let free = self.permits.available_permits();
        free > 1
            && 2 * (free - 1) >= self.size
            && self.idle.lock().last().is_some_and(|idle| !self.is_stale(idle))
    }

    /// Whether the connection that [`pop`](Self::pop) returns next was used recently.
    pub(super) fn was_used_recently(&self) -> bool {
        self.idle.lock().last().is_some_and(|idle| idle.idle_since.elapsed() < RECENT_USE)
    }

    /// Takes the connection that was used most recently, so that the others can go stale.
    pub(super) fn pop(&self) -> Option<IdleConnection> {
        let mut idle = self.idle.lock();
        let stale = idle.iter().take_while(|idle| self.is_stale(idle)).count();
        self.close(idle.drain(..stale));
        let mut last = idle.pop();
        while let Some(old) = last.take_if(|idle| self.is_stale(idle)) {
            self.close(std::iter::once(old));
            last = idle.pop();
        }
        last
    }

    pub(super) fn lend(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        conn: PgConnection,
        origin: Origin,
        was_idle: bool,
    ) -> PooledConnection {
        PooledConnection {
            conn: Some(conn),
            origin,
            was_idle,
            is_reusable: false,
            share: Arc::clone(self),
            permit: Some(permit),
        }
    }

    fn push(&self, conn: PgConnection, origin: Origin) {
        self.idle.lock().push(IdleConnection { conn, origin, idle_since: Instant::now() });
        self.returned.notify_one();
    }

    pub(super) fn invalidate_idle(&self) {
        let all = std::mem::take(&mut *self.idle.lock());
        self.close(all);
    }

    /// Whether a connection is too old, or was opened before the primary moved.
    fn is_stale(&self, idle: &IdleConnection) -> bool {
        idle.origin.opened_at.elapsed() > MAX_AGE
            || idle.idle_since.elapsed() > MAX_IDLE
            || idle.origin.epoch != self.hosts.epoch()
    }

    fn close(&self, connections: impl IntoIterator<Item = IdleConnection>) {
        self.open.fetch_sub(connections.into_iter().count(), Ordering::AcqRel);
    }
}

/// A connection in use. [`release`](Self::release) returns it. If a connection is dropped in the
/// middle of a statement, the statement's answer is first read to its end, so that no other call
/// receives it. If reading the answer takes too long, the connection is closed.
pub(crate) struct PooledConnection {
    pub(crate) conn: Option<PgConnection>,
    pub(crate) origin: Origin,
    /// Whether the connection was idle before this call. If so, it may have died unnoticed.
    pub(crate) was_idle: bool,
    pub(super) is_reusable: bool,
    share: Arc<Share>,
    permit: Option<OwnedSemaphorePermit>,
}

impl PooledConnection {
    /// Makes the connection available to the next call. Call this after the statement has ended.
    pub(crate) fn release(mut self) {
        self.is_reusable = true;
    }

    /// Closes the connection.
    pub(crate) fn discard(mut self) {
        if self.conn.take().is_some() {
            self.share.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        let (share, origin) = (Arc::clone(&self.share), self.origin);
        let permit = self.permit.take();
        if self.is_reusable {
            // Return the connection before its permit, so that the next caller with the permit
            // finds the connection idle and does not open another.
            share.push(conn, origin);
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            share.open.fetch_sub(1, Ordering::AcqRel);
            return;
        };
        runtime.spawn(async move {
            match timeout(RECOVERY_TIMEOUT, conn.ping()).await {
                Ok(Ok(())) => share.push(conn, origin),
                _ => {
                    share.hosts.doubt(origin.epoch);
                    share.open.fetch_sub(1, Ordering::AcqRel);
                }
            }
            drop(permit);
        });
    }
}
