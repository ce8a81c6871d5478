// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresStore`]: the contract, one statement for each call.

mod acquire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Known, Peeked, SharedStore, StoreProfile,
};
use retryproof_core::{
    Error, ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result,
};
use tokio::time::{Instant, timeout_at};

use crate::config::{Pooler, PostgresConfig};
use crate::error::classify;
use crate::execute::batch::{Group, Turn};
use crate::execute::record_limit::Doors;
use crate::inspect::BEGINNING;
use crate::pool::{Failed, Lane, Pool};
use crate::record::{Phase, Record};
use crate::schema;
use crate::statement::bound::{Call, Reply};
use crate::statement::{Sql, Statement};
use crate::waiters::notify::Courier;
use crate::waiters::{ANNOUNCE_AGAIN, Wake};

/// Between two looks of a waiter where nothing is pushed: at first, and at most (ACQ-4).
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// The same as the net under notifications.
const NET: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// How often it is asked over which connection the server answers.
const PROBES: u32 = 2;
/// What a connection of the store's is set to. Its prepared statements are planned once, maybe
/// while the table is nearly empty, and a plan that reads all of it would be kept until the next
/// `ANALYZE`; a purge would gather all entries of the index before it takes the first thousand. The
/// same settings let a scan that has to be (the count of all records) look so expensive that the
/// server would compile it.
macro_rules! planned {
    () => {
        "SET enable_seqscan=off;SET enable_bitmapscan=off;SET jit=off"
    };
}

/// Keeps records in a table of a PostgreSQL database, for any number of processes.
///
/// It has connections of its own and runs each statement in autocommit. Expiry is judged by the
/// server's clock.
pub struct PostgresStore {
    pub(crate) config: PostgresConfig,
    sql: Arc<Sql>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) doors: Doors,
    group: Group,
    pub(crate) wake: Arc<Wake>,
    pub(crate) known: Known,
    /// The bucket in which the purge goes on.
    pub(crate) purged_to: AtomicI64,
    _courier: Option<Courier>,
}

