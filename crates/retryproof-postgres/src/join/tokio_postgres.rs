// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transactions of the driver `tokio-postgres` as ports (feature `tokio-postgres`).
//!
//! They borrow their client, so that they are for programs that own them:
//! `held.complete_in(&mut tx, value)`. A source for an engine that opens transactions itself is a
//! type of the application's own around its client or pool, with `BEGIN` and `COMMIT` sent by hand.

use retryproof_core::store::{Param, TxPort};
use retryproof_core::{Error, Result};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::{Postgres, unbound};

impl TxPort<Postgres> for Transaction<'_> {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        run(self, sql, params).await
    }
}

/// In a transaction that was begun by hand.
impl TxPort<Postgres> for Client {
    async fn run_statement(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        run(self, sql, params).await
    }
}

async fn run<C: GenericClient + Sync>(client: &C, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    let bound = params.iter().map(bind).collect::<Result<Vec<_>>>()?;
    let bound: Vec<&(dyn ToSql + Sync)> = bound.iter().map(|value| &**value as _).collect();
    client.execute(sql, &bound).await.map_err(|error| told(&error))
}

fn bind<'a>(param: &Param<'a>) -> Result<Box<dyn ToSql + Sync + Send + 'a>> {
    Ok(match *param {
        Param::Bytes(bytes) => Box::new(bytes),
        Param::NoBytes => Box::new(None::<&'a [u8]>),
        Param::Int(number) => Box::new(number),
        Param::Bool(truth) => Box::new(truth),
        _ => return Err(unbound()),
    })
}

fn told(error: &tokio_postgres::Error) -> Error {
    super::refused(error.code().map(SqlState::code))
}
