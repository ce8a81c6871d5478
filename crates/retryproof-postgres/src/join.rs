// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same database (CMP-7): the completion as one
//! statement, and the transactions of sqlx as ports.
//!
//! Other drivers stand in the same place by a few lines of their own: `join/tokio_postgres.rs` is
//! one of them.

use std::fmt;
use std::ops::{Deref, DerefMut};

use retryproof_core::store::{
    Completion, Dialect, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource,
};
use retryproof_core::{Error, ErrorKind, Identity, OwnerId, Result};
use sqlx_core::arguments::Arguments as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_postgres::{PgArguments, PgConnection, PgPool};

use crate::error::classify;
use crate::statement::Statement;
use crate::statement::bound::Value;
use crate::store::PostgresStore;

#[cfg(feature = "sqlx-08")]
pub mod sqlx_08;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

/// PostgreSQL's way to write SQL: marks the transactions that a [`PostgresStore`] can join. Not
/// `sqlx`'s type of that name.
#[derive(Debug, Clone, Copy)]
pub enum Postgres {}

impl Dialect for Postgres {
    const NAME: &'static str = "postgres";
}

impl Join for PostgresStore {
    type Dialect = Postgres;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let params =
            self.sql().complete(Statement::Join, id, owner, done).into_values().into_iter().map(
                |value| match value {
                    Value::Bytes(bytes) => bytes.into(),
                    Value::Int(number) => Param::Int(number),
                },
            );
        JoinStatement::new(self.sql().text(Statement::Join), params.collect())
    }

    fn committed(&self, id: &Identity) {
        self.told(id);
    }
}

/// In a transaction that was begun by hand, on a connection of the application's.
impl TxPort<Postgres> for PgConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let query = query_with(AssertSqlSafe(sql.to_owned()), arguments(params)?);
        let done = self.execute(query).await.map_err(|error| classify(&error))?;
        Ok(done.rows_affected())
    }
}

/// `held.complete_in(&mut tx, value)`.
impl TxPort<Postgres> for Transaction<'_, sqlx_postgres::Postgres> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let conn: &mut PgConnection = self;
        conn.run_statement(sql, params).await
    }
}

/// An open transaction from the application's pool; a [`PgConnection`] to write with. Dropped, it
/// is rolled back. Its end is the engine's: send neither `COMMIT` nor `ROLLBACK`. After either of
/// them PostgreSQL goes on in autocommit and nothing notices: the later writes, and the record,
/// would each be a commit of its own. To give up, return an error; to take back a part, use a
/// savepoint. A transaction that an error has aborted is not committed, whatever the action did
/// after it.
///
/// A type of its own, because the driver's has a lifetime, which keeps the futures of actions that
/// borrow from crossing threads.
pub struct PostgresTx(Transaction<'static, sqlx_postgres::Postgres>);

impl Deref for PostgresTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for PostgresTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

impl fmt::Debug for PostgresTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTx").finish_non_exhaustive()
    }
}

impl TxPort<Postgres> for PostgresTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.0.run_statement(sql, params).await
    }
}

impl OwnedTx<Postgres> for PostgresTx {
    async fn commit_tx(self) -> Result<()> {
        self.0.commit().await.map_err(|error| classify(&error))
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.0.rollback().await.map_err(|error| classify(&error))
    }
}

/// The application's own pool: `engine.joined(pool)`. Its transactions are begun as the connection
/// has it, which is READ COMMITTED unless it was set otherwise.
impl TxSource<Postgres> for PgPool {
    type Tx = PostgresTx;

    async fn begin(&self) -> Result<PostgresTx> {
        PgPool::begin(self).await.map(PostgresTx).map_err(|error| classify(&error))
    }
}

fn arguments(params: &[Param<'_>]) -> Result<PgArguments> {
    let mut arguments = PgArguments::default();
    for param in params {
        match *param {
            Param::Bytes(bytes) => arguments.add(bytes),
            Param::NoBytes => arguments.add(None::<&[u8]>),
            Param::Int(number) => arguments.add(number),
            Param::Bool(truth) => arguments.add(truth),
            _ => return Err(unbound()),
        }
        .map_err(|error| classify(&sqlx_core::Error::Encode(error)))?;
    }
    Ok(arguments)
}

fn unbound() -> Error {
    Error::new(ErrorKind::Unsupported, "this store binds no value of that type")
}

/// What another driver was refused, by its SQLSTATE and without its text, which may quote values
/// (ID-4).
#[cfg(any(feature = "sqlx-08", feature = "tokio-postgres"))]
fn refused(code: Option<&str>) -> Error {
    let kind = code.map_or(ErrorKind::Unavailable, crate::error::kind_of);
    Error::new(kind, "PostgreSQL refused a statement of the application's transaction")
        .with("sqlstate", code.unwrap_or("none: there was no connection, or it broke"))
}