impl PostgresStore {
    /// Connects to a database that [`PostgresConfig::migrate`] has prepared, and checks that it can
    /// be worked on. To be called inside the tokio runtime that serves the store from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] when the tables are missing or of another version (STO-3);
    /// [`ErrorKind::Config`] for an invalid table name, a wrong user or password, or a database
    /// that does not exist; [`ErrorKind::Unexpected`] for a missing privilege;
    /// [`ErrorKind::Unsupported`] before PostgreSQL 12; [`ErrorKind::Unavailable`] when the server
    /// is away, full up with connections, or a standby.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        Self::connected(config).await.map_err(|error| error.during("connect"))
    }

    async fn connected(config: PostgresConfig) -> Result<Self> {
        let table = config.table()?.to_owned();
        let pool = Arc::new(Pool::new(&config));
        let late = |_| {
            Error::unavailable("the server did not answer in time; is it up, and not overloaded?")
        };
        let direct = tokio::time::timeout(config.timeout, prepare(&config, &pool, &table))
            .await
            .map_err(late)??;
        pool.warm().await?;
        let wake = Arc::new(Wake::new());
        let courier = match direct {
            true => Some(Courier::start(config.source.clone(), &table, &wake).await),
            false => None,
        };
        let sql = Arc::new(Sql::new(&table));
        let group = Group::new(Arc::clone(&pool), Arc::clone(&sql), config.timeout);
        let (known, purged_to) = (Known::new(), AtomicI64::new(BEGINNING));
        let doors = Doors::new(pool.calls());
        Ok(Self { sql, config, pool, doors, group, wake, known, purged_to, _courier: courier })
    }

    /// The store as an engine takes it, with the capabilities to purge, to inspect, and to join a
    /// transaction (CMP-7).
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        SharedStore::builder(self).with_purge().with_inspect().with_join().build()
    }

    pub(crate) fn sql(&self) -> &Sql {
        &self.sql
    }

    pub(crate) async fn run(&self, lane: Lane, call: &Call<'_>) -> Result<Reply> {
        self.pool.run(lane, call).await.map_err(Failed::into_error)
    }

    /// The same with a time limit of its own.
    pub(crate) async fn run_within(
        &self,
        most: Duration,
        lane: Lane,
        call: &Call<'_>,
    ) -> Result<Reply> {
        self.pool.run_until(Instant::now() + most, lane, call).await.map_err(Failed::into_error)
    }

    /// A joined transaction was committed: whoever waits is woken (ACQ-4).
    pub(crate) fn told(&self, id: &Identity) {
        self.wake.finished(id);
    }

    /// The record as it stands.
    pub(crate) async fn record(
        &self,
        statement: Statement,
        id: &Identity,
    ) -> Result<Option<Record>> {
        let reply = self.run(Lane::Calls, &self.sql.by_key(statement, id)).await?;
        reply.row.as_ref().map_or(Ok(None), Record::read)
    }

    pub(crate) fn seen(&self, id: &Identity, record: Option<Record>) -> Peeked {
        match record {
            Some(Record { phase: Phase::Done(Some((stored, rest))), .. }) => {
                self.known.note(id, rest);
                Peeked::Complete(stored)
            }
            Some(Record { token, phase: Phase::Running(Some(remaining)), .. }) => {
                Peeked::Busy { remaining, token }
            }
            _ => Peeked::Absent,
        }
    }

    /// Whether the holder with token `seen` is still at work.
    async fn still_held(&self, id: &Identity, seen: FencingToken) -> Result<bool> {
        Ok(matches!(
            self.record(Statement::Peeked, id).await?,
            Some(Record { token, phase: Phase::Running(Some(_)), .. }) if token == seen
        ))
    }

    /// Whether notifications arrive. Through a pooler that was not found out at first they do not,
    /// whatever it answered to LISTEN.
    fn is_pushed(&self) -> bool {
        self.wake.is_listening() && self.pool.is_direct()
    }

    async fn wait(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        let subscription = self.wake.subscribe(id);
        let mut woken = std::pin::pin!(subscription.bell.notified());
        woken.as_mut().enable();
        // One who does not sleep needs no waking.
        if !at_most.is_zero() {
            subscription.announce();
        }
        if !self.still_held(id, seen).await? || at_most.is_zero() {
            return Ok(());
        }
        let end = Instant::now() + at_most;
        let mut announced = Instant::now();
        let mut pushed = self.is_pushed();
        let (mut poll, mut longest) = if pushed { NET } else { POLL };
        loop {
            let next = (Instant::now() + self.wake.jitter(poll)).min(end);
            if timeout_at(next, woken.as_mut()).await.is_ok() || next == end {
                return Ok(());
            }
            if !self.still_held(id, seen).await? {
                return Ok(());
            }
            poll = (poll * 2).min(longest);
            if pushed != self.is_pushed() {
                pushed = !pushed;
                (poll, longest) = if pushed { NET } else { POLL };
            }
            if announced.elapsed() > ANNOUNCE_AGAIN {
                announced = Instant::now();
                subscription.announce();
            }
        }
    }

    /// Says what became of a record that a fenced statement did not find.
    async fn otherwise<T>(
        &self,
        id: &Identity,
        say: impl FnOnce(Option<Record>) -> T,
    ) -> Result<T> {
        let reply = self.run(Lane::Beats, &self.sql.by_key(Statement::Peeked, id)).await?;
        reply.row.as_ref().map_or(Ok(None), Record::read).map(say)
    }

    async fn try_complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.config.max_value {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "the value is larger than the store accepts",
            )
            .with("bytes", done.value.len())
            .with("limit", self.config.max_value));
        }
        let deadline = self.pool.deadline();
        let fenced = match self.group.turn(id, owner, done, deadline).await {
            Turn::Done => FencedWrite::Applied,
            Turn::Alone(_slot) => self.complete_alone(id, owner, done, deadline).await?,
            Turn::Refused => match self.refused(id, owner).await? {
                Some(fenced) => fenced,
                None => self.complete_alone(id, owner, done, deadline).await?,
            },
        };
        if fenced != FencedWrite::NotOwner {
            // Also when it was done before: the answer may have been lost, and then nobody was
            // woken by it (ACQ-4).
            self.known.note(id, done.ttl);
            self.wake.finished(id);
        }
        Ok(fenced)
    }

    async fn complete_alone(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
        deadline: Instant,
    ) -> Result<FencedWrite> {
        let call = self.sql.complete(Statement::Complete, id, &owner, done);
        let ran = self.pool.run_until(deadline, Lane::Beats, &call).await;
        if ran.map_err(Failed::into_error)?.changed > 0 {
            return Ok(FencedWrite::Applied);
        }
        Ok(self.refused(id, owner).await?.unwrap_or(FencedWrite::NotOwner))
    }

    /// Why a completion was refused; `None`: the owner's lease stands there.
    async fn refused(&self, id: &Identity, owner: OwnerId) -> Result<Option<FencedWrite>> {
        let of = |record| match record {
            Some(Record { owner: by, phase: Phase::Done(_), .. }) if by == owner => {
                Some(FencedWrite::AlreadyApplied)
            }
            Some(Record { owner: by, phase: Phase::Running(_), .. }) if by == owner => None,
            _ => Some(FencedWrite::NotOwner),
        };
        self.otherwise(id, of).await
    }

    async fn try_release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let fenced = match self.run(Lane::Beats, &self.sql.release(id, &owner)).await?.changed {
            0 => {
                self.otherwise(id, |record| {
                    record.map_or(FencedWrite::AlreadyApplied, |_| FencedWrite::NotOwner)
                })
                .await?
            }
            _ => FencedWrite::Applied,
        };
        if fenced != FencedWrite::NotOwner {
            // As for a completion.
            self.wake.finished(id);
        }
        Ok(fenced)
    }
}

