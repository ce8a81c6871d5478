// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the caller's transaction (CMP-7): the interface between a store and a database driver.
//!
//! This crate does not depend on a database driver. A store that keeps its records in a SQL
//! database implements [`Join`]. Through this trait, the store returns its completion as one SQL
//! statement, fenced by owner. A driver's transaction runs that statement through [`TxPort`]. The
//! record then commits together with the business writes, or not at all. [`TxSource`] and
//! [`OwnedTx`] let the engine open and end the transaction itself.
//!
//! Each driver trait takes the store's [`Dialect`] as a parameter. The parameter prevents a
//! statement for one database from running in a transaction on another. It also allows a store
//! crate to implement the traits for types from other crates.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::{Completion, IdempotencyStore};
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::OwnerId;

/// A database's SQL dialect: a marker type shared by a store and its database's drivers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a SQL dialect shared by a store and its drivers",
    label = "expected a dialect",
    note = "use the store's dialect, such as `PostgresDialect`; for your own store, implement \
            `Dialect` for a marker type"
)]
pub trait Dialect: Send + Sync + 'static {
    /// A short name for messages, such as `"sqlite"`.
    const NAME: &'static str;
}

/// A bound value. A completion needs only these types, and every driver supports them.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Param<'a> {
    /// A binary string.
    Bytes(&'a [u8]),
    /// NULL instead of a binary string.
    NoBytes,
    /// A 64-bit integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
}

/// Prints types and lengths, never a key or a value (ID-4).
impl fmt::Debug for Param<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::NoBytes => f.write_str("NoBytes"),
            Self::Int(_) => f.write_str("Int"),
            Self::Bool(_) => f.write_str("Bool"),
        }
    }
}

impl<'a> From<Option<&'a [u8]>> for Param<'a> {
    fn from(bytes: Option<&'a [u8]>) -> Self {
        bytes.map_or(Self::NoBytes, Self::Bytes)
    }
}

/// A statement with its bound values, in the order of its placeholders.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JoinStatement<'a> {
    /// The SQL text, with the dialect's placeholders. An application controls only the table name
    /// in it, which has been validated.
    pub sql: &'a str,
    /// The values.
    pub params: Vec<Param<'a>>,
}

impl<'a> JoinStatement<'a> {
    /// Creates a statement with its bound values.
    #[must_use]
    pub fn new(sql: &'a str, params: Vec<Param<'a>>) -> Self {
        Self { sql, params }
    }
}

/// A store that can write its completion in the caller's transaction (CMP-7).
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot complete a record in a transaction",
    label = "expected a store that implements `Join`",
    note = "use SQLite, PostgreSQL, MySQL or MariaDB, or implement `Join` for your own store"
)]
pub trait Join: IdempotencyStore {
    /// The dialect of the store's statements.
    type Dialect: Dialect;

    /// Returns the completion as one statement.
    ///
    /// # Behaviour
    /// If the record is IN_PROGRESS for `owner`, even after the lease has ended, it becomes
    /// COMPLETE with `done.value`. Exactly one row then counts as changed. Otherwise no row
    /// changes. The record is kept for `done.ttl`, measured from the time of the statement, not
    /// from the beginning of the transaction.
    ///
    /// The statement has the same effect as [`complete`](IdempotencyStore::complete). It never
    /// waits for a lock that the transaction itself holds.
    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a>;

    /// Wakes the record's waiters. The engine calls this method only after the transaction has been
    /// committed. This method must not block.
    fn committed(&self, id: &Identity);
}

/// The part of a driver's transaction that a completion needs. An implementation usually takes
/// about ten lines.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction in which the store can write a record",
    label = "not a transaction on the store's database",
    note = "use a transaction from a driver that the store supports, on the store's database, or \
            implement `TxPort` for a wrapper around your driver's transaction"
)]
pub trait TxPort<D: Dialect> {
    /// Runs one statement inside the transaction and returns the number of rows that the statement
    /// matched.
    ///
    /// A blocking driver is allowed to run the statement before it returns the future.
    ///
    /// If the connection is no longer in a transaction, the call fails and runs nothing (CMP-7). In
    /// autocommit mode, the record would be committed without the business writes. Some databases
    /// end a transaction themselves after an error: MySQL after a deadlock, SQLite on a full disk.
    /// PostgreSQL instead refuses every further statement in the transaction, so ports for
    /// PostgreSQL make no check, and do not notice if the action itself ended the transaction.
    ///
    /// # Errors
    /// Fails with an [`Error`](crate::Error) whose source is the driver's error. The transaction
    /// will be rolled back.
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// An owned transaction, which the engine can move, commit and roll back. A drop rolls the
/// transaction back.
#[diagnostic::on_unimplemented(
    message = "the engine cannot commit `{Self}`",
    label = "expected an owned transaction",
    note = "use the transaction type of your `TxSource`: `SqliteTx`, `PostgresTx` or `MysqlTx`; \
            for another driver, implement `OwnedTx`"
)]
pub trait OwnedTx<D: Dialect>: TxPort<D> + Send + Sized + 'static {
    /// Returns how much longer the transaction may stay open. The engine asks before it calls the
    /// action. `None`, the default, means no limit.
    ///
    /// Set a limit for a database in which an open transaction delays the heartbeats of other keys,
    /// such as SQLite with its single writer. If an async action takes longer, the engine drops the
    /// action and rolls the transaction back.
    fn open_at_most(&self) -> Option<Duration> {
        None
    }

    /// Commits the transaction that the source opened, never a later one on the same connection.
    ///
    /// The call fails if the database rolled the transaction back or the action ended it. A failed
    /// call commits nothing that was written later on the same connection (CMP-7). The conformance
    /// kit checks this promise.
    ///
    /// # Errors
    /// Fails if the transaction was not committed, **or if the outcome is unknown**. The engine
    /// then reads the record to find out whether the transaction was committed.
    fn commit_tx(self) -> impl Future<Output = Result<()>> + Send + 'static;

    /// Rolls the transaction back.
    ///
    /// # Errors
    /// Fails if the rollback could not be confirmed. The connection must then be closed, which
    /// makes the database roll back.
    fn roll_back_tx(self) -> impl Future<Output = Result<()>> + Send + 'static;
}

/// A source of transactions on the store's database, usually the application's connection pool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not open transactions in which the store can write a record",
    label = "not a source of transactions",
    note = "use a `SqliteTxSource` for SQLite, or sqlx's `PgPool` or `MySqlPool` for PostgreSQL or \
            MySQL (sqlx 0.9, or 0.8 with the feature `postgres-sqlx-08` or `mysql-sqlx-08`); for \
            another driver, implement `TxSource`, `OwnedTx` and `TxPort`"
)]
pub trait TxSource<D: Dialect>: Send + Sync + 'static {
    /// The type of the transactions that this source opens.
    type Tx: OwnedTx<D>;

    /// Opens a transaction. The engine calls this method after the grant has been committed, so
    /// that the transaction sees the grant.
    ///
    /// # Errors
    /// `Unavailable` if no transaction could be opened in time.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx>> + Send;
}
