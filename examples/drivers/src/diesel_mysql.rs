// SPDX-License-Identifier: MIT OR Apache-2.0
//! diesel-async on MariaDB and MySQL.
//!
//! - `engine.joined(DieselSource(pool))` opens a transaction for each action and hands it a
//!   [`DieselTx`].
//! - `held.complete_in(&mut DieselPort(conn), value)` joins a transaction that the program began on
//!   `conn`.

use std::fmt;
use std::ops::{Deref, DerefMut};

use diesel::sql_types::{BigInt, Binary, Bool, Nullable};
use diesel_async::pooled_connection::deadpool::{Object, Pool};
use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, RunQueryDsl as _, SimpleAsyncConnection as _,
    TransactionManager as _,
};
use retryproof::mysql::MysqlDialect;
use retryproof::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof::{Error, ErrorKind, Result};

/// A connection with an open transaction, like the one that the closure of `conn.transaction(…)`
/// receives.
pub struct DieselPort<'a>(pub &'a mut AsyncMysqlConnection);

impl TxPort<MysqlDialect> for DieselPort<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        // After a deadlock, the server has rolled back the transaction. Without this probe, the
        // record would then commit alone, in autocommit mode.
        self.0.batch_execute(MysqlDialect::PROBE).await.map_err(refused)?;
        run(self.0, sql, params).await
    }
}

async fn run(conn: &mut AsyncMysqlConnection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let mut query = diesel::sql_query(sql).into_boxed::<diesel::mysql::Mysql>();
    for param in params {
        query = match *param {
            Param::Bytes(bytes) => query.bind::<Binary, _>(bytes.to_vec()),
            Param::NoBytes => query.bind::<Nullable<Binary>, _>(None::<Vec<u8>>),
            Param::Int(number) => query.bind::<BigInt, _>(number),
            Param::Bool(truth) => query.bind::<Bool, _>(truth),
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the driver cannot bind a value of this type",
                ));
            }
        };
    }
    let rows = query.execute(conn).await.map_err(refused)?;
    Ok(u64::try_from(rows).unwrap_or(u64::MAX))
}

/// Opens transactions on the application's pool. Use it as `engine.joined(DieselSource(pool))`.
#[derive(Clone)]
pub struct DieselSource(pub Pool<AsyncMysqlConnection>);

/// An open transaction, which gives the action an `AsyncMysqlConnection` to write with. Only the
/// engine may commit it or roll it back.
///
/// Dropping the transaction closes its connection, so the server rolls back at once. If the
/// connection returned to the pool, the transaction would stay open until the next use of the
/// connection.
pub struct DieselTx(Option<Object<AsyncMysqlConnection>>);

impl TxSource<MysqlDialect> for DieselSource {
    type Tx = DieselTx;

    async fn begin(&self) -> Result<DieselTx> {
        let conn = self.0.get().await.map_err(|error| {
            Error::unavailable("the pool returned no connection").because(error)
        })?;
        let mut tx = DieselTx(Some(conn));
        AnsiTransactionManager::begin_transaction_sql(&mut *tx, MysqlDialect::BEGIN)
            .await
            .map_err(refused)?;
        Ok(tx)
    }
}

impl TxPort<MysqlDialect> for DieselTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        // No probe is needed here: if the transaction has already ended, the commit fails.
        run(self, sql, params).await
    }
}

impl OwnedTx<MysqlDialect> for DieselTx {
    async fn commit_tx(mut self) -> Result<()> {
        self.only_one()?;
        self.batch_execute(MysqlDialect::COMMIT).await.map_err(refused)?;
        self.give_back().await;
        Ok(())
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.batch_execute(MysqlDialect::ROLL_BACK).await.map_err(refused)?;
        self.give_back().await;
        Ok(())
    }
}

impl DieselTx {
    /// Returns the connection to the pool. The transaction has already ended, so this rollback
    /// changes nothing, but it resets diesel's own count of open transactions.
    async fn give_back(&mut self) {
        if AnsiTransactionManager::rollback_transaction(&mut **self).await.is_ok() {
            drop(self.0.take());
        }
    }

    /// Fails if a nested transaction is still open. The action may have dropped the nested
    /// transaction before its end, so its writes must not be committed.
    fn only_one(&mut self) -> Result<()> {
        let status = AnsiTransactionManager::transaction_manager_status_mut(&mut **self);
        match status.transaction_depth().map_err(refused)? {
            Some(depth) if depth.get() == 1 => Ok(()),
            _ => {
                Err(Error::new(ErrorKind::Unexpected, "the action left a nested transaction open"))
            }
        }
    }
}

impl Drop for DieselTx {
    fn drop(&mut self) {
        drop(self.0.take().map(Object::take));
    }
}

impl Deref for DieselTx {
    type Target = AsyncMysqlConnection;

    fn deref(&self) -> &AsyncMysqlConnection {
        self.0.as_ref().expect("the transaction should exist until its commit or rollback")
    }
}

impl DerefMut for DieselTx {
    fn deref_mut(&mut self) -> &mut AsyncMysqlConnection {
        self.0.as_mut().expect("the transaction should exist until its commit or rollback")
    }
}

impl fmt::Debug for DieselTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DieselTx").finish_non_exhaustive()
    }
}

fn refused(error: diesel::result::Error) -> Error {
    Error::unavailable("the application's transaction failed").because(error)
}
