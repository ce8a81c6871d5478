// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MysqlTx`]: a transaction that the engine opens and ends, and that commits only as the one that
//! was opened (CMP-7).
//!
//! InnoDB rolls back the *whole* transaction on a deadlock (1213), and by
//! `innodb_rollback_on_timeout` on a lock time-out (1205). An action that catches the error and
//! sends the statement again would go on in autocommit: its later writes and the record would each
//! be a commit of its own, and the earlier writes would be gone. A `ROLLBACK`, `COMMIT` or
//! `CREATE TABLE` that an action sends ends the transaction just so. Two things, each portable,
//! stand against it and cost no round trip:
//!
//! - autocommit is off while the transaction is open, so whatever follows a loss is in a
//!   transaction that the server begins by itself, and that only the engine commits;
//! - a savepoint is set when the transaction is opened and released in the text of the COMMIT: it
//!   goes with its transaction, so in any other one its release fails (1305), and the server does
//!   not go on to the COMMIT.

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

use super::{Mysql, run};
use crate::error::{classify, number};

/// `SAVEPOINT does not exist`.
pub(super) const NO_SAVEPOINT: u16 = 1305;

/// The texts of a transaction that is as safe as a [`MysqlTx`], for adapters of other drivers. Each
/// is one text of several statements, to be sent as it is and not prepared. A connection that is
/// dropped between `BEGIN` and the end must not go back to its pool before `ROLL_BACK` was sent.
impl Mysql {
    /// Opens a transaction, and marks it by a savepoint. Autocommit is off until it ends.
    pub const BEGIN: &str = "SET @retryproof_autocommit=@@autocommit; SET autocommit=0; START TRANSACTION; \
         SAVEPOINT retryproof_joined";
    /// Commits the transaction that [`BEGIN`](Self::BEGIN) opened; fails with the server's error
    /// 1305, and commits nothing, where another one is open or none. After a failure send
    /// [`ROLL_BACK`](Self::ROLL_BACK).
    pub const COMMIT: &str =
        "RELEASE SAVEPOINT retryproof_joined; COMMIT; SET autocommit=@retryproof_autocommit";
    /// Rolls back whatever is open, and gives autocommit its old value.
    pub const ROLL_BACK: &str = "ROLLBACK; SET autocommit=@retryproof_autocommit";
    /// Fails with 1305 where no transaction is open: what a port for transactions that the program
    /// began sends before the record's statement.
    pub const PROBE: &str = "SAVEPOINT retryproof_record; RELEASE SAVEPOINT retryproof_record";
}

/// An open transaction from the application's pool; a [`MySqlConnection`] to write with. Dropped,
/// its connection is closed, and the server rolls back. Its end is the engine's: send neither a
/// `COMMIT` nor a statement that commits by itself, as `CREATE TABLE` does.
///
/// A transaction that the server has rolled back after a deadlock, or that was ended by hand, is
/// not committed, whatever the action did after it: the call fails. What the action had committed
/// by hand stands.
///
/// A type of its own, because the driver's has a lifetime, which keeps the futures of actions that
/// borrow from crossing threads.
pub struct MysqlTx {
    conn: PoolConnection<MySql>,
    /// Autocommit is as the pool had it, and nothing is open: the connection may go back.
    ended: bool,
}

impl MysqlTx {
    async fn end(&mut self, sql: &'static str) -> Result<(), sqlx_core::Error> {
        self.conn.execute(raw_sql(sql)).await?;
        if MySqlTransactionManager::get_transaction_depth(&self.conn) == 1 {
            // Only so the driver counts the transaction as over. What it queues is a ROLLBACK of
            // nothing, which leaves with the ping of the pool.
            MySqlTransactionManager::start_rollback(&mut self.conn);
            self.ended = true;
        }
        Ok(())
    }
}

impl Drop for MysqlTx {
    fn drop(&mut self) {
        if !self.ended {
            // Back in the pool it would keep autocommit off, and the writes of its next user with
            // it.
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

/// One round trip; where the transaction is gone, the commit finds out.
impl TxPort<Mysql> for MysqlTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        run(&mut self.conn, sql, params).await
    }
}

impl OwnedTx<Mysql> for MysqlTx {
    async fn commit_tx(mut self) -> Result<()> {
        match self.end(Mysql::COMMIT).await {
            Ok(()) => Ok(()),
            Err(error) if number(&error) == Some(NO_SAVEPOINT) => {
                // What has been written since then is in a transaction that is never committed.
                let _ = self.end(Mysql::ROLL_BACK).await;
                Err(gone(classify(error).error))
            }
            Err(error) => Err(classify(error).error),
        }
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.end(Mysql::ROLL_BACK).await.map_err(|error| classify(error).error)
    }
}

/// The application's own pool: `engine.joined(pool)`. Its transactions are begun as the connection
/// has it, which is REPEATABLE READ unless it was set otherwise.
impl TxSource<Mysql> for MySqlPool {
    type Tx = MysqlTx;

    async fn begin(&self) -> Result<MysqlTx> {
        let refused = |error| classify(error).error;
        // From here on a drop closes the connection, however far its settings have got.
        let mut tx = MysqlTx { conn: self.acquire().await.map_err(refused)?, ended: false };
        MySqlTransactionManager::begin(&mut tx.conn, Some(SqlStr::from_static(Mysql::BEGIN)))
            .await
            .map_err(refused)?;
        Ok(tx)
    }
}

/// Fails outside of a transaction, where the statement would be a commit of its own. One round
/// trip.
pub(super) async fn probe(conn: &mut MySqlConnection) -> Result<()> {
    match conn.execute(raw_sql(Mysql::PROBE)).await {
        Ok(_) => Ok(()),
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => Err(gone(classify(error).error)),
        Err(error) => Err(classify(error).error),
    }
}

pub(super) fn gone(source: Error) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the transaction is no longer open: the server rolled it back after a deadlock or a lock \
         time-out, or a statement of the action ended it; let the action return such an error",
    )
    .because(source)
}
