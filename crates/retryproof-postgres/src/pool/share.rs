// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Share`]: the connections of one lane, and [`Held`], one of them in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx_core::connection::Connection as _;
use sqlx_postgres::PgConnection;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// A connection is not used again when it is older, or has been idle for longer.
const MOST_AGE: Duration = Duration::from_secs(1_800);
const MOST_IDLE: Duration = Duration::from_secs(600);
/// The beats' own are used again when they have been idle for longer.
const FRESH: Duration = Duration::from_secs(60);
/// How long an abandoned statement may take to end before its connection is thrown away.
const TO_END: Duration = Duration::from_millis(250);

/// The connections of one lane.
pub(super) struct Share {
    pub(super) size: usize,
    pub(super) permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    pub(super) open: AtomicUsize,
    /// Tells one of those whom the server refused a connection that another has come back.
    pub(super) returned: Notify,
}

pub(super) struct Idle {
    pub(super) conn: PgConnection,
    pub(super) born: Instant,
    since: Instant,
}

impl Share {
    pub(super) fn new(connections: usize) -> Arc<Self> {
        Arc::new(Self {
            size: connections,
            permits: Arc::new(Semaphore::new(connections)),
            idle: Mutex::default(),
            open: AtomicUsize::new(0),
            returned: Notify::new(),
        })
    }

    /// Whether one may be lent: most are idle, and would be without it.
    pub(super) fn is_mostly_idle(&self) -> bool {
        let free = self.permits.available_permits();
        free > 1
            && 2 * (free - 1) >= self.size
            && self.idle.lock().last().is_some_and(|idle| !idle.is_stale())
    }

    /// Whether the next one was used a moment ago.
    pub(super) fn is_fresh(&self) -> bool {
        self.idle.lock().last().is_some_and(|idle| idle.since.elapsed() < FRESH)
    }

    /// The one used last, so that the others may grow old.
    pub(super) fn pop(&self) -> Option<Idle> {
        let mut idle = self.idle.lock();
        let stale = idle.iter().take_while(|idle| idle.is_stale()).count();
        self.forget(idle.drain(..stale));
        let mut last = idle.pop();
        while let Some(old) = last.take_if(|idle| idle.is_stale()) {
            self.forget(std::iter::once(old));
            last = idle.pop();
        }
        last
    }

    pub(super) fn held(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        conn: PgConnection,
        born: Instant,
        reused: bool,
    ) -> Held {
        Held {
            conn: Some(conn),
            born,
            reused,
            sound: false,
            share: Arc::clone(self),
            permit: Some(permit),
        }
    }

    pub(super) fn push(&self, conn: PgConnection, born: Instant) {
        self.idle.lock().push(Idle { conn, born, since: Instant::now() });
        self.returned.notify_one();
    }

    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.idle.lock());
        self.forget(all);
    }

    pub(super) fn forget(&self, gone: impl IntoIterator<Item = Idle>) {
        self.open.fetch_sub(gone.into_iter().count(), Ordering::AcqRel);
    }
}

impl Idle {
    pub(super) fn is_stale(&self) -> bool {
        self.born.elapsed() > MOST_AGE || self.since.elapsed() > MOST_IDLE
    }
}

/// A connection in use. It goes back as it is when it is sound; dropped in the middle of a
/// statement, the answer is read to its end first, so that nobody gets another's.
pub(super) struct Held {
    pub(super) conn: Option<PgConnection>,
    pub(super) born: Instant,
    /// It was idle before: that it is dead may be old news.
    pub(super) reused: bool,
    pub(super) sound: bool,
    share: Arc<Share>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Held {
    pub(super) fn discard(&mut self) {
        if self.conn.take().is_some() {
            self.share.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        let (share, born, permit) = (Arc::clone(&self.share), self.born, self.permit.take());
        if self.sound {
            // Back before its permit is.
            share.push(conn, born);
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            share.open.fetch_sub(1, Ordering::AcqRel);
            return;
        };
        runtime.spawn(async move {
            match timeout(TO_END, conn.ping()).await {
                Ok(Ok(())) => share.push(conn, born),
                _ => {
                    share.open.fetch_sub(1, Ordering::AcqRel);
                }
            }
            drop(permit);
        });
    }
}
