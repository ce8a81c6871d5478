// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same database (CMP-7): the completion as one statement, and the transactions of sqlx as ports.

use std::fmt;
use std::ops::{Deref, DerefMut};

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, Identity, OwnerId, Result};
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_mysql::{MySql, MySqlConnection, MySqlPool};

use crate::error::classify;
use crate::sql::arguments;
use crate::store::{MysqlStore, complete_statement};

/// MySQL's way to write SQL: marks the transactions that a [`MysqlStore`] can join.
#[derive(Debug, Clone, Copy)]
pub enum Mysql {}

impl Dialect for Mysql {
    const NAME: &'static str = "mysql";
}

impl Join for MysqlStore {
    type Dialect = Mysql;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let (sql, params) = complete_statement(&self.sql, id, owner, done);
        JoinStatement::new(sql, params.into())
    }

    fn committed(&self, id: &Identity) {
        self.wake.wake(id);
    }
}

/// In a transaction that was begun by hand, on a connection of the application's.
impl TxPort<Mysql> for MySqlConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let query = query_with(AssertSqlSafe(sql.to_owned()), arguments(params).map_err(refused)?);
        let done = self.execute(query).await.map_err(refused)?;
        Ok(done.rows_affected())
    }
}

/// `held.complete_in(&mut tx, value)`.
impl TxPort<Mysql> for Transaction<'_, MySql> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let conn: &mut MySqlConnection = self;
        conn.run_statement(sql, params).await
    }
}

/// An open transaction from the application's pool; a [`MySqlConnection`] to write with. Dropped, it is rolled back. Its end is the engine's: send
/// neither a `COMMIT` nor a statement that commits by itself, as `CREATE TABLE` does.
///
/// A type of its own, because the driver's has a lifetime, which keeps the futures of actions that borrow from crossing threads.
pub struct MysqlTx(Transaction<'static, MySql>);

impl Deref for MysqlTx {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.0
    }
}

impl DerefMut for MysqlTx {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.0
    }
}

impl fmt::Debug for MysqlTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlTx").finish_non_exhaustive()
    }
}

impl TxPort<Mysql> for MysqlTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.0.run_statement(sql, params).await
    }
}

impl OwnedTx<Mysql> for MysqlTx {
    async fn commit_tx(self) -> Result<()> {
        self.0.commit().await.map_err(refused)
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.0.rollback().await.map_err(refused)
    }
}

/// The application's own pool: `engine.joined(pool)`.
impl TxSource<Mysql> for MySqlPool {
    type Tx = MysqlTx;

    async fn begin(&self) -> Result<MysqlTx> {
        MySqlPool::begin(self).await.map(MysqlTx).map_err(refused)
    }
}

fn refused(error: sqlx_core::Error) -> Error {
    classify(error).error
}
