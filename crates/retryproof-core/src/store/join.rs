// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the caller's transaction (CMP-7): what a store gives for it, and what a database driver
//! has to do.
//!
//! Core knows no driver. A store that keeps its records in a SQL database implements [`Join`]: it
//! hands out its completion as one statement, fenced by owner. A driver's transaction runs it
//! through [`TxPort`], so that the record commits with the business writes or not at all.
//! [`TxSource`] and [`OwnedTx`] are for an engine that opens and ends the transaction itself.
//!
//! The traits of drivers carry the store's [`Dialect`] as a parameter. That keeps a statement of
//! one database from a transaction of another, and it is what lets a store crate implement them for
//! types that neither it nor this crate owns.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::{Completion, IdempotencyStore};
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::OwnerId;

/// A database's way to write SQL: a marker that a store and the drivers of its database share.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dialect of SQL that a store and its drivers share",
    label = "a dialect is wanted here",
    note = "name that of the store, such as `PostgresDialect`; a store of your own declares \
            one by implementing `Dialect`"
)]
pub trait Dialect: Send + Sync + 'static {
    /// A short name for messages: `"sqlite"`.
    const NAME: &'static str;
}

/// One bound value. Three types are all that a completion needs, so any driver can carry it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Param<'a> {
    /// A binary string.
    Bytes(&'a [u8]),
    /// NULL in the place of a binary string.
    NoBytes,
    /// A 64 bit integer.
    Int(i64),
    /// A truth value.
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
    /// The text, with the placeholders of the dialect. It holds nothing of the caller's but a
    /// validated table name.
    pub sql: &'a str,
    /// The values.
    pub params: Vec<Param<'a>>,
}

impl<'a> JoinStatement<'a> {
    /// A statement.
    #[must_use]
    pub fn new(sql: &'a str, params: Vec<Param<'a>>) -> Self {
        Self { sql, params }
    }
}

/// A store whose completion can be written in the caller's transaction (CMP-7).
#[diagnostic::on_unimplemented(
    message = "the store `{Self}` cannot complete a record in a transaction",
    label = "a store that can join is wanted here",
    note = "use SQLite, PostgreSQL, MySQL or MariaDB; a store of your own implements `Join`"
)]
pub trait Join: IdempotencyStore {
    /// What its statements are written in.
    type Dialect: Dialect;

    /// The completion as one statement.
    ///
    /// # Behaviour
    /// IN_PROGRESS by `owner`, expired or not: COMPLETE with `done.value`, kept for `done.ttl` from
    /// the statement's own instant (not from the transaction's beginning), and exactly one row
    /// counts as changed. Anything else: no row. It is the fence of
    /// [`complete`](IdempotencyStore::complete), in one statement, and it never waits for a lock
    /// that the transaction itself holds.
    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a>;

    /// Wakes those who wait for the record. Called after the transaction was committed, never
    /// before; it must not block.
    fn committed(&self, id: &Identity);
}

/// A transaction of a database driver, as far as a completion needs it: ten lines for most drivers.
#[diagnostic::on_unimplemented(
    message = "no record can join `{Self}`",
    label = "not a transaction on the database of the store",
    note = "take a transaction of a driver that the store knows, on its database, or implement \
            `TxPort` for a wrapper of your driver's"
)]
pub trait TxPort<D: Dialect> {
    /// Runs one statement inside the transaction and says how many rows it matched.
    ///
    /// A driver that blocks may run it before it returns the future.
    ///
    /// Where the connection is in no transaction any more, it fails and runs nothing: in autocommit
    /// the record would be a commit of its own, without the writes (CMP-7). Some databases end a
    /// transaction by themselves after an error: MySQL after a deadlock, SQLite on a full disk.
    /// PostgreSQL aborts it, and refuses every statement by itself; the ports for it do not look
    /// whether the action ended the transaction.
    ///
    /// # Errors
    /// The driver's, as [`Error`](crate::Error) with the driver's own as its source. The
    /// transaction will be rolled back.
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// A transaction that can be handed about, and ended by whoever has it. Dropped, it is rolled back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be committed by the engine",
    label = "not a transaction that can be handed over",
    note = "take the transaction type of your `TxSource`: `SqliteTx`, `PostgresTx` or `MysqlTx`; \
            for another driver implement `OwnedTx`"
)]
pub trait OwnedTx<D: Dialect>: TxPort<D> + Send + Sized + 'static {
    /// How long an action may have it open, counted from its begin, in a database where an open
    /// transaction holds up the beats of other keys: SQLite, which has one writer. The engine drops
    /// an async action that takes longer, and rolls back. `None`, the default, is no bound.
    fn open_at_most(&self) -> Option<Duration> {
        None
    }

    /// Commits the transaction that was opened, and no other: one that the database rolled back by
    /// itself, or that the action ended, fails here, and nothing that was written on its connection
    /// since then is committed (CMP-7). The conformance kit judges that.
    ///
    /// # Errors
    /// When it was not committed, **or when nobody knows**: whoever called reads by owner what
    /// became of it.
    fn commit_tx(self) -> impl Future<Output = Result<()>> + Send + 'static;

    /// Rolls back.
    ///
    /// # Errors
    /// When it could not be confirmed; the connection must not be used again then, so that the
    /// database rolls back.
    fn roll_back_tx(self) -> impl Future<Output = Result<()>> + Send + 'static;
}

/// Opens transactions: a pool of the application, on the database that the store is in.
#[diagnostic::on_unimplemented(
    message = "`{Self}` opens no transactions that a record can join",
    label = "not a source of transactions",
    note = "on SQLite it is a `SqliteTxSource`, on PostgreSQL a `PgPool` and on MySQL a \
         `MySqlPool`, of sqlx 0.9, or of 0.8 with the features `postgres-sqlx-08` and \
         `mysql-sqlx-08`; for another driver implement `TxSource`, `OwnedTx` and `TxPort`"
)]
pub trait TxSource<D: Dialect>: Send + Sync + 'static {
    /// What it opens.
    type Tx: OwnedTx<D>;

    /// Opens one. Called after the lease was granted and committed, so that it sees the grant.
    ///
    /// # Errors
    /// `Unavailable` when there is none to be had in time.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx>> + Send;
}
