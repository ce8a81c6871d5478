// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlStore`]: the contract over single statements.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, Known, Param, Peeked, Pulse,
    SharedStore, StoreProfile,
};
use retryproof_core::{Error, FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::MysqlConfig;
use crate::connection::Want;
use crate::error::{Class, Trouble};
use crate::execute::too_large;
use crate::join;
use crate::pool::{Lane, Pool};
use crate::record::{Phase, Record, value};
use crate::schema::{CHECK_MOST, check};
use crate::statement::{Sql, Statement};
use crate::waiters::Wake;

/// Between two looks of a waiter: at first, and at most (ACQ-4).
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(40));
/// How often a statement of a holder is sent again after a wait of a second for a lock, and an
/// acquire whose row nobody can see.
const AGAIN: u32 = 2;
/// Room in a packet for the other columns and their lengths.
pub(crate) const PACKET_OVERHEAD: usize = 4_096;

/// Keeps records in a table of a MySQL or MariaDB server, for any number of processes.
///
/// Every operation is one statement that commits by itself, on connections of its own. Expiry is
/// judged by the server's clock (ACQ-7). A dropped call closes its connection; what its statement
/// did stays done.
pub struct MysqlStore {
    pub(crate) config: MysqlConfig,
    pub(crate) sql: Sql,
    pub(crate) pool: Pool,
    pub(crate) pulse: Pulse,
    pub(crate) wake: Wake,
    known: Known,
    /// Where the purge goes on, in microseconds since 1970.
    pub(crate) purged_to: AtomicI64,
    /// Which records were lately seen in progress, or released here: what they leave is taken over
    /// by GRANT, not entered.
    restless: Known,
    returning: bool,
    /// The completion as it runs in a transaction of the application's.
    pub(crate) joined: Arc<str>,
    pub(crate) max_value: usize,
}

/// The fenced statement that completes a record, with its values in bind order: to be run as it is
/// on the store's connection, or by a caller on a connection in the middle of its own transaction
/// (CMP-7). It counts one row when it took effect.
pub(crate) fn complete_statement<'a>(
    sql: &'a Sql,
    id: &'a Identity,
    owner: &'a OwnerId,
    done: &'a Completion,
) -> (&'a Arc<str>, [Param<'a>; 7]) {
    let ttl = Param::Int(micros(done.ttl));
    let [scope, key] = key_of(id);
    let params = [
        ttl,
        ttl,
        done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
        Param::Bytes(&done.value),
        scope,
        key,
        Param::Bytes(owner.as_bytes()),
    ];
    (sql.of(Statement::Complete), params)
}

/// The primary key as it is bound (ID-2).
pub(crate) fn key_of(id: &Identity) -> [Param<'_>; 2] {
    [Param::Bytes(id.scope().as_str().as_bytes()), Param::Bytes(id.key().expose().as_bytes())]
}

/// CTX-2 bounds it far below the end of the type and of DATETIME.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

