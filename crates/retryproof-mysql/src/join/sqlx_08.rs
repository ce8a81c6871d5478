// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completes records in transactions of sqlx 0.8 (feature `sqlx-08`).
//!
//! `engine.joined(pool)` takes the `sqlx::MySqlPool` of sqlx 0.8, and `held.complete_in(&mut tx,
//! value)` takes a `Transaction` or `MySqlConnection` of that version. The store's own connections
//! use a newer sqlx.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, DerefMut};

use retryproof_core::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, Result};
use sqlx_core_08::Error as Driver;
use sqlx_core_08::arguments::Arguments as _;
use sqlx_core_08::executor::Executor as _;
use sqlx_core_08::pool::PoolConnection;
use sqlx_core_08::query::query_with;
use sqlx_core_08::raw_sql::raw_sql;
use sqlx_core_08::transaction::{Transaction, TransactionManager as _};
use sqlx_mysql_08::{
    MySql, MySqlArguments, MySqlConnection, MySqlDatabaseError, MySqlPool, MySqlTransactionManager,
};

use super::MysqlDialect;
use super::transaction::{NO_SAVEPOINT, transaction_gone};
use crate::error::other_driver;

/// Supports a transaction that the program began by hand on the connection.
///
/// If no transaction is open, for example because a deadlock rolled it back, the statement fails
/// (CMP-7). The check for an open transaction costs one extra round trip.
impl TxPort<MysqlDialect> for MySqlConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.execute(raw_sql(MysqlDialect::PROBE)).await.map_err(refused)?;
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

/// [`MysqlTx`](crate::MysqlTx) for sqlx 0.8: an open transaction from the application's pool, with
/// the same guarantees. It dereferences to a `sqlx::MySqlConnection` for writes.
pub struct MysqlTx {
    conn: PoolConnection<MySql>,
    /// Whether the transaction has ended and autocommit has its old value again. Otherwise, the
    /// connection must not go back to the pool.
    ended: bool,
}

impl MysqlTx {
    async fn end(&mut self, sql: &'static str) -> Result<(), Driver> {
        self.conn.execute(raw_sql(sql)).await?;
        if MySqlTransactionManager::get_transaction_depth(&self.conn) == 1 {
            // Without this call, the driver would still count the transaction as open. The call
            // also queues a ROLLBACK. The driver sends it with the pool's ping, when there is
            // nothing left to roll back.
            MySqlTransactionManager::start_rollback(&mut self.conn);
            self.ended = true;
        }
        Ok(())
    }
}

impl Drop for MysqlTx {
    fn drop(&mut self) {
        if !self.ended {
            // Do not return the connection to the pool. Autocommit would stay off, so the next
            // user's writes would not be committed.
            self.conn.close_on_drop();
        }
    }
}

impl Deref for MysqlTx {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.conn
    }
}

impl DerefMut for MysqlTx {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.conn
    }
}

impl fmt::Debug for MysqlTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlTx").finish_non_exhaustive()
    }
}

/// Runs a statement in one round trip. Does not check that the transaction is still open, because
/// the commit fails if it is not.
impl TxPort<MysqlDialect> for MysqlTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        run(&mut self.conn, sql, params).await
    }
}

impl OwnedTx<MysqlDialect> for MysqlTx {
    async fn commit_tx(mut self) -> Result<()> {
        let Err(error) = self.end(MysqlDialect::COMMIT).await else { return Ok(()) };
        if number(&error) == Some(NO_SAVEPOINT) {
            // The savepoint is gone, so the transaction has already ended. Roll back the new
            // transaction that the server has begun since then, and any writes in it.
            let _ = self.end(MysqlDialect::ROLL_BACK).await;
        }
        Err(refused(error))
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.end(MysqlDialect::ROLL_BACK).await.map_err(refused)
    }
}

/// Supports `engine.joined(pool)` with the application's pool. Transactions have the connection's
/// isolation level, which is REPEATABLE READ by default.
impl TxSource<MysqlDialect> for MySqlPool {
    type Tx = MysqlTx;

    async fn begin(&self) -> Result<MysqlTx> {
        // From here on, dropping `tx` closes the connection unless the transaction has ended. A
        // connection with autocommit off therefore never goes back to the pool.
        let mut tx = MysqlTx { conn: self.acquire().await.map_err(refused)?, ended: false };
        MySqlTransactionManager::begin(&mut tx.conn, Some(Cow::Borrowed(MysqlDialect::BEGIN)))
            .await
            .map_err(refused)?;
        Ok(tx)
    }
}

/// Runs the statement, and returns the number of rows that it matched. Does not check that a
/// transaction is open.
async fn run(conn: &mut MySqlConnection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let query = query_with::<MySql, _>(sql, arguments(params).map_err(refused)?);
    Ok(conn.execute(query).await.map_err(refused)?.rows_affected())
}

fn arguments(params: &[Param<'_>]) -> Result<MySqlArguments, Driver> {
    let mut arguments = MySqlArguments::default();
    for param in params {
        match *param {
            Param::Bytes(bytes) => arguments.add(bytes),
            Param::NoBytes => arguments.add(None::<&[u8]>),
            Param::Int(number) => arguments.add(number),
            Param::Bool(truth) => arguments.add(truth),
            _ => Err("the store cannot bind a value of this type".into()),
        }
        .map_err(Driver::Encode)?;
    }
    Ok(arguments)
}

fn server(error: &Driver) -> Option<&MySqlDatabaseError> {
    error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()
}

fn number(error: &Driver) -> Option<u16> {
    server(error).map(MySqlDatabaseError::number)
}

fn refused(error: Driver) -> Error {
    let known = server(&error).map(|server| (server.number(), server.code().unwrap_or("")));
    let translated = other_driver(known);
    if number(&error) == Some(NO_SAVEPOINT) { transaction_gone(translated) } else { translated }
}
