// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresTx`]: a transaction that the engine begins and ends on a connection of the
//! application's pool (CMP-7).

use std::fmt;
use std::ops::{Deref, DerefMut};

use retryproof_core::Result;
use retryproof_core::store::{OwnedTx, Param, TxPort, TxSource};
use sqlx_core::transaction::Transaction;
use sqlx_postgres::{PgConnection, PgPool};

use super::PostgresDialect;
use crate::error::classify;

/// An open transaction from the application's pool. The value dereferences to a [`PgConnection`]
/// for writes. Dropping the value rolls the transaction back.
///
/// Only the engine may end the transaction: send neither `COMMIT` nor `ROLLBACK`. After either
/// statement, PostgreSQL continues in autocommit without an error: each later write, and the
/// record, would be committed separately. To undo everything, return an error; to undo a part, use
/// a savepoint. A transaction that an error has aborted is never committed, even if the action
/// continues.
///
/// `PostgresTx` is a separate type, because the driver's type has a lifetime. The future of an
/// action that borrows a transaction with a lifetime cannot move between threads.
pub struct PostgresTx(Transaction<'static, sqlx_postgres::Postgres>);

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
        self.0.commit().await.map_err(|error| classify(&error))
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.0.rollback().await.map_err(|error| classify(&error))
    }
}

/// Supports `engine.joined(pool)` with the application's pool. The transactions have the
/// connection's default isolation level: READ COMMITTED, unless the default was changed.
impl TxSource<PostgresDialect> for PgPool {
    type Tx = PostgresTx;

    async fn begin(&self) -> Result<PostgresTx> {
        PgPool::begin(self).await.map(PostgresTx).map_err(|error| classify(&error))
    }
}
