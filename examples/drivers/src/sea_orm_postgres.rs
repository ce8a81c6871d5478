// SPDX-License-Identifier: MIT OR Apache-2.0
//! SeaORM 2 on PostgreSQL. For SeaORM 1, replace `execute_raw` with `execute`.
//!
//! - `engine.joined(SeaSource(db))` opens a transaction for each action and hands it a [`SeaTx`].
//! - `held.complete_in(&mut SeaPort(&tx), value)` joins a transaction that the program began.

use std::ops::Deref;

use retryproof::postgres::PostgresDialect;
use retryproof::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof::{Error, ErrorKind, Result};
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement,
    TransactionTrait as _, Value,
};

/// A transaction that the program began.
#[derive(Debug)]
pub struct SeaPort<'a>(pub &'a DatabaseTransaction);

impl TxPort<PostgresDialect> for SeaPort<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let values = params.iter().map(value).collect::<Result<Vec<_>>>()?;
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
        let done = self.0.execute_raw(statement).await.map_err(refused)?;
        Ok(done.rows_affected())
    }
}

/// Opens transactions on the application's connections. Use it as `engine.joined(SeaSource(db))`.
#[derive(Debug, Clone)]
pub struct SeaSource(pub DatabaseConnection);

/// An open transaction, which gives the action a `DatabaseTransaction` to write with. Only the
/// engine may commit it or roll it back. Dropping the transaction rolls it back.
#[derive(Debug)]
pub struct SeaTx(DatabaseTransaction);

impl TxSource<PostgresDialect> for SeaSource {
    type Tx = SeaTx;

    async fn begin(&self) -> Result<SeaTx> {
        self.0.begin().await.map(SeaTx).map_err(refused)
    }
}

impl TxPort<PostgresDialect> for SeaTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        SeaPort(&self.0).run_statement(sql, params).await
    }
}

impl OwnedTx<PostgresDialect> for SeaTx {
    async fn commit_tx(self) -> Result<()> {
        self.0.commit().await.map_err(refused)
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.0.rollback().await.map_err(refused)
    }
}

impl Deref for SeaTx {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        &self.0
    }
}

fn value(param: &Param<'_>) -> Result<Value> {
    Ok(match *param {
        Param::Bytes(bytes) => bytes.to_vec().into(),
        Param::NoBytes => None::<Vec<u8>>.into(),
        Param::Int(number) => number.into(),
        Param::Bool(truth) => truth.into(),
        _ => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the driver cannot bind a value of this type",
            ));
        }
    })
}

fn refused(error: DbErr) -> Error {
    Error::unavailable("the application's transaction failed").because(error)
}
