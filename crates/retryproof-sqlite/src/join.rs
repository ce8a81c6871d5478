// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completes a record inside the application's transaction on the same file (CMP-7). The completion
//! is one statement, which runs in the driver's transactions.

pub(crate) mod transaction;

use std::future::{Future, ready};

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, Param, TxPort};
use retryproof_core::{Error, ErrorKind, Identity, OwnerId, Result};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Transaction, params_from_iter};

use crate::error::classify;
use crate::record::micros;
use crate::statement::Statement;
use crate::store::SqliteStore;

/// The SQL dialect of SQLite. This type marks the transactions that a [`SqliteStore`] can join.
#[derive(Debug, Clone, Copy)]
pub enum SqliteDialect {}

impl Dialect for SqliteDialect {
    const NAME: &'static str = "sqlite";
}

impl Join for SqliteStore {
    type Dialect = SqliteDialect;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let ttl = micros(done.ttl);
        let params = vec![
            Param::Bytes(id.scope().as_str().as_bytes()),
            Param::Bytes(id.key().expose().as_bytes()),
            Param::Bytes(owner.as_bytes()),
            Param::Int(self.now().saturating_add(ttl)),
            done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
            Param::Bytes(&done.value),
        ];
        JoinStatement::new(self.statements.get(Statement::JoinedComplete), params)
    }

    fn committed(&self, id: &Identity) {
        self.waiters.registry.notify(id);
    }
}

/// Supports a transaction that the program opened itself. Call `held.complete_in(&mut tx, value)`
/// from the blocking facade, or keep the whole call on one thread, because the driver's transaction
/// cannot move to another thread. Async programs use [`SqliteTxSource`](crate::SqliteTxSource).
impl TxPort<SqliteDialect> for Transaction<'_> {
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send {
        ready(run(self, sql, params))
    }
}

/// Supports a connection on which the program began a transaction with `BEGIN IMMEDIATE`.
impl TxPort<SqliteDialect> for Connection {
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send {
        ready(run(self, sql, params))
    }
}

/// Runs a statement in the open transaction, and returns how many rows it changed.
pub(crate) fn run(conn: &Connection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    // Refuse autocommit mode, because the record would be committed separately from the
    // application's writes.
    if conn.is_autocommit() {
        return Err(Error::new(
            ErrorKind::Unexpected,
            "no transaction is open on the connection: the action ended it, or SQLite rolled it \
             back after an error",
        ));
    }
    let bound = params.iter().map(bind).collect::<Result<Vec<_>>>()?;
    let mut statement = conn.prepare_cached(sql).map_err(classify)?;
    let changed = statement.execute(params_from_iter(bound)).map_err(classify)?;
    Ok(u64::try_from(changed).unwrap_or(u64::MAX))
}

fn bind<'a>(param: &Param<'a>) -> Result<ToSqlOutput<'a>> {
    Ok(match *param {
        Param::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        Param::NoBytes => ToSqlOutput::Owned(Value::Null),
        Param::Int(number) => ToSqlOutput::Owned(Value::Integer(number)),
        Param::Bool(truth) => ToSqlOutput::Owned(Value::Integer(truth.into())),
        _ => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this store cannot bind a value of that type",
            ));
        }
    })
}
