// SPDX-License-Identifier: MIT OR Apache-2.0
//! SeaORM 2 on MariaDB and MySQL. For SeaORM 1 write `execute` in the place of `execute_raw`.
//!
//! - `engine.joined(SeaSource(db))` opens a transaction for each action and hands it a [`SeaTx`].
//! - `held.complete_in(&mut SeaPort(&tx), value)` joins a transaction that the program began.

use std::ops::Deref;

use retryproof::mysql::MysqlDialect;
use retryproof::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof::{Error, ErrorKind, Result};
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement,
    TransactionTrait as _, Value,
};
use tokio::runtime::Handle;

/// A transaction that the program began.
#[derive(Debug)]
pub struct SeaPort<'a>(pub &'a DatabaseTransaction);

impl TxPort<MysqlDialect> for SeaPort<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        // After a deadlock the server has rolled back, and in autocommit the record would be a
        // commit of its own.
        self.0.execute_unprepared(MysqlDialect::PROBE).await.map_err(refused)?;
        run(self.0, sql, params).await
    }
}

async fn run(tx: &DatabaseTransaction, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let values = params.iter().map(value).collect::<Result<Vec<_>>>()?;
    let statement = Statement::from_sql_and_values(DbBackend::MySql, sql, values);
    let done = tx.execute_raw(statement).await.map_err(refused)?;
    Ok(done.rows_affected())
}

/// The application's connections: `engine.joined(SeaSource(db))`.
#[derive(Debug, Clone)]
pub struct SeaSource(pub DatabaseConnection);

/// An open transaction: a `DatabaseTransaction` to write with. Its end is the engine's.
///
/// Dropped, it is rolled back in the background, and its connection is as it was before it goes
/// back to the pool.
#[derive(Debug)]
pub struct SeaTx(Option<DatabaseTransaction>);

impl TxSource<MysqlDialect> for SeaSource {
    type Tx = SeaTx;

    async fn begin(&self) -> Result<SeaTx> {
        let db = self.0.clone();
        // On a separate task: a BEGIN that is dropped on its way would leave its transaction to the
        // connection's next user.
        let begun = tokio::spawn(async move {
            let tx = SeaTx(Some(db.begin().await.map_err(refused)?));
            tx.execute_unprepared(MysqlDialect::BEGIN).await.map_err(refused)?;
            Ok(tx)
        });
        begun.await.map_err(|gone| Error::unavailable("the runtime went away").because(gone))?
    }
}

impl TxPort<MysqlDialect> for SeaTx {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        // Where the transaction is gone, the commit finds out.
        run(self, sql, params).await
    }
}

impl OwnedTx<MysqlDialect> for SeaTx {
    async fn commit_tx(mut self) -> Result<()> {
        self.execute_unprepared(MysqlDialect::COMMIT).await.map_err(refused)?;
        // It is over; SeaORM's own count ends with the drop.
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
        // Without a runtime there is no pool either that the connection could go back to.
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
        self.0.as_ref().expect("taken at its end alone")
    }
}

fn value(param: &Param<'_>) -> Result<Value> {
    Ok(match *param {
        Param::Bytes(bytes) => bytes.to_vec().into(),
        Param::NoBytes => None::<Vec<u8>>.into(),
        Param::Int(number) => number.into(),
        Param::Bool(truth) => truth.into(),
        _ => return Err(Error::new(ErrorKind::Unsupported, "a new type of value")),
    })
}

fn refused(error: DbErr) -> Error {
    Error::unavailable("the application's transaction failed").because(error)
}
