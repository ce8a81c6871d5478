// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining the application's transaction on the same file (CMP-7): the completion as one statement,
//! and the driver's transactions as ports.

pub(crate) mod transaction;

use std::future::{Future, ready};

use retryproof_core::store::{Completion, Dialect, Join, JoinStatement, Param, TxPort};
use retryproof_core::{Error, ErrorKind, Identity, OwnerId, Result};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Transaction, params_from_iter};

use crate::error::classify;
use crate::schema::Statement;
use crate::store::SqliteStore;

/// SQLite's way to write SQL: marks the transactions that a [`SqliteStore`] can join.
#[derive(Debug, Clone, Copy)]
pub enum Sqlite {}

impl Dialect for Sqlite {
    const NAME: &'static str = "sqlite";
}

impl Join for SqliteStore {
    type Dialect = Sqlite;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        let ttl = i64::try_from(done.ttl.as_micros()).unwrap_or(i64::MAX);
        let params = vec![
            Param::Bytes(id.scope().as_str().as_bytes()),
            Param::Bytes(id.key().expose().as_bytes()),
            Param::Bytes(owner.as_bytes()),
            Param::Int(self.now().saturating_add(ttl)),
            done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
            Param::Bytes(&done.value),
        ];
        JoinStatement::new(self.sql.of(Statement::JoinedComplete), params)
    }

    fn committed(&self, id: &Identity) {
        self.wake.wake(std::iter::once(id));
    }
}

/// For programs that own their transactions: `held.complete_in(&mut tx, value)`, from the blocking
/// facade or on one thread, for the driver's transaction does not leave its thread. In async
/// programs take [`SqliteTxSource`](crate::SqliteTxSource).
impl TxPort<Sqlite> for Transaction<'_> {
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send {
        ready(run(self, sql, params))
    }
}

/// A connection inside of a transaction that was begun by hand, with `BEGIN IMMEDIATE`.
impl TxPort<Sqlite> for Connection {
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send {
        ready(run(self, sql, params))
    }
}

/// The statement, in a transaction; the rows that it matched.
pub(crate) fn run(conn: &Connection, sql: &str, params: &[Param<'_>]) -> Result<u64> {
    // In autocommit the record would be a commit of its own.
    if conn.is_autocommit() {
        return Err(Error::new(
            ErrorKind::Unexpected,
            "the connection is in no transaction: it was ended, by hand or by SQLite after an error",
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
                "this store binds no value of that type",
            ));
        }
    })
}
