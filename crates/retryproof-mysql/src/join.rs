// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completes a record inside the application's transaction on the same database (CMP-7). The
//! completion is one statement, which sqlx's transactions and connections can run.

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, Param, TxPort};
use retryproof_core::{Identity, OwnerId, Result};
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_mysql::{MySql, MySqlConnection};

use crate::error::classify;
use crate::statement::{arguments, completion_params};
use crate::store::MysqlStore;

#[cfg(feature = "sqlx-08")]
pub mod sqlx_08;
mod transaction;

pub use transaction::MysqlTx;
use transaction::probe;

/// The SQL dialect of MySQL and MariaDB. This type marks the transactions that a [`MysqlStore`] can
/// join.
#[derive(Debug, Clone, Copy)]
pub enum MysqlDialect {}

impl Dialect for MysqlDialect {
    const NAME: &'static str = "mysql";
}

impl Join for MysqlStore {
    type Dialect = MysqlDialect;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        JoinStatement::new(&self.joined_completion, completion_params(id, owner, done).into())
    }

    fn committed(&self, id: &Identity) {
        self.waiters.notify(id);
    }
}

/// Supports a transaction that the program began by hand on the connection.
///
/// If no transaction is open, for example because a deadlock rolled it back, the statement fails
/// (CMP-7). The check for an open transaction costs one extra round trip.
impl TxPort<MysqlDialect> for MySqlConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        probe(self).await?;
        run(self, sql, params).await
    }
}

/// Supports `held.complete_in(&mut tx, value)`. If the server has rolled the transaction back, the
/// statement fails, just as it does on a plain connection.
impl TxPort<MysqlDialect> for Transaction<'_, MySql> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let conn: &mut MySqlConnection = self;
        conn.run_statement(sql, params).await
    }
}

/// Runs the statement, and returns the number of rows that it matched. Does not check that a
/// transaction is open.
async fn run(conn: &mut MySqlConnection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let refused = |error| classify(error).error;
    let query = query_with(AssertSqlSafe(sql.to_owned()), arguments(params).map_err(refused)?);
    Ok(conn.execute(query).await.map_err(refused)?.rows_affected())
}
