// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlTx`]: a transaction that the engine opens and ends. The commit fails unless the open
//! transaction is the one that the engine opened (CMP-7).
//!
//! InnoDB rolls back the *whole* transaction on a deadlock (1213) and, with
//! `innodb_rollback_on_timeout`, on a lock timeout (1205). An action that catches the error and
//! sends the statement again would continue in autocommit. Its earlier writes would be lost, and
//! its later writes and the record would each be committed alone. An action also ends the
//! transaction if it sends `ROLLBACK`, `COMMIT` or `CREATE TABLE`. Two portable measures guard
//! against an ended transaction, and neither costs a round trip:
//!
//! - autocommit is off while the transaction is open. If the transaction ends early, the server
//!   runs the later statements in an implicit transaction, which only the engine can commit;
//! - a savepoint is set when the transaction is opened, and released just before the COMMIT. A
//!   savepoint ends with its transaction. In any other transaction, the release therefore fails
//!   (1305), and the server does not execute the COMMIT.

use std::fmt;
use std::ops::{Deref, DerefMut};

use retryproof_core::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, ErrorKind, Result};
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolConnection;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::SqlStr;
use sqlx_core::transaction::TransactionManager as _;
use sqlx_mysql::{MySql, MySqlConnection, MySqlPool, MySqlTransactionManager};

use super::{MysqlDialect, run};
use crate::error::{classify, number};

/// `SAVEPOINT does not exist`.
pub(super) const NO_SAVEPOINT: u16 = 1305;

/// With this SQL, an adapter to another driver can offer transactions as safe as a [`MysqlTx`].
/// Each constant contains several statements. Send its text unchanged in one call, but not as a
/// prepared statement. If a transaction is dropped before it has ended, the adapter must close the
/// connection, or send `ROLL_BACK` before the connection goes back to its pool.
impl MysqlDialect {
    /// Opens a transaction and sets a savepoint in it. Autocommit stays off until the transaction
    /// ends.
    pub const BEGIN: &str = "SET @retryproof_autocommit=@@autocommit; SET autocommit=0; START TRANSACTION; \
         SAVEPOINT retryproof_joined";
    /// Commits the transaction that [`BEGIN`](Self::BEGIN) opened. If that transaction has already
    /// ended, the text commits nothing and fails with the server's error 1305. After a failure,
    /// send [`ROLL_BACK`](Self::ROLL_BACK).
    pub const COMMIT: &str =
        "RELEASE SAVEPOINT retryproof_joined; COMMIT; SET autocommit=@retryproof_autocommit";
    /// Rolls back the open transaction, if any, and restores autocommit.
    pub const ROLL_BACK: &str = "ROLLBACK; SET autocommit=@retryproof_autocommit";
    /// Fails with 1305 if no transaction is open. If a program began the transaction by hand, the
    /// adapter sends this text before the completion.
    pub const PROBE: &str = "SAVEPOINT retryproof_record; RELEASE SAVEPOINT retryproof_record";
}

/// An open transaction from the application's pool. It dereferences to a [`MySqlConnection`] for
/// writes. If it is dropped, its connection is closed and the server rolls the transaction back.
/// Only the engine may end the transaction: send neither a `COMMIT` nor a statement that commits
/// implicitly, such as `CREATE TABLE`.
///
/// If the server rolled the transaction back after a deadlock, or the action ended it by hand, the
/// call fails, and later writes are not committed. Writes that the action committed by hand stay
/// committed.
///
/// The driver's own transaction type has a lifetime. The future of an action that borrowed it could
/// not move between threads, so the engine uses `MysqlTx` instead.
pub struct MysqlTx {
    conn: PoolConnection<MySql>,
    /// Whether the transaction has ended and autocommit has its old value again. Otherwise, the
    /// connection must not go back to the pool.
    ended: bool,
}

impl MysqlTx {
    async fn end(&mut self, sql: &'static str) -> Result<(), sqlx_core::Error> {
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
        match self.end(MysqlDialect::COMMIT).await {
            Ok(()) => Ok(()),
            Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
                // The savepoint is gone, so the transaction has already ended. Roll back the new
                // transaction that the server has begun since then, and any writes in it.
                let _ = self.end(MysqlDialect::ROLL_BACK).await;
                Err(transaction_gone(classify(error).error))
            }
            Err(error) => Err(classify(error).error),
        }
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.end(MysqlDialect::ROLL_BACK).await.map_err(|error| classify(error).error)
    }
}

/// Supports `engine.joined(pool)` with the application's pool. Transactions have the connection's
/// isolation level, which is REPEATABLE READ by default.
impl TxSource<MysqlDialect> for MySqlPool {
    type Tx = MysqlTx;

    async fn begin(&self) -> Result<MysqlTx> {
        let refused = |error| classify(error).error;
        // From here on, dropping `tx` closes the connection unless the transaction has ended. A
        // connection with autocommit off therefore never goes back to the pool.
        let mut tx = MysqlTx { conn: self.acquire().await.map_err(refused)?, ended: false };
        MySqlTransactionManager::begin(
            &mut tx.conn,
            Some(SqlStr::from_static(MysqlDialect::BEGIN)),
        )
        .await
        .map_err(refused)?;
        Ok(tx)
    }
}

/// Fails if no transaction is open, because the completion would then be committed alone. Takes one
/// round trip.
pub(super) async fn probe(conn: &mut MySqlConnection) -> Result<()> {
    match conn.execute(raw_sql(MysqlDialect::PROBE)).await {
        Ok(_) => Ok(()),
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
            Err(transaction_gone(classify(error).error))
        }
        Err(error) => Err(classify(error).error),
    }
}

pub(super) fn transaction_gone(source: Error) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the transaction is no longer open: the server rolled it back after a deadlock or a lock \
         timeout, or the action ended it; return the errors of statements from the action",
    )
    .because(source)
}