impl MysqlStore {
    /// Connects to a database that [`MysqlConfig::migrate`] has prepared.
    ///
    /// # Errors
    /// By its [kind](retryproof_core::ErrorKind): `Schema` when the tables are missing or of
    /// another version (STO-3); `Config` for a wrong user, password or database, and an invalid
    /// table name; `Unexpected` for a missing privilege; `Unsupported` for a server that is too
    /// old; `Unavailable` when it cannot be reached.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        Self::connected(config).await.map_err(|trouble| trouble.error.during("connect"))
    }

    async fn connected(config: MysqlConfig) -> Result<Self, Trouble> {
        let table = config.table()?;
        let sql = Sql::new(table);
        let pool = Pool::new(
            config.options.clone(),
            config.connections,
            config.reserved(),
            config.patience,
        );
        let mut loan = pool.lend(Lane::Caller).await?;
        timeout(CHECK_MOST, check(&mut loan.session, table))
            .await
            .map_err(|_| Error::unavailable("the MySQL server did not answer in time"))??;
        let joined = timeout(CHECK_MOST, join::statement(&mut loan.session, &sql))
            .await
            .map_err(|_| Error::unavailable("the MySQL server did not answer in time"))??;
        let server = loan.session.server;
        loan.give_back();
        Ok(Self {
            sql,
            joined,
            pool,
            pulse: Pulse::start(),
            wake: Wake::default(),
            known: Known::new(),
            purged_to: AtomicI64::new(0),
            restless: Known::new(),
            returning: server.returning && config.returning.unwrap_or(true),
            max_value: server.max_packet.saturating_sub(PACKET_OVERHEAD),
            config,
        })
    }

    /// The store as an engine takes it, with the capabilities to purge and to inspect.
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        SharedStore::builder(self).with_purge().with_inspect().with_join().build()
    }

    /// One of the two upserts, in one trip; two where the server cannot return the row and the key
    /// is in use. ENTER leaves what is there as it is: `Over` then says that it takes GRANT.
    async fn upsert(
        &self,
        statement: Statement,
        id: &Identity,
        req: &AcquireRequest,
    ) -> Result<Seen, Trouble> {
        let [scope, key] = key_of(id);
        let params = [
            scope,
            key,
            Param::Bytes(req.owner.as_bytes()),
            Param::Int(micros(req.lease)),
            Param::Int(micros(req.ttl)),
            req.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
        ];
        let granted =
            |token, taken| Seen::Answer(Acquired::Granted(Grant::new(token, req.lease, taken)));
        if self.returning {
            let answer =
                self.run(Lane::Caller, self.sql.of(statement), &params, Want::Rows).await?;
            let record = answer.rows.first().map(Record::of).transpose()?;
            return Ok(match record {
                // The row says what is there after the statement. Ours, in progress, means that
                // GRANT granted it, and ENTER if it has the whole lease still: else it was there
                // before and is to be renewed (ACQ-9).
                Some(Record { owner, token, taken, phase: Phase::Running(left) })
                    if owner == req.owner =>
                {
                    if statement == Statement::Grant || left.map(micros) == Some(micros(req.lease))
                    {
                        granted(token, taken)
                    } else {
                        Seen::Over(Some(token))
                    }
                }
                record => Seen::of(record),
            });
        }
        let answer = self
            .run(Lane::Caller, self.sql.of(Statement::GrantPortable), &params, Want::Counts)
            .await?;
        if answer.insert_id != 0 {
            return Ok(granted(FencingToken::new(answer.insert_id / 2), answer.insert_id % 2 == 1));
        }
        Ok(Seen::of(self.read(Lane::Caller, Statement::Find, id).await?))
    }

    async fn acquired(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired, Trouble> {
        if self.known.has(id) {
            let sql = self.sql.of(Statement::Replay);
            let answer = self.run(Lane::Caller, sql, &key_of(id), Want::Rows).await?;
            match answer.rows.first() {
                Some(row) => return Ok(Acquired::Complete(value(row, 0)?)),
                None => self.known.forget(id),
            }
        }
        let (mut again, mut statement) = (0, Statement::Enter);
        if !self.returning || self.restless.has(id) {
            statement = Statement::Grant;
        }
        loop {
            let upserted = match self.upsert(statement, id, req).await {
                Ok(upserted) => upserted,
                // Somebody holds the row in a transaction of their own, say a joined completion
                // (CMP-7): that is not waited for here.
                Err(trouble) if trouble.class == Class::Locked => {
                    match self.read(Lane::Caller, Statement::Find, id).await? {
                        Some(Record { owner, phase: Phase::Running(_), .. })
                            if owner == req.owner =>
                        {
                            return Err(trouble);
                        }
                        None if again == AGAIN => return Err(trouble),
                        // No other attempt: each of them would hold a connection for a second.
                        Some(record) => match Seen::of(Some(record)) {
                            Seen::Over(Some(token)) => return Ok(blocked(token)),
                            upserted => upserted,
                        },
                        None => Seen::Over(None),
                    }
                }
                // Completed keys are still replayed.
                Err(trouble) if trouble.class == Class::ReadOnly => {
                    return match self.read(Lane::Caller, Statement::Find, id).await.map(Seen::of) {
                        Ok(Seen::Answer(complete @ Acquired::Complete(_))) => Ok(complete),
                        _ => Err(trouble),
                    };
                }
                Err(trouble) => return Err(trouble),
            };
            match upserted {
                Seen::Answer(answer) => return Ok(answer),
                // The second trip that a takeover may cost (ACQ-8).
                Seen::Over(Some(_)) if statement == Statement::Enter => {
                    statement = Statement::Grant
                }
                Seen::Over(_) if again < AGAIN => again += 1,
                Seen::Over(Some(token)) => return Ok(blocked(token)),
                Seen::Over(None) => {
                    return Err(
                        Error::unavailable("the record came and went while it was read").into()
                    );
                }
            }
        }
    }

    /// A fenced statement: the rows that matched, or, when somebody sat on the row for seconds, an
    /// error.
    async fn fenced(&self, sql: &Arc<str>, params: &[Param<'_>]) -> Result<bool, Trouble> {
        let mut again = 0;
        loop {
            match self.run(Lane::Holder, sql, params, Want::Counts).await {
                Ok(answer) => return Ok(answer.matched > 0),
                Err(trouble) if trouble.class == Class::Locked && again < AGAIN => again += 1,
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn extended(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> Result<FencedWrite, Trouble> {
        let [scope, key] = key_of(id);
        let params = [Param::Int(micros(lease)), scope, key, Param::Bytes(owner.as_bytes())];
        let done = self.fenced(self.sql.of(Statement::Extend), &params).await?;
        Ok(if done { FencedWrite::Applied } else { FencedWrite::NotOwner })
    }

    async fn completed(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite, Trouble> {
        let (sql, params) = complete_statement(&self.sql, id, &owner, done);
        let mut fenced = FencedWrite::Applied;
        if !self.fenced(sql, &params).await? {
            fenced = match self.read(Lane::Holder, Statement::Peeked, id).await? {
                Some(Record { owner: by, phase: Phase::Done(_), .. }) if by == owner => {
                    FencedWrite::AlreadyApplied
                }
                _ => return Ok(FencedWrite::NotOwner),
            };
        }
        // Also when it was done before: the answer may have been lost, and then nobody was woken by
        // it (ACQ-4).
        self.known.note(id, Duration::MAX);
        self.wake.wake(id);
        Ok(fenced)
    }

    async fn released(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite, Trouble> {
        let [scope, key] = key_of(id);
        let params = [scope, key, Param::Bytes(owner.as_bytes())];
        let mut fenced = FencedWrite::Applied;
        if !self.fenced(self.sql.of(Statement::Release), &params).await? {
            fenced = match self.read(Lane::Holder, Statement::Peeked, id).await? {
                None | Some(Record { phase: Phase::Released, .. }) => FencedWrite::AlreadyApplied,
                Some(_) => return Ok(FencedWrite::NotOwner),
            };
        }
        // As for a completion.
        self.restless.note(id, Duration::MAX);
        self.wake.wake(id);
        Ok(fenced)
    }

    /// How long the holder with token `seen` still has; `None` when it is no longer at work.
    async fn held(&self, id: &Identity, seen: FencingToken) -> Result<Option<Duration>, Trouble> {
        Ok(match self.read(Lane::Caller, Statement::Peeked, id).await? {
            Some(Record { token, phase: Phase::Running(left), .. }) if token == seen => left,
            _ => None,
        })
    }

    async fn wait(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<(), Trouble> {
        let subscription = self.wake.subscribe(id);
        let mut woken = std::pin::pin!(subscription.bell.notified());
        woken.as_mut().enable();
        let end = Instant::now() + at_most;
        let (mut poll, longest) = POLL;
        loop {
            let Some(left) = self.held(id, seen).await? else { return Ok(()) };
            let now = Instant::now();
            // Never past the end of the lease, where the waiter may take over (ACQ-2).
            let next = (now + self.wake.jitter(poll).min(left)).min(end);
            if next <= now || timeout_at(next, woken.as_mut()).await.is_ok() || next == end {
                return Ok(());
            }
            poll = (poll * 2).min(longest);
        }
    }
}

/// What a record means to somebody who was not granted it.
enum Seen {
    Answer(Acquired),
    /// It counts as absent by now; its token, if it is still there.
    Over(Option<FencingToken>),
}

impl Seen {
    fn of(record: Option<Record>) -> Self {
        let Some(Record { token, phase, .. }) = record else { return Self::Over(None) };
        match phase {
            Phase::Done(Some(stored)) => Self::Answer(Acquired::Complete(stored)),
            Phase::Running(Some(remaining)) => Self::Answer(Acquired::Busy { remaining, token }),
            Phase::Running(None) | Phase::Done(None) | Phase::Released => Self::Over(Some(token)),
        }
    }
}

/// A takeover that is held back: nothing is left of the lease, and yet it cannot be had.
fn blocked(token: FencingToken) -> Acquired {
    Acquired::Busy { remaining: Duration::ZERO, token }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore")
            .field("config", &self.config)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for MysqlStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let answer = self.acquired(id, req).await.map_err(|trouble| of("acquire", id, trouble))?;
        match &answer {
            Acquired::Complete(_) => self.known.note(id, Duration::MAX),
            // A taker or a renewal ends the wait for the token that was seen before.
            Acquired::Granted(_) => self.wake.wake(id),
            Acquired::Busy { .. } => self.restless.note(id, Duration::MAX),
        }
        Ok(answer)
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let found = self
            .read(Lane::Caller, Statement::Find, id)
            .await
            .map_err(|trouble| of("peek", id, trouble))?;
        Ok(match Seen::of(found) {
            Seen::Answer(Acquired::Complete(stored)) => Peeked::Complete(stored),
            Seen::Answer(Acquired::Busy { remaining, token }) => Peeked::Busy { remaining, token },
            Seen::Answer(Acquired::Granted(_)) | Seen::Over(_) => Peeked::Absent,
        })
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.wait(id, seen, at_most).await.map_err(|trouble| of("wait_for_change", id, trouble))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.extended(id, owner, lease).await.map_err(|trouble| of("extend", id, trouble))
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.max_value {
            return Err(too_large(done.value.len(), self.max_value + PACKET_OVERHEAD)
                .during("complete")
                .for_identity(id));
        }
        self.completed(id, owner, done).await.map_err(|trouble| of("complete", id, trouble))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.released(id, owner).await.map_err(|trouble| of("release", id, trouble))
    }

    /// The largest value is the server's `max_allowed_packet` at connect, less 4 KiB for the rest
    /// of the row.
    fn profile(&self) -> StoreProfile {
        StoreProfile::new("mysql").with_max_value(self.max_value)
    }
}

fn of(operation: &'static str, id: &Identity, trouble: Trouble) -> Error {
    trouble.error.during(operation).for_identity(id)
}

/// With every capability that the store has.
impl From<MysqlStore> for SharedStore {
    fn from(store: MysqlStore) -> Self {
        store.into_shared()
    }
}
