// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same database (CMP-7): the completion as one statement, and the transactions of sqlx as ports.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, Identity, OwnerId, Result};
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_mysql::{MySql, MySqlConnection, MySqlPool};

use crate::error::{Trouble, classify};
use crate::session::{Session, Want};
use crate::sql::{Sql, Statement, arguments};
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
        let (_, params) = complete_statement(&self.sql, id, owner, done);
        JoinStatement::new(&self.joined, params.into())
    }

    fn committed(&self, id: &Identity) {
        self.wake.wake(id);
    }
}

/// The completion for a transaction of the application's, on the server at the other end.
///
/// MariaDB, from 11.6.2 on by default, refuses to update a row that has changed since a transaction at REPEATABLE READ first read anything
/// (error 1020, `innodb_snapshot_isolation`). The beats change the record's row all the time (RUN-1), so no transaction that reads first
/// and outlasts a beat could ever be joined. The statement asks for the owner in the row as it is now (CMP-2) and needs no snapshot:
/// it goes without, alone. The isolation of the transaction is the application's choice and stays: under READ COMMITTED, say, its own locking
/// reads would keep no phantoms out.
pub(crate) async fn statement(session: &mut Session, sql: &Sql) -> Result<Arc<str>, Trouble> {
    let text = sql.of(Statement::Complete);
    let ask = Arc::from("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'");
    let known = session.run(&ask, &[], Want::Rows, false).await.map_err(classify)?;
    Ok(match known.rows.is_empty() {
        true => Arc::clone(text),
        // Even where it is off: a session may set it.
        false => format!("SET STATEMENT innodb_snapshot_isolation=OFF FOR {text}").into(),
    })
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

/// The application's own pool: `engine.joined(pool)`. Its transactions are begun as the connection has it, which is REPEATABLE READ unless
/// it was set otherwise.
impl TxSource<Mysql> for MySqlPool {
    type Tx = MysqlTx;

    async fn begin(&self) -> Result<MysqlTx> {
        MySqlPool::begin(self).await.map(MysqlTx).map_err(refused)
    }
}

fn refused(error: sqlx_core::Error) -> Error {
    classify(error).error
}
