// SPDX-License-Identifier: MIT OR Apache-2.0
//! diesel-async on PostgreSQL.
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
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl as _, TransactionManager as _,
};
use retryproof::postgres::PostgresDialect;
use retryproof::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof::{Error, ErrorKind, Result};

/// A connection with an open transaction, like the one that the closure of `conn.transaction(…)`
/// receives.
pub struct DieselPort<'a>(pub &'a mut AsyncPgConnection);

impl TxPort<PostgresDialect> for DieselPort<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let mut query = diesel::sql_query(sql).into_boxed::<diesel::pg::Pg>();
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
        let rows = query.execute(self.0).await.map_err(refused)?;
        Ok(u64::try_from(rows).unwrap_or(u64::MAX))
    }
}

/// Opens transactions on the application's pool. Use it as `engine.joined(DieselSource(pool))`.
#[derive(Clone)]
pub struct DieselSource(pub Pool<AsyncPgConnection>);

/// An open transaction, which gives the action an `AsyncPgConnection` to write with. Only the
/// engine may commit it or roll it back.
///
/// Dropping the transaction closes its connection, so the server rolls back at once. If the
/// connection returned to the pool, the transaction would stay open until the next use of the
/// connection.
pub struct DieselTx(Option<Object<AsyncPgConnection>>);

impl TxSource<PostgresDialect> for DieselSource {
    type Tx = DieselTx;

    async fn begin(&self) -> Result<DieselTx> {
        let conn = self.0.get().await.map_err(|error| {
            Error::unavailable("the pool returned no connection").because(error)
        })?;
        let mut tx = DieselTx(Some(conn));
        AnsiTransactionManager::begin_transaction(&mut *tx).await.map_err(refused)?;
        Ok(tx)
    }
}

impl TxPort<PostgresDialect> for DieselTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        DieselPort(self).run_statement(sql, params).await
    }
}

impl OwnedTx<PostgresDialect> for DieselTx {
    async fn commit_tx(mut self) -> Result<()> {
        self.only_one()?;
        AnsiTransactionManager::commit_transaction(&mut *self).await.map_err(refused)?;
        self.give_back();
        Ok(())
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.only_one()?;
        AnsiTransactionManager::rollback_transaction(&mut *self).await.map_err(refused)?;
        self.give_back();
        Ok(())
    }
}

impl DieselTx {
    fn give_back(&mut self) {
        drop(self.0.take());
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
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.0.as_ref().expect("the transaction should exist until its commit or rollback")
    }
}

impl DerefMut for DieselTx {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
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
