// SPDX-License-Identifier: MIT OR Apache-2.0
//! SeaORM 1 on MariaDB and MySQL.
//!
//! - `engine.joined(SeaSource(db))` opens a transaction for each action and hands it a [`SeaTx`].
//! - `held.complete_in(&mut SeaPort(&tx), value)` joins a transaction that the program began.

use std::ops::Deref;

use retryproof::mysql::MysqlDialect;
use retryproof::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof::{Error, ErrorKind, Result};
use sea_orm_1::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement,
    TransactionTrait as _, Value,
};
use tokio::runtime::Handle;

/// A transaction that the program began.
#[derive(Debug)]
pub struct SeaPort<'a>(pub &'a DatabaseTransaction);

impl TxPort<MysqlDialect> for SeaPort<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        // After a deadlock, the server has rolled back the transaction. Without this probe, the
        // record would then commit alone, in autocommit mode.
        self.0.execute_unprepared(MysqlDialect::PROBE).await.map_err(refused)?;
        run(self.0, sql, params).await
    }
}

async fn run(tx: &DatabaseTransaction, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let values = params.iter().map(value).collect::<Result<Vec<_>>>()?;
    let statement = Statement::from_sql_and_values(DbBackend::MySql, sql, values);
    let done = tx.execute(statement).await.map_err(refused)?;
    Ok(done.rows_affected())
}

/// Opens transactions on the application's connections. Use it as `engine.joined(SeaSource(db))`.
#[derive(Debug, Clone)]
pub struct SeaSource(pub DatabaseConnection);

/// An open transaction, which gives the action a `DatabaseTransaction` to write with. Only the
/// engine may commit it or roll it back.
///
/// Dropping the transaction rolls it back in the background. The connection's settings are restored
/// before the connection returns to the pool.
#[derive(Debug)]
pub struct SeaTx(Option<DatabaseTransaction>);

impl TxSource<MysqlDialect> for SeaSource {
    type Tx = SeaTx;

    async fn begin(&self) -> Result<SeaTx> {
        let db = self.0.clone();
        // A separate task finishes BEGIN even if this future is dropped. Otherwise the connection's
        // next user could get the open transaction.
        let begun = tokio::spawn(async move {
            let tx = SeaTx(Some(db.begin().await.map_err(refused)?));
            tx.execute_unprepared(MysqlDialect::BEGIN).await.map_err(refused)?;
            Ok(tx)
        });
        begun.await.map_err(|gone| Error::unavailable("the runtime shut down").because(gone))?
    }
}

impl TxPort<MysqlDialect> for SeaTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        // No probe is needed here: if the transaction has already ended, the commit fails.
        run(self, sql, params).await
    }
}

impl OwnedTx<MysqlDialect> for SeaTx {
    async fn commit_tx(mut self) -> Result<()> {
        self.execute_unprepared(MysqlDialect::COMMIT).await.map_err(refused)?;
        // The transaction has ended on the server. The drop ends it for SeaORM too.
        drop(self.0.take());
        Ok(())
    }

    async fn roll_back_tx(mut self) -> Result<()> {
        self.execute_unprepared(MysqlDialect::ROLL_BACK).await.map_err(refused)?;
        drop(self.0.take());
        Ok(())
    }
}

impl Drop for SeaTx {
    fn drop(&mut self) {
        // Without a runtime, the pool does not work either, so there is nothing to do.
        if let (Some(tx), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(
                async move { tx.execute_unprepared(MysqlDialect::ROLL_BACK).await.map(drop) },
            );
        }
    }
}

impl Deref for SeaTx {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.0.as_ref().expect("the transaction should exist until its commit or rollback")
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
