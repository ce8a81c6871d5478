// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Pool`]: the store's own connections, in two lanes, and the one way on which a statement runs.
//!
//! Not the driver's pool: that one tests each connection as it comes back, which is a second round
//! trip for each call, and has no share that acquires cannot take from beats (RUN-2).

mod share;

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::Pulse;
use retryproof_core::{Error, Result};
use sqlx_core::connection::ConnectOptions as _;
use sqlx_core::executor::Executor as _;
use sqlx_postgres::PgConnection;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::config::{PostgresConfig, Source};
use crate::error::{classify, is_crowded, is_dead, is_lost_race, is_pooled};
use crate::statement::bound::{Call, Reply};

use share::{Held, Idle, Share};

/// Between two looks for a connection that has come back, while a new one is long in coming.
const TO_RETURN: Duration = Duration::from_millis(100);
/// How often the server is asked again for a first connection when it takes no more.
const REFUSALS: u32 = 5;
/// How often a statement that lost a race is repeated.
const RACES: u32 = 5;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Acquires, looks, polls, purges.
    Calls,
    /// Beats, completions and releases: they have connections of their own, and use those of the
    /// calls while these are idle (RUN-2).
    Beats,
}

pub(crate) struct Pool {
    source: Source,
    /// False behind a pooler that gives each transaction another connection.
    prepared: AtomicBool,
    /// Run on each new connection.
    prelude: Mutex<Option<&'static str>>,
    timeout: Duration,
    pulse: Pulse,
    calls: Arc<Share>,
    beats: Arc<Share>,
}

impl Pool {
    /// To be called inside a runtime.
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        let beats = if config.connections < 4 { 1 } else { 2 };
        Self {
            source: config.source.clone(),
            prepared: AtomicBool::new(false),
            prelude: Mutex::default(),
            timeout: config.timeout,
            pulse: Pulse::start(),
            calls: Share::new(config.connections - beats),
            beats: Share::new(beats),
        }
    }

    /// How many connections the calls have.
    pub(crate) fn calls(&self) -> usize {
        self.calls.size
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Whether each connection is one of the server for as long as it stays: statements may be
    /// prepared, and notifications arrive.
    pub(crate) fn is_direct(&self) -> bool {
        self.prepared.load(Ordering::Relaxed)
    }

    pub(crate) fn set_direct(&self, direct: bool, prelude: Option<&'static str>) {
        self.prepared.store(direct, Ordering::Relaxed);
        *self.prelude.lock() = prelude;
        self.clear();
    }

    pub(crate) fn clear(&self) {
        self.calls.clear();
        self.beats.clear();
    }

    /// Opens a connection that is in no lane.
    pub(crate) async fn open(source: &Source) -> Result<PgConnection, sqlx_core::Error> {
        source.options().connect().await
    }

    /// Opens the beats' connections ahead: later there may be none to be had.
    pub(crate) async fn warm(&self) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        let mut all = Vec::new();
        while let Ok(permit) = Arc::clone(&self.beats.permits).try_acquire_owned() {
            let mut held = self
                .connected(&self.beats, permit, deadline)
                .await
                .map_err(|lack| lack.into_error(self))?;
            held.sound = true;
            all.push(held);
        }
        Ok(())
    }

    /// Runs one statement in autocommit. A connection that turns out to be dead is replaced once,
    /// and a lost race run again: all our statements are safe to repeat, by their owner (ACQ-9,
    /// CMP-3).
    pub(crate) async fn run(&self, lane: Lane, call: &Call<'_>) -> Result<Reply, Failed> {
        self.run_until(self.deadline(), lane, call).await
    }

    /// Until when a call that begins now may take.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// The same within what is left of a call.
    pub(crate) async fn run_until(
        &self,
        deadline: Instant,
        lane: Lane,
        call: &Call<'_>,
    ) -> Result<Reply, Failed> {
        let (mut races, mut replaced) = (0, false);
        loop {
            let mut held = self
                .checkout(lane, deadline)
                .await
                .map_err(|lack| Failed::Ours(lack.into_error(self)))?;
            let Some(conn) = held.conn.as_mut() else { continue };
            let prepared = self.is_direct();
            let Some(ran) = self.pulse.until(deadline, call.run(conn, prepared)).await else {
                held.discard();
                return Err(Failed::Ours(Error::unavailable(
                    "the server did not answer in time; is it overloaded, or is the row locked \
                     by an open transaction?",
                )));
            };
            let error = match ran {
                Ok(reply) => {
                    held.sound = true;
                    return Ok(reply);
                }
                Err(error) => error,
            };
            if prepared && is_pooled(&error) {
                tracing::warn!(
                    "a pooler in transaction mode stands before the server; from now on nothing \
                     is prepared, and waiters poll"
                );
                held.discard();
                self.set_direct(false, None);
                continue;
            }
            if is_dead(&error) {
                let again = held.reused && !replaced;
                held.discard();
                // Those that were idle meanwhile met the same fate.
                self.clear();
                if again {
                    replaced = true;
                    continue;
                }
                return Err(Failed::Driver(error));
            }
            held.sound = true;
            drop(held);
            if !is_lost_race(&error) || races == RACES || crate::error::is_locked(&error) {
                return Err(Failed::Driver(error));
            }
            races += 1;
            tokio::time::sleep(Duration::from_millis(u64::from(races * races))).await;
        }
    }

    async fn checkout(&self, lane: Lane, deadline: Instant) -> Result<Held, Lack> {
        let free = match self.free(lane) {
            None => timeout_at(deadline, self.permit(lane)).await.ok().flatten(),
            free => free,
        };
        let (share, permit) = free.ok_or(Lack::Busy)?;
        match share.pop() {
            Some(Idle { conn, born, .. }) => Ok(share.held(permit, conn, born, true)),
            None => self.connected(share, permit, deadline).await,
        }
    }

    /// A place that nobody is waiting for. Beats and completions take one of the calls while these
    /// are mostly idle, for the process of the server behind it has just seen the record; else
    /// their own first. Their own are used now and then all the same: what rests for too long is
    /// dead or dropped when it is needed, and there may be no other to be had then.
    fn free(&self, lane: Lane) -> Option<(&Arc<Share>, OwnedSemaphorePermit)> {
        let shares: &[&Arc<Share>] = match lane {
            Lane::Calls => &[&self.calls],
            Lane::Beats if self.beats.is_fresh() && self.calls.is_mostly_idle() => {
                &[&self.calls, &self.beats]
            }
            Lane::Beats => &[&self.beats, &self.calls],
        };
        shares.iter().find_map(|&share| {
            let permit = Arc::clone(&share.permits).try_acquire_owned().ok()?;
            Some((share, permit))
        })
    }

    /// A place in a lane, whichever comes first.
    async fn permit(&self, lane: Lane) -> Option<(&Arc<Share>, OwnedSemaphorePermit)> {
        let of = |share: &Arc<Share>| Arc::clone(&share.permits);
        if lane == Lane::Calls {
            return Some((&self.calls, of(&self.calls).acquire_owned().await.ok()?));
        }
        let (mut beat, mut call) =
            (pin!(of(&self.beats).acquire_owned()), pin!(of(&self.calls).acquire_owned()));
        poll_fn(|cx| {
            if let Poll::Ready(permit) = beat.as_mut().poll(cx) {
                return Poll::Ready(permit.ok().map(|permit| (&self.beats, permit)));
            }
            call.as_mut().poll(cx).map(|permit| Some((&self.calls, permit.ok()?)))
        })
        .await
    }

    /// A new connection. It is dialed in a task of its own: a call that ends, or a beat, leaves the
    /// dial running, and the connection goes to the lane (RUN-1).
    async fn connected(
        &self,
        share: &Arc<Share>,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<Held, Lack> {
        let (source, prelude) = (self.source.clone(), *self.prelude.lock());
        let dial = Dial { source, prelude, share: Arc::clone(share), deadline };
        let mut held = tokio::spawn(dial.run(permit)).await.map_err(|_| Lack::Slow)??;
        held.sound = false;
        Ok(held)
    }

    fn size(&self) -> usize {
        self.calls.permits.available_permits() + self.beats.permits.available_permits()
    }
}

