// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completes records in transactions of sqlx 0.8 (feature `sqlx-08`).
//!
//! `engine.joined(pool)` takes the `sqlx::PgPool` of sqlx 0.8, and `held.complete_in(&mut tx,
//! value)` takes a `Transaction` or `PgConnection` of that version. The store itself uses a newer
//! sqlx; only the application's transactions use the older version.

use std::fmt;
use std::ops::{Deref, DerefMut};

use retryproof_core::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, Result};
use sqlx_core_08::arguments::Arguments as _;
use sqlx_core_08::executor::Executor as _;
use sqlx_core_08::query::query_with;
use sqlx_core_08::transaction::Transaction;
use sqlx_postgres_08::{PgArguments, PgConnection, PgPool};

use super::{PostgresDialect, driver_error};
use crate::connection::unsupported_param;

/// Supports a transaction that the application began with `BEGIN` on its connection.
impl TxPort<PostgresDialect> for PgConnection {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let query = query_with::<sqlx_postgres_08::Postgres, _>(sql, arguments(params)?);
        let done = self.execute(query).await.map_err(|error| into_error(&error))?;
        Ok(done.rows_affected())
    }
}

/// Supports `held.complete_in(&mut tx, value)`.
impl TxPort<PostgresDialect> for Transaction<'_, sqlx_postgres_08::Postgres> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let conn: &mut PgConnection = self;
        conn.run_statement(sql, params).await
    }
}

/// [`PostgresTx`](crate::PostgresTx) for sqlx 0.8: an open transaction from the application's pool.
/// The value dereferences to a `sqlx::PgConnection` for writes. Dropping the value rolls the
/// transaction back. Only the engine may end the transaction: the store does not detect a `COMMIT`
/// or `ROLLBACK` that the action sends.
pub struct PostgresTx(Transaction<'static, sqlx_postgres_08::Postgres>);

impl Deref for PostgresTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for PostgresTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

impl fmt::Debug for PostgresTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTx").finish_non_exhaustive()
    }
}

impl TxPort<PostgresDialect> for PostgresTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.0.run_statement(sql, params).await
    }
}

impl OwnedTx<PostgresDialect> for PostgresTx {
    async fn commit_tx(self) -> Result<()> {
        self.0.commit().await.map_err(|error| into_error(&error))
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.0.rollback().await.map_err(|error| into_error(&error))
    }
}

/// Supports `engine.joined(pool)` with the application's pool. The transactions have the
/// connection's default isolation level: READ COMMITTED, unless the default was changed.
impl TxSource<PostgresDialect> for PgPool {
    type Tx = PostgresTx;

    async fn begin(&self) -> Result<PostgresTx> {
        PgPool::begin(self).await.map(PostgresTx).map_err(|error| into_error(&error))
    }
}

fn arguments(params: &[Param<'_>]) -> Result<PgArguments> {
    let mut arguments = PgArguments::default();
    for param in params {
        match *param {
            Param::Bytes(bytes) => arguments.add(bytes),
            Param::NoBytes => arguments.add(None::<&[u8]>),
            Param::Int(number) => arguments.add(number),
            Param::Bool(truth) => arguments.add(truth),
            _ => return Err(unsupported_param()),
        }
        .map_err(|error| into_error(&sqlx_core_08::Error::Encode(error)))?;
    }
    Ok(arguments)
}

fn into_error(error: &sqlx_core_08::Error) -> Error {
    let code = error.as_database_error().map(|error| error.code().unwrap_or_default());
    driver_error(code.as_deref())
}
