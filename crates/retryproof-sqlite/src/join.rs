// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same file (CMP-7): the completion as one statement, the driver's transactions as ports, and
//! [`SqliteTxSource`], from which an engine opens them.

use std::fmt;
use std::future::{Future, ready};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::blocking::in_blocking_context;
use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, ErrorKind, Identity, OwnerId, Result};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Transaction, params_from_iter};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::config::SqliteConfig;
use crate::error::{classify, is_busy};
use crate::file;
use crate::pause::{Patience, pause};
use crate::schema::Statement;
use crate::store::SqliteStore;
use crate::turn::{Taken, Turn};

/// Between two attempts to get the write lock from another process, or to commit beside a reader of one.
const AGAIN: Duration = Duration::from_millis(1);

/// SQLite's way to write SQL: marks the transactions that a [`SqliteStore`] can join.
#[derive(Debug, Clone, Copy)]
pub enum Sqlite {}

impl Dialect for Sqlite {
    const NAME: &'static str = "sqlite";
}

impl Join for SqliteStore {
    type Dialect = Sqlite;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let ttl = i64::try_from(done.ttl.as_micros()).unwrap_or(i64::MAX);
        let params = vec![
            Param::Bytes(id.scope().as_str().as_bytes()),
            Param::Bytes(id.key().expose().as_bytes()),
            Param::Bytes(owner.as_bytes()),
            Param::Int(self.now().saturating_add(ttl)),
            done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
            Param::Bytes(&done.value),
        ];
        JoinStatement::new(self.sql.of(Statement::JoinedComplete), params)
    }

    fn committed(&self, id: &Identity) {
        self.wake.wake(std::iter::once(id));
    }
}

/// For programs that own their transactions: `held.complete_in(&mut tx, value)`, from the blocking facade or on one thread, for the driver's
/// transaction does not leave its thread. In async programs take [`SqliteTxSource`].
impl TxPort<Sqlite> for Transaction<'_> {
    fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> impl Future<Output = Result<u64>> + Send {
        ready(run(self, sql, params))
    }
}

/// A connection inside of a transaction that was begun by hand, with `BEGIN IMMEDIATE`.
impl TxPort<Sqlite> for Connection {
    fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> impl Future<Output = Result<u64>> + Send {
        ready(run(self, sql, params))
    }
}

impl TxPort<Sqlite> for SqliteTx {
    fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> impl Future<Output = Result<u64>> + Send {
        ready(run(&self.conn, sql, params))
    }
}

fn run(conn: &Connection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    // In autocommit the record would be a commit of its own.
    if conn.is_autocommit() {
        return Err(Error::new(
            ErrorKind::Unexpected,
            "the connection is in no transaction: it was ended, by hand or by SQLite after an error",
        ));
    }
    let bound = params.iter().map(bind).collect::<Result<Vec<_>>>()?;
    let mut statement = conn.prepare_cached(sql).map_err(classify)?;
    let changed = statement.execute(params_from_iter(bound)).map_err(classify)?;
    Ok(u64::try_from(changed).unwrap_or(u64::MAX))
}

fn bind<'a>(param: &Param<'a>) -> Result<ToSqlOutput<'a>> {
    Ok(match *param {
        Param::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        Param::NoBytes => ToSqlOutput::Owned(Value::Null),
        Param::Int(number) => ToSqlOutput::Owned(Value::Integer(number)),
        Param::Bool(truth) => ToSqlOutput::Owned(Value::Integer(truth.into())),
        _ => return Err(Error::new(ErrorKind::Unsupported, "this store binds no value of that type")),
    })
}

/// Opens write transactions on the file of the store, for [`IdempotencyEngine::joined`](retryproof_core::IdempotencyEngine::joined). Cheap to clone.
///
/// It has one connection: SQLite lets one transaction write at a time, whoever has it. Those who want one queue for it, together with
/// the store's own writer, so that nobody starves. **An open transaction holds up every acquire, beat and completion of the file**: do the slow
/// things (calls to others) before the first statement, and keep it well under the shortest lease. A lease cannot be taken over meanwhile, so a long
/// one is slow, and not unsafe.
#[derive(Clone)]
pub struct SqliteTxSource {
    conn: Arc<Mutex<Connection>>,
    turn: Turn,
    busy_timeout: Duration,
}