/// The way to one more connection of a lane.
struct Dial {
    source: Source,
    prelude: Option<&'static str>,
    share: Arc<Share>,
    deadline: Instant,
}

impl Dial {
    /// A new connection; where the server is slow to let us in, or takes no more, one of ours that
    /// has come back meanwhile. Dropped unused, it goes back to its lane.
    async fn run(self, permit: OwnedSemaphorePermit) -> Result<Held, Lack> {
        let Self { share, deadline, .. } = &self;
        let held = |conn, born, reused| {
            let mut held = share.held(permit, conn, born, reused);
            held.sound = true;
            held
        };
        let mut opening = pin!(self.open());
        let (mut refused, mut refusals) = (None, 0);
        loop {
            let round = (*deadline).min(Instant::now() + TO_RETURN);
            if refused.is_some() {
                let _ = timeout_at(round, share.returned.notified()).await;
            } else {
                match timeout_at(round, opening.as_mut()).await {
                    Ok(Ok(conn)) => {
                        share.open.fetch_add(1, Ordering::AcqRel);
                        return Ok(held(conn, Instant::now(), false));
                    }
                    Ok(Err(error)) if is_crowded(&error) => refused = Some(error),
                    Ok(Err(error)) => return Err(Lack::Driver(error)),
                    Err(_) => {}
                }
            }
            if let Some(Idle { conn, born, .. }) = share.pop() {
                return Ok(held(conn, born, true));
            }
            let waits_for_none = refused.is_some() && share.open.load(Ordering::Acquire) == 0;
            if round == *deadline || (waits_for_none && refusals == REFUSALS) {
                return Err(refused.map_or(Lack::Slow, Lack::Driver));
            }
            if waits_for_none {
                // Of a connection that was closed a moment ago the server may not have heard yet.
                tokio::time::sleep_until((*deadline).min(Instant::now() + TO_RETURN)).await;
                refusals += 1;
                refused = None;
                opening.set(self.open());
            }
        }
    }

    async fn open(&self) -> Result<PgConnection, sqlx_core::Error> {
        let mut conn = Pool::open(&self.source).await?;
        if let Some(prelude) = self.prelude {
            conn.execute(sqlx_core::raw_sql::raw_sql(prelude)).await?;
        }
        Ok(conn)
    }
}

/// Why there is no connection.
enum Lack {
    /// All are in use.
    Busy,
    /// The server did not let us in in time.
    Slow,
    Driver(sqlx_core::Error),
}

impl Lack {
    fn into_error(self, pool: &Pool) -> Error {
        match self {
            Self::Busy => Error::unavailable(
                "all connections of the store are in use; raise `max-connections`, or look for \
                 what keeps the server busy",
            )
            .with("free", pool.size()),
            Self::Slow => Error::unavailable(
                "the server did not open a connection in time; is \
                 it overloaded?",
            ),
            Self::Driver(error) => classify(&error),
        }
    }
}

/// Why a statement gave nothing.
pub(crate) enum Failed {
    Ours(Error),
    Driver(sqlx_core::Error),
}

impl Failed {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Ours(error) => error,
            Self::Driver(error) => classify(&error),
        }
    }
}