/// Checks the server and the schema, and finds out what stands before it. Says whether connections
/// are direct.
async fn prepare(config: &PostgresConfig, pool: &Pool, table: &str) -> Result<bool> {
    let open = || async { Pool::open(pool.source()).await.map_err(|error| classify(&error)) };
    let mut conn = open().await?;
    let server = schema::check(&mut conn, table).await?;
    let direct = match config.pooler {
        Pooler::Session => true,
        Pooler::Transaction => false,
        Pooler::Detect => {
            let mut other = open().await?;
            let (first, second) =
                (schema::backend(&mut conn).await?, schema::backend(&mut other).await?);
            let mut direct = first != second;
            for _ in 0..PROBES {
                // Each keeps its own. Two questions of one client in a row meet two processes where
                // the pooler goes round.
                direct &= second == schema::backend(&mut other).await?;
                direct &= first == schema::backend(&mut conn).await?;
                direct &= first == schema::backend(&mut conn).await?;
                direct &= second == schema::backend(&mut other).await?;
            }
            direct
        }
    };
    // Above READ COMMITTED a takeover that meets another fails instead of seeing it. Through a
    // pooler a setting would reach connections of others; there each statement is planned when it
    // runs.
    let prelude = match server.reads_committed {
        true => planned!(),
        false => concat!(planned!(), ";SET default_transaction_isolation='read committed'"),
    };
    pool.set_direct(direct, direct.then_some(prelude));
    Ok(direct)
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("config", &self.config)
            .field("direct", &self.pool.is_direct())
            .field("listening", &self.wake.is_listening())
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for PostgresStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.try_acquire(id, req).await.map_err(|error| error.during("acquire").for_identity(id))
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let found = self.record(Statement::Find, id).await;
        found
            .map(|record| self.seen(id, record))
            .map_err(|error| error.during("peek").for_identity(id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.wait(id, seen, at_most)
            .await
            .map_err(|error| error.during("wait_for_change").for_identity(id))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let reply = self.run(Lane::Beats, &self.sql.extend(id, &owner, lease)).await;
        match reply.map_err(|error| error.during("extend").for_identity(id))?.changed {
            0 => Ok(FencedWrite::NotOwner),
            _ => Ok(FencedWrite::Applied),
        }
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.try_complete(id, owner, done)
            .await
            .map_err(|error| error.during("complete").for_identity(id))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.try_release(id, owner).await.map_err(|error| error.during("release").for_identity(id))
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("postgres").with_max_value(self.config.max_value)
    }
}

/// With every capability that the store has.
impl From<PostgresStore> for SharedStore {
    fn from(store: PostgresStore) -> Self {
        store.into_shared()
    }
}