impl SqliteTxSource {
    /// A connection of its own on the file at `path`, as durable as a store with the defaults: see [`SqliteConfig`].
    ///
    /// # Errors
    /// Those of [`SqliteStore::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(&SqliteConfig::new(path))
    }

    /// A connection of its own, on the file and with the durability and the busy time-out of `config`.
    ///
    /// # Errors
    /// Those of [`SqliteStore::open_with`].
    pub fn open_with(config: &SqliteConfig) -> Result<Self> {
        let conn = file::open(config).map_err(|error| error.during("open"))?;
        Ok(Self::new(conn, config.busy_timeout))
    }

    /// Takes a connection that the application has opened and set up: functions, pragmas, attached files. Its `synchronous` decides how durable a
    /// joined commit is, record included. Its busy time-out is set to zero; here nobody sleeps inside SQLite.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a connection without a file, or one that cannot write.
    pub fn over(conn: Connection) -> Result<Self> {
        if conn.path().is_none_or(str::is_empty) || conn.is_readonly("main").map_err(classify)? {
            return Err(Error::new(
                ErrorKind::Config,
                "joined transactions want a writable connection on the file of the store",
            ));
        }
        conn.busy_timeout(Duration::ZERO).map_err(classify)?;
        Ok(Self::new(conn, SqliteConfig::new("").busy_timeout))
    }

    fn new(conn: Connection, busy_timeout: Duration) -> Self {
        let turn = Turn::at(Path::new(conn.path().unwrap_or_default()));
        Self { conn: Arc::new(Mutex::new(conn)), turn, busy_timeout }
    }
}

impl TxSource<Sqlite> for SqliteTxSource {
    type Tx = SqliteTx;

    /// `BEGIN IMMEDIATE`: the write lock is held from here on, so that no statement of the transaction fails for want of it.
    async fn begin(&self) -> Result<SqliteTx> {
        let conn = Arc::clone(&self.conn).lock_owned().await;
        let turn = self.turn.wait().await;
        let tx = SqliteTx { conn, busy_timeout: self.busy_timeout, _turn: turn };
        // Left over by a roll-back that failed.
        tx.end();
        let patience = Patience::new(self.busy_timeout);
        loop {
            match tx.conn.execute_batch("BEGIN IMMEDIATE") {
                Ok(()) => return Ok(tx),
                Err(error) if is_busy(&error) && !patience.is_over() => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(classify(error)),
            }
        }
    }
}

impl fmt::Debug for SqliteTxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTxSource").finish_non_exhaustive()
    }
}

/// An open write transaction; a [`Connection`] to write with. Dropped, it is rolled back. Its end is the engine's: do not send a `COMMIT`.
///
/// Its calls block, but not for the disk: that is the commit's wait, which does not stall a runtime.
pub struct SqliteTx {
    conn: OwnedMutexGuard<Connection>,
    busy_timeout: Duration,
    /// Given on after the connection.
    _turn: Taken,
}

impl SqliteTx {
    fn commit(&self) -> Result<()> {
        let patience = Patience::new(self.busy_timeout);
        loop {
            if self.conn.is_autocommit() {
                return Err(Error::new(
                    ErrorKind::Unexpected,
                    "the transaction was ended before its commit, by hand or by SQLite after an error",
                ));
            }
            match self.conn.execute_batch("COMMIT") {
                Ok(()) => return Ok(()),
                Err(error) if is_busy(&error) && !patience.is_over() => pause(AGAIN),
                Err(error) => {
                    self.end();
                    return Err(classify(error));
                }
            }
        }
    }

    /// Rolls back what is open.
    fn end(&self) {
        if !self.conn.is_autocommit() {
            // If this fails, the next to begin tries again, or fails and says so.
            let _ = self.conn.execute_batch("ROLLBACK");
        }
    }
}

impl OwnedTx<Sqlite> for SqliteTx {
    async fn commit_tx(self) -> Result<()> {
        if in_blocking_context() || Handle::try_current().is_err() {
            return self.commit();
        }
        // It waits for the disk.
        let committing = tokio::task::spawn_blocking(move || self.commit());
        committing.await.unwrap_or_else(|gone| {
            Err(Error::unavailable("the runtime went away during the commit").because(gone))
        })
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.end();
        if self.conn.is_autocommit() {
            return Ok(());
        }
        Err(Error::unavailable("SQLite did not roll back"))
    }
}

impl Drop for SqliteTx {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for SqliteTx {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTx").finish_non_exhaustive()
    }
}
