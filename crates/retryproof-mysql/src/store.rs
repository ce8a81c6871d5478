// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlStore`]: the contract over single statements.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, Fenced, Grant, SharedStore, Standing, StoreProfile,
};
use retryproof_core::{Error, ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::config::MysqlConfig;
use crate::error::{Class, Trouble, classify};
use crate::known::Known;
use crate::pool::{Lane, Pool};
use crate::record::{Phase, Record};
use crate::schema::{CHECK_MOST, check};
use crate::session::{Answer, Want};
use crate::sql::{Param, Sql, Statement};
use crate::wake::Wake;

/// Between two looks of a waiter: at first, and at most (ACQ-4).
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// How often a statement that lost a race is sent again, and how long the pause before it is at most.
const RACES: (u32, Duration) = (20, Duration::from_millis(20));
/// How often a statement of a holder is sent again after a wait of a second for a lock, and an acquire whose row nobody can see.
const AGAIN: u32 = 2;
/// Room in a packet for the other columns and their lengths.
const PACKET_OVERHEAD: usize = 4_096;

/// Keeps records in a table of a MySQL or MariaDB server, for any number of processes.
///
/// Every operation is one statement that commits by itself, on connections of its own. Expiry is judged by the server's clock (ACQ-7). A
/// dropped call closes its connection; what its statement did stays done.
pub struct MysqlStore {
    pub(crate) config: MysqlConfig,
    pub(crate) sql: Sql,
    pub(crate) pool: Pool,
    wake: Wake,
    known: Known,
    returning: bool,
    max_value: usize,
}

/// The fenced statement that completes a record, with its values in bind order: to be run as it is on the store's connection, or by a caller on
/// a connection in the middle of its own transaction (CMP-7). It counts one row when it took effect.
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
        Param::OptionalBytes(done.fingerprint.as_ref().map(|fp| fp.as_bytes())),
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
    /// [`ErrorKind::Schema`] when the tables are missing or of another version (STO-3); [`ErrorKind::Config`] for a wrong user, password or
    /// database, and an invalid table name; [`ErrorKind::Unexpected`] for a missing privilege; [`ErrorKind::Unsupported`] for a server that
    /// is too old; [`ErrorKind::Unavailable`] when it cannot be reached.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        Self::connected(config).await.map_err(|trouble| trouble.error.during("connect"))
    }

    async fn connected(config: MysqlConfig) -> Result<Self, Trouble> {
        let table = config.table()?;
        let sql = Sql::new(table);
        let pool = Pool::new(config.options.clone(), config.connections, config.reserved(), config.patience);
        let mut loan = pool.lend(Lane::Caller).await?;
        timeout(CHECK_MOST, check(&mut loan.session, table))
            .await
            .map_err(|_| Error::unavailable("the MySQL server did not answer in time"))??;
        let server = loan.session.server;
        loan.give_back();
        Ok(Self {
            sql,
            pool,
            wake: Wake::default(),
            known: Known::new(),
            returning: server.returning && config.returning.unwrap_or(true),
            max_value: server.max_packet.saturating_sub(PACKET_OVERHEAD),
            config,
        })
    }

    /// The store as an engine takes it, with the capabilities to purge and to inspect.
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        SharedStore::builder(self).with_purge().with_inspect().build()
    }

    /// One statement in one round trip. What lost a race is sent again, and what met a dead connection once more on a new one: every
    /// statement of ours may be repeated, for the owner in it settles what it finds (ACQ-9, CMP-3).
    pub(crate) async fn run(
        &self,
        lane: Lane,
        sql: &Arc<str>,
        params: &[Param<'_>],
        want: Want,
    ) -> Result<Answer, Trouble> {
        self.send(lane, sql, params, want, true).await
    }

    /// As [`run`](Self::run); unless it is `kept`, the connection forgets the statement afterwards.
    pub(crate) async fn send(
        &self,
        lane: Lane,
        sql: &Arc<str>,
        params: &[Param<'_>],
        want: Want,
        kept: bool,
    ) -> Result<Answer, Trouble> {
        let (mut races, mut renewed) = (0, false);
        loop {
            let mut loan = self.pool.lend(lane).await?;
            let bound = self.config.statement_timeout;
            let Ok(answer) = timeout(bound, loan.session.run(sql, params, want, kept)).await else {
                return Err(Trouble {
                    class: Class::Broken,
                    error: Error::unavailable("the MySQL server did not answer a statement in time")
                        .with("after", format_args!("{bound:?}")),
                });
            };
            let trouble = match answer {
                Ok(answer) => {
                    loan.give_back();
                    return Ok(answer);
                }
                Err(error) => classify(error),
            };
            match trouble.class {
                Class::Broken => {
                    let reused = loan.reused;
                    drop(loan);
                    if !reused || renewed {
                        return Err(trouble);
                    }
                    self.pool.distrust();
                    renewed = true;
                }
                Class::Race if races < RACES.0 => {
                    loan.give_back();
                    races += 1;
                    sleep(self.wake.jitter(RACES.1 * races / RACES.0)).await;
                }
                // Another server may be the primary by now.
                Class::ReadOnly => {
                    drop(loan);
                    return Err(trouble);
                }
                Class::Race | Class::Locked | Class::Moved | Class::Final => {
                    loan.give_back();
                    return Err(trouble);
                }
            }
        }
    }

    /// Reads a record by a plain SELECT: no lock, nothing written (ACQ-8).
    async fn read(&self, lane: Lane, statement: Statement, id: &Identity) -> Result<Option<Record>, Trouble> {
        let answer = self.run(lane, self.sql.of(statement), &key_of(id), Want::Rows).await?;
        Ok(answer.rows.first().map(Record::of).transpose()?)
    }

    /// The upsert, in one trip; two where the server cannot return the row and the key is in use.
    async fn upsert(&self, id: &Identity, req: &AcquireRequest) -> Result<Option<Acquired>, Trouble> {
        let [scope, key] = key_of(id);
        let params = [
            scope,
            key,
            Param::Bytes(req.owner.as_bytes()),
            Param::Int(micros(req.lease)),
            Param::Int(micros(req.ttl)),
            Param::OptionalBytes(req.fingerprint.as_ref().map(|fp| fp.as_bytes())),
        ];
        if self.returning {
            let answer = self.run(Lane::Caller, self.sql.of(Statement::Grant), &params, Want::Rows).await?;
            let row = answer.rows.first().ok_or_else(|| {
                Error::new(ErrorKind::Unexpected, "the server returned no row of the record that it inserted")
            })?;
            let record = Record::of(row)?;
            return Ok(match record.phase {
                // The row says what is there after the statement: ours, in progress, means that it was granted.
                Phase::Running(_) if record.owner == req.owner => {
                    Some(Acquired::Granted(Grant::new(record.token, req.lease, record.taken)))
                }
                _ => answer_of(record),
            });
        }
        let answer =
            self.run(Lane::Caller, self.sql.of(Statement::GrantPortable), &params, Want::Counts).await?;
        if answer.insert_id != 0 {
            let token = FencingToken::new(answer.insert_id / 2);
            return Ok(Some(Acquired::Granted(Grant::new(token, req.lease, answer.insert_id % 2 == 1))));
        }
        Ok(self.read(Lane::Caller, Statement::Find, id).await?.and_then(answer_of))
    }

    async fn acquired(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired, Trouble> {
        if self.known.has(id) {
            match self.read(Lane::Caller, Statement::Find, id).await?.and_then(answer_of) {
                Some(Acquired::Complete(stored)) => return Ok(Acquired::Complete(stored)),
                _ => self.known.forget(id),
            }
        }
        let mut again = 0;
        loop {
            let trouble = match self.upsert(id, req).await {
                Ok(Some(answer)) => return Ok(answer),
                // Without RETURNING: the record that stood in the way was over before it was read.
                Ok(None) => Trouble {
                    class: Class::Moved,
                    error: Error::unavailable("the record changed again and again while it was read"),
                },
                Err(trouble) => trouble,
            };
            match trouble.class {
                // Somebody holds the row in a transaction of their own, say a joined completion (CMP-7): that is not waited for here.
                Class::Locked => match self.read(Lane::Caller, Statement::Find, id).await? {
                    Some(Record { owner, phase: Phase::Running(_), .. }) if owner == req.owner => {
                        return Err(trouble);
                    }
                    Some(record) => {
                        let token = record.token;
                        let blocked = Acquired::Busy { remaining: Duration::ZERO, token };
                        return Ok(answer_of(record).unwrap_or(blocked));
                    }
                    None if again < AGAIN => {}
                    None => return Err(trouble),
                },
                // Completed keys are still replayed.
                Class::ReadOnly => {
                    return match self
                        .read(Lane::Caller, Statement::Find, id)
                        .await
                        .map(|r| r.and_then(answer_of))
                    {
                        Ok(Some(Acquired::Complete(stored))) => Ok(Acquired::Complete(stored)),
                        _ => Err(trouble),
                    };
                }
                Class::Moved if again < AGAIN => {}
                _ => return Err(trouble),
            }
            again += 1;
        }
    }

    /// A fenced statement: the rows that matched, or, when somebody sat on the row for seconds, an error.
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

    async fn extended(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<Fenced, Trouble> {
        let [scope, key] = key_of(id);
        let params = [Param::Int(micros(lease)), scope, key, Param::Bytes(owner.as_bytes())];
        let done = self.fenced(self.sql.of(Statement::Extend), &params).await?;
        Ok(if done { Fenced::Done } else { Fenced::Lost })
    }

    async fn completed(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced, Trouble> {
        let (sql, params) = complete_statement(&self.sql, id, &owner, done);
        if self.fenced(sql, &params).await? {
            self.known.note(id);
            self.wake.wake(id);
            return Ok(Fenced::Done);
        }
        Ok(match self.read(Lane::Holder, Statement::Standing, id).await? {
            Some(Record { owner: by, phase: Phase::Done(_), .. }) if by == owner => Fenced::AlreadyDone,
            _ => Fenced::Lost,
        })
    }

    async fn released(&self, id: &Identity, owner: OwnerId) -> Result<Fenced, Trouble> {
        let [scope, key] = key_of(id);
        let params = [scope, key, Param::Bytes(owner.as_bytes())];
        if self.fenced(self.sql.of(Statement::Release), &params).await? {
            self.wake.wake(id);
            return Ok(Fenced::Done);
        }
        Ok(match self.read(Lane::Holder, Statement::Standing, id).await? {
            None | Some(Record { phase: Phase::Released, .. }) => Fenced::AlreadyDone,
            Some(_) => Fenced::Lost,
        })
    }

    /// How long the holder with token `seen` still has; `None` when it is no longer at work.
    async fn held(&self, id: &Identity, seen: FencingToken) -> Result<Option<Duration>, Trouble> {
        Ok(match self.read(Lane::Caller, Statement::Standing, id).await? {
            Some(Record { token, phase: Phase::Running(left), .. }) if token == seen => left,
            _ => None,
        })
    }

    async fn wait(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<(), Trouble> {
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

/// What a record means to somebody who was not granted it; `None` when it counts as absent.
fn answer_of(record: Record) -> Option<Acquired> {
    match record.phase {
        Phase::Done(Some(stored)) => Some(Acquired::Complete(stored)),
        Phase::Running(Some(remaining)) => Some(Acquired::Busy { remaining, token: record.token }),
        Phase::Running(None) | Phase::Done(None) | Phase::Released => None,
    }
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
            Acquired::Complete(_) => self.known.note(id),
            // A taker or a renewal ends the wait for the token that was seen before.
            Acquired::Granted(_) => self.wake.wake(id),
            Acquired::Busy { .. } => {}
        }
        Ok(answer)
    }

    async fn look(&self, id: &Identity) -> Result<Standing> {
        let found =
            self.read(Lane::Caller, Statement::Find, id).await.map_err(|trouble| of("look", id, trouble))?;
        Ok(match found.and_then(answer_of) {
            Some(Acquired::Complete(stored)) => Standing::Complete(stored),
            Some(Acquired::Busy { remaining, token }) => Standing::Busy { remaining, token },
            _ => Standing::Absent,
        })
    }

    async fn changed(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        self.wait(id, seen, at_most).await.map_err(|trouble| of("changed", id, trouble))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<Fenced> {
        self.extended(id, owner, lease).await.map_err(|trouble| of("extend", id, trouble))
    }

    async fn complete(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        if done.value.len() > self.max_value {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "the value is larger than the store accepts; `max_allowed_packet` bounds it",
            )
            .with("bytes", done.value.len())
            .with("at_most", self.max_value)
            .during("complete")
            .for_identity(id));
        }
        self.completed(id, owner, done).await.map_err(|trouble| of("complete", id, trouble))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<Fenced> {
        self.released(id, owner).await.map_err(|trouble| of("release", id, trouble))
    }

    /// The largest value is the server's `max_allowed_packet` at connect, less 4 KiB for the rest of the row.
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
