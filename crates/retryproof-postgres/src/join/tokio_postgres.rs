// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completes records in transactions of `tokio-postgres` (feature `tokio-postgres`).
//!
//! These transactions borrow their client, so they suit programs that open transactions themselves
//! and call `held.complete_in(&mut tx, value)`. To let the engine open the transactions, wrap the
//! client or pool in a type of your own that sends `BEGIN` and `COMMIT` as statements.

use retryproof_core::store::{Param, TxPort};
use retryproof_core::{Error, Result};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::{PostgresDialect, driver_error};
use crate::connection::unsupported_param;

impl TxPort<PostgresDialect> for Transaction<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        run(self, sql, params).await
    }
}

/// Supports a transaction that the application began with `BEGIN`.
impl TxPort<PostgresDialect> for Client {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        run(self, sql, params).await
    }
}

async fn run<C: GenericClient + Sync>(client: &C, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let bound = params.iter().map(bind).collect::<Result<Vec<_>>>()?;
    let bound: Vec<&(dyn ToSql + Sync)> = bound.iter().map(|value| &**value as _).collect();
    client.execute(sql, &bound).await.map_err(|error| into_error(&error))
}

fn bind<'a>(param: &Param<'a>) -> Result<Box<dyn ToSql + Sync + Send + 'a>> {
    Ok(match *param {
        Param::Bytes(bytes) => Box::new(bytes),
        Param::NoBytes => Box::new(None::<&'a [u8]>),
        Param::Int(number) => Box::new(number),
        Param::Bool(truth) => Box::new(truth),
        _ => return Err(unsupported_param()),
    })
}

fn into_error(error: &tokio_postgres::Error) -> Error {
    driver_error(error.code().map(SqlState::code))
}
