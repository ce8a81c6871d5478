// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same database (CMP-7): the completion as one
//! statement, and the transactions of sqlx as ports.

use std::sync::Arc;

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, Param, TxPort};
use retryproof_core::{Identity, OwnerId, Result};
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use sqlx_mysql::{MySql, MySqlConnection};

use crate::connection::{Session, Want};
use crate::error::{Trouble, classify};
use crate::statement::{Sql, Statement, arguments};
use crate::store::{MysqlStore, complete_statement};

#[cfg(feature = "sqlx-08")]
pub mod sqlx_08;
mod transaction;

pub use transaction::MysqlTx;
use transaction::probe;

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
/// MariaDB, from 11.6.2 on by default, refuses to update a row that has changed since a transaction
/// at REPEATABLE READ first read anything (error 1020, `innodb_snapshot_isolation`). The beats
/// change the record's row all the time (RUN-1), so no transaction that reads first and outlasts a
/// beat could ever be joined. The statement asks for the owner in the row as it is now (CMP-2) and
/// needs no snapshot: it goes without, alone. The isolation of the transaction is the application's
/// choice and stays: under READ COMMITTED, say, its own locking reads would keep no phantoms out.
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
///
/// Outside of one, say after a deadlock that rolled it back, it fails (CMP-7). A round trip before
/// the statement finds that out.
impl TxPort<Mysql> for MySqlConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        probe(self).await?;
        run(self, sql, params).await
    }
}

/// `held.complete_in(&mut tx, value)`. It fails where the server has rolled the transaction back,
/// as on a connection.
impl TxPort<Mysql> for Transaction<'_, MySql> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let conn: &mut MySqlConnection = self;
        conn.run_statement(sql, params).await
    }
}

/// The statement alone; the rows that it matched.
async fn run(conn: &mut MySqlConnection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let refused = |error| classify(error).error;
    let query = query_with(AssertSqlSafe(sql.to_owned()), arguments(params).map_err(refused)?);
    Ok(conn.execute(query).await.map_err(refused)?.rows_affected())
}
