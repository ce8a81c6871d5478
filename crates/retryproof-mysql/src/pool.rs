// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Pool`]: the store's own connections.
//!
//! Not the driver's pool, for two reasons. That one sends a ping whenever a connection comes back, a second round trip for each
//! operation (ACQ-8). And it lets a connection come back in the middle of an answer; here a call that was dropped throws its connection away.
//!
//! Acquires, looks and purges share one set of places. Beats, completions and releases may use those and have some of their own, so that a
//! storm of new callers does not take the leases of the running ones (RUN-2).

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Error;
use sqlx_mysql::MySqlConnectOptions;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::error::{Class, Trouble};
use crate::session::Session;

/// A connection that nobody wanted for this long is closed: servers and firewalls drop silent ones.
const IDLE_MOST: Duration = Duration::from_secs(300);

/// Whose call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A caller that holds nothing yet.
    Caller,
    /// A holder: beat, completion, release.
    Holder,
}

pub(crate) struct Pool {
    options: MySqlConnectOptions,
    patience: Duration,
    shared: Semaphore,
    reserved: Semaphore,
    places: usize,
    /// The last one back is the first one out, so that those nobody needs grow old.
    idle: Mutex<Vec<Idle>>,
    /// Raised when connections are found dead: older ones are not believed any more.
    epoch: AtomicU64,
}

struct Idle {
    session: Session,
    epoch: u64,
    since: Instant,
}

/// A connection on loan. Dropped without [`give_back`](Self::give_back), the connection is closed.
pub(crate) struct Loan<'p> {
    pub(crate) session: Session,
    /// Whether it has served before: such a one may have died unnoticed.
    pub(crate) reused: bool,
    pool: &'p Pool,
    epoch: u64,
    _place: SemaphorePermit<'p>,
}

impl Pool {
    /// A pool of `places` connections, of which `reserved` are for holders alone. `patience` bounds the wait for a place and the opening of a
    /// connection, each.
    pub(crate) fn new(
        options: MySqlConnectOptions,
        places: usize,
        reserved: usize,
        patience: Duration,
    ) -> Self {
        Self {
            options,
            patience,
            shared: Semaphore::new(places.saturating_sub(reserved)),
            reserved: Semaphore::new(reserved),
            places,
            idle: Mutex::default(),
            epoch: AtomicU64::new(0),
        }
    }

    /// Waits for a place and gives an idle connection, or opens one.
    pub(crate) async fn lend(&self, lane: Lane) -> Result<Loan<'_>, Trouble> {
        let place = self.place(lane).await?;
        let epoch = self.epoch.load(Ordering::Acquire);
        let idle = {
            let mut idle = self.idle.lock();
            std::iter::from_fn(|| idle.pop())
                .find(|idle| idle.epoch == epoch && idle.since.elapsed() < IDLE_MOST)
        };
        let (session, reused) = match idle {
            Some(idle) => (idle.session, true),
            None => (self.open().await?, false),
        };
        Ok(Loan { session, reused, pool: self, epoch, _place: place })
    }

    /// A connection outside the pool, or for it.
    pub(crate) async fn open(&self) -> Result<Session, Trouble> {
        match timeout(self.patience, Session::open(&self.options)).await {
            Ok(opened) => opened,
            Err(_) => Err(Trouble {
                class: Class::Broken,
                error: Error::unavailable("the MySQL server did not answer a new connection in time")
                    .with("after", format_args!("{:?}", self.patience)),
            }),
        }
    }

    async fn place(&self, lane: Lane) -> Result<SemaphorePermit<'_>, Trouble> {
        let free = match lane {
            Lane::Caller => self.shared.try_acquire(),
            Lane::Holder => self.reserved.try_acquire().or_else(|_| self.shared.try_acquire()),
        };
        if let Ok(place) = free {
            return Ok(place);
        }
        let wait = async {
            match lane {
                Lane::Caller => self.shared.acquire().await,
                Lane::Holder => self.either().await,
            }
        };
        match timeout(self.patience, wait).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Trouble {
                class: Class::Final,
                error: Error::unavailable("all connections of the store are in use; raise `max-connections`")
                    .with("connections", self.places)
                    .with("after", format_args!("{:?}", self.patience)),
            }),
        }
    }

    /// Whichever is free first.
    async fn either(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        let (mut reserved, mut shared) = (pin!(self.reserved.acquire()), pin!(self.shared.acquire()));
        poll_fn(|cx| match reserved.as_mut().poll(cx) {
            Poll::Ready(place) => Poll::Ready(place),
            Poll::Pending => shared.as_mut().poll(cx),
        })
        .await
    }
}

impl Loan<'_> {
    /// The server at the other end is gone, or not the right one any more: the idle connections are not to be believed either, unless they
    /// are newer than that.
    pub(crate) fn distrust(self) {
        let next = self.epoch + 1;
        if self.pool.epoch.compare_exchange(self.epoch, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let old = std::mem::take(&mut *self.pool.idle.lock());
            drop(old);
        }
    }

    /// The answer was read to its end: the connection may serve others.
    pub(crate) fn give_back(self) {
        let Self { session, pool, epoch, .. } = self;
        let now = Instant::now();
        let mut idle = pool.idle.lock();
        if pool.epoch.load(Ordering::Acquire) == epoch {
            idle.push(Idle { session, epoch, since: now });
        }
        // The oldest stand first; one at a time is enough.
        let stale = match idle.first() {
            Some(oldest) if now.saturating_duration_since(oldest.since) >= IDLE_MOST => Some(idle.remove(0)),
            _ => None,
        };
        drop(idle);
        drop(stale);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("places", &self.places)
            .field("idle", &self.idle.lock().len())
            .finish_non_exhaustive()
    }
}
