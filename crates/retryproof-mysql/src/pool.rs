// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Pool`]: the store's own connections.
//!
//! Not the driver's pool, for two reasons. That one sends a ping whenever a connection comes back,
//! a second round trip for each operation (ACQ-8). And it lets a connection come back in the middle
//! of an answer; here a call that was dropped throws its connection away.
//!
//! Acquires, looks and purges share one set of places. Beats, completions and releases may use
//! those and have some of their own, so that a storm of new callers does not take the leases of the
//! running ones (RUN-2).

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::Error;
use sqlx_mysql::MySqlConnectOptions;
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use crate::connection::Session;
use crate::error::{Class, Trouble};

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
    shared: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    places: usize,
    shelf: Arc<Shelf>,
}

/// The connections that wait for their next call.
#[derive(Default)]
struct Shelf {
    /// The last one back is the first one out, so that those nobody needs grow old.
    idle: Mutex<Vec<Idle>>,
    /// Raised when connections are found dead: older ones are not believed any more.
    epoch: AtomicU64,
    /// Tells a call that waits for a new connection of one that came back.
    returned: Notify,
}

struct Idle {
    session: Session,
    epoch: u64,
    since: Instant,
}

/// A connection on loan. Dropped without [`give_back`](Self::give_back), the connection is closed.
pub(crate) struct Loan {
    pub(crate) session: Session,
    /// Whether it has served before: such a one may have died unnoticed.
    pub(crate) reused: bool,
    shelf: Arc<Shelf>,
    epoch: u64,
    _place: OwnedSemaphorePermit,
}

/// A new connection that no call has taken yet. Where none does, it goes to the others.
struct Opened(Option<Loan>);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(loan) = self.0.take() {
            loan.give_back();
        }
    }
}

impl Pool {
    /// A pool of `places` connections, of which `reserved` are for holders alone. `patience` bounds
    /// the wait for a place and the opening of a connection, each.
    pub(crate) fn new(
        options: MySqlConnectOptions,
        places: usize,
        reserved: usize,
        patience: Duration,
    ) -> Self {
        Self {
            options,
            patience,
            shared: Arc::new(Semaphore::new(places.saturating_sub(reserved))),
            reserved: Arc::new(Semaphore::new(reserved)),
            places,
            shelf: Arc::default(),
        }
    }

    /// Waits for a place and gives an idle connection, or opens one.
    pub(crate) async fn lend(&self, lane: Lane) -> Result<Loan, Trouble> {
        let place = self.place(lane).await?;
        let shelf = Arc::clone(&self.shelf);
        match shelf.pop() {
            Some(Idle { session, epoch, .. }) => {
                Ok(Loan { session, reused: true, shelf, epoch, _place: place })
            }
            None => self.open(place).await,
        }
    }

    /// A new connection, or one that comes back earlier. It is opened in a task of its own: a call
    /// that ends, or a beat, leaves the task running, and the connection goes to the others
    /// (RUN-1).
    async fn open(&self, place: OwnedSemaphorePermit) -> Result<Loan, Trouble> {
        let (options, patience) = (self.options.clone(), self.patience);
        let (shelf, epoch) = (Arc::clone(&self.shelf), self.shelf.epoch.load(Ordering::Acquire));
        let (mut to, opened) = oneshot::channel();
        tokio::spawn(async move {
            let mut opening = pin!(timeout(patience, Session::open(&options)));
            let (opened, epoch, reused) = tokio::select! {
                opened = &mut opening => (opened, epoch, false),
                Idle { session, epoch, .. } = shelf.returned() => (Ok(Ok(session)), epoch, true),
                // What comes back is for those who wait.
                () = to.closed() => (opening.await, epoch, false),
            };
            let answer = match opened {
                Ok(Ok(session)) => {
                    Ok(Opened(Some(Loan { session, reused, shelf, epoch, _place: place })))
                }
                Ok(Err(trouble)) => Err(trouble),
                Err(_) => Err(Trouble {
                    class: Class::Broken,
                    error: Error::unavailable(
                        "the MySQL server did not answer a new connection in time",
                    )
                    .with("after", format_args!("{patience:?}")),
                }),
            };
            drop(to.send(answer));
        });
        let ended =
            || Error::unavailable("the runtime ended while the store connected; call again");
        opened.await.map_err(|_| ended())??.0.take().ok_or_else(|| ended().into())
    }

    async fn place(&self, lane: Lane) -> Result<OwnedSemaphorePermit, Trouble> {
        let (shared, reserved) = (|| Arc::clone(&self.shared), || Arc::clone(&self.reserved));
        let free = match lane {
            Lane::Caller => shared().try_acquire_owned(),
            Lane::Holder => {
                reserved().try_acquire_owned().or_else(|_| shared().try_acquire_owned())
            }
        };
        if let Ok(place) = free {
            return Ok(place);
        }
        let wait = async {
            match lane {
                Lane::Caller => shared().acquire_owned().await,
                Lane::Holder => self.either().await,
            }
        };
        match timeout(self.patience, wait).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Trouble {
                class: Class::Final,
                error: Error::unavailable(
                    "all connections of the store are in use; raise `max-connections`",
                )
                .with("connections", self.places)
                .with("after", format_args!("{:?}", self.patience)),
            }),
        }
    }

    /// Whichever is free first.
    async fn either(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        let of = |places: &Arc<Semaphore>| Arc::clone(places).acquire_owned();
        let (mut reserved, mut shared) = (pin!(of(&self.reserved)), pin!(of(&self.shared)));
        poll_fn(|cx| match reserved.as_mut().poll(cx) {
            Poll::Ready(place) => Poll::Ready(place),
            Poll::Pending => shared.as_mut().poll(cx),
        })
        .await
    }
}

impl Shelf {
    fn pop(&self) -> Option<Idle> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop())
            .find(|idle| idle.epoch == epoch && idle.since.elapsed() < IDLE_MOST)
    }

    /// The next one to come back that nobody else takes.
    async fn returned(&self) -> Idle {
        loop {
            let returned = self.returned.notified();
            if let Some(idle) = self.pop() {
                return idle;
            }
            returned.await;
        }
    }
}

impl Loan {
    /// The server at the other end is gone, or not the right one any more: the idle connections are
    /// not to be believed either, unless they are newer than that.
    pub(crate) fn distrust(self) {
        let next = self.epoch + 1;
        let Self { shelf, epoch, .. } = &self;
        if shelf.epoch.compare_exchange(*epoch, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let old = std::mem::take(&mut *shelf.idle.lock());
            drop(old);
        }
    }

    /// The answer was read to its end: the connection may serve others.
    pub(crate) fn give_back(self) {
        let Self { session, shelf, epoch, _place, .. } = self;
        let now = Instant::now();
        let mut idle = shelf.idle.lock();
        if shelf.epoch.load(Ordering::Acquire) == epoch {
            idle.push(Idle { session, epoch, since: now });
        }
        // The oldest stand first; one at a time is enough.
        let stale = match idle.first() {
            Some(oldest) if now.saturating_duration_since(oldest.since) >= IDLE_MOST => {
                Some(idle.remove(0))
            }
            _ => None,
        };
        drop(idle);
        drop(stale);
        shelf.returned.notify_one();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("places", &self.places)
            .field("idle", &self.shelf.idle.lock().len())
            .finish_non_exhaustive()
    }
}
