// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins the application's transaction on the same database (CMP-7): builds the completion as one
//! statement, and runs it in sqlx's transactions.
//!
//! Support for another driver takes only a few lines; see `join/tokio_postgres.rs` for an example.

#[cfg(feature = "sqlx-08")]
pub mod sqlx_08;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;
pub(crate) mod transaction;

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, Param, TxPort};
#[cfg(any(feature = "sqlx-08", feature = "tokio-postgres"))]
use retryproof_core::{Error, ErrorKind};
use retryproof_core::{Identity, OwnerId, Result};
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_postgres::PgConnection;

use crate::connection::arguments;
use crate::error::{Failure, classify};
use crate::statement::Statement;
use crate::store::PostgresStore;

/// The SQL dialect of PostgreSQL, which marks the transactions that a [`PostgresStore`] can join.
#[derive(Debug, Clone, Copy)]
pub enum PostgresDialect {}

impl Dialect for PostgresDialect {
    const NAME: &'static str = "postgres";
}

impl Join for PostgresStore {
    type Dialect = PostgresDialect;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let statement = self.statements.complete(Statement::Join, id, owner, done);
        JoinStatement::new(self.statements.get(Statement::Join), statement.params)
    }

    fn committed(&self, id: &Identity) {
        self.notify_finished(id);
    }
}

/// Supports a transaction that the application began with `BEGIN` on its connection.
impl TxPort<PostgresDialect> for PgConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let query = query_with(
            AssertSqlSafe(sql.to_owned()),
            arguments(params).map_err(Failure::into_error)?,
        );
        let done = self.execute(query).await.map_err(|error| classify(&error))?;
        Ok(done.rows_affected())
    }
}

/// Supports `held.complete_in(&mut tx, value)`.
impl TxPort<PostgresDialect> for Transaction<'_, sqlx_postgres::Postgres> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let conn: &mut PgConnection = self;
        conn.run_statement(sql, params).await
    }
}

/// Returns the error for a failure that another driver reports. The error holds the SQLSTATE but
/// not the server's text, which may quote values (ID-4).
#[cfg(any(feature = "sqlx-08", feature = "tokio-postgres"))]
fn driver_error(code: Option<&str>) -> Error {
    let kind = code.map_or(ErrorKind::Unavailable, crate::error::kind_of);
    Error::new(kind, "a statement in the application's transaction failed")
        .with("sqlstate", code.unwrap_or("none: the connection broke or could not be opened"))
}
