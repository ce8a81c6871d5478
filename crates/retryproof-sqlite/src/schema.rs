// SPDX-License-Identifier: MIT OR Apache-2.0
//! The SQL: every statement as constant text, the shipped schema, [`migrate`] and the check of its
//! version (STO-3).
//!
//! Bound values are blobs and integers only; times are microseconds, bound from the host's clock
//! after the lock is held (ACQ-7).

use retryproof_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, TransactionBehavior};

use crate::config::{DEFAULT_TABLE, SqliteConfig};
use crate::connection;
use crate::error::classify;

/// The version that this code reads and writes.
const VERSION: i64 = 1;

/// The shipped migrations, oldest first; the index is the version before.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/V1__records.sql")];

/// The statements. Each text comes after the rules that it serves and its bind order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statement {
    Find,
    Peeked,
    Grant,
    Taken,
    Extend,
    Complete,
    PurgeEarlier,
    JoinedComplete,
    Release,
    Purge,
    Fence,
    SetFence,
    Summary,
    Stats,
}

impl Statement {
    pub(crate) const COUNT: usize = Self::Stats as usize + 1;

    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Find,
        Self::Peeked,
        Self::Grant,
        Self::Taken,
        Self::Extend,
        Self::Complete,
        Self::PurgeEarlier,
        Self::JoinedComplete,
        Self::Release,
        Self::Purge,
        Self::Fence,
        Self::SetFence,
        Self::Summary,
        Self::Stats,
    ];

    const fn text(self) -> &'static str {
        match self {
            // ACQ-8: point look-up. 1 scope, 2 key -> state, owner, token, expires_at, fp, result.
            Self::Find => {
                "SELECT state,owner,token,expires_at,fp,result FROM retryproof_records WHERE \
                 scope=?1 AND key=?2"
            }
            // ACQ-4: the same without the value, for waiters. 1 scope, 2 key -> state, owner,
            // token, expires_at.
            Self::Peeked => {
                "SELECT state,owner,token,expires_at FROM retryproof_records WHERE scope=?1 AND key=?2"
            }
            // ACQ-2, ACQ-7, ACQ-9: fresh, taken over or renewed, guarded by the clock in the
            // statement that acts. 1 scope, 2 key, 3 owner, 4 token, 5 expires_at, 6 purge_after, 7
            // fp, 8 now, 9 taken.
            Self::Grant => {
                "INSERT INTO retryproof_records \
                 (scope,key,state,owner,token,taken,expires_at,purge_after,fp,result) VALUES \
                 (?1,?2,0,?3,?4,?9,?5,?6,?7,NULL) ON CONFLICT (scope,key) DO UPDATE SET \
                 state=0,owner=excluded.owner,token=excluded.token,taken=excluded.taken,expires_at=excluded.expires_at,purge_after=excluded.purge_after,fp=excluded.fp,result=NULL WHERE expires_at<=?8 OR (state=0 AND owner=excluded.owner)"
            }
            // ACQ-12: for an owner that asks again. 1 scope, 2 key -> taken.
            Self::Taken => "SELECT taken FROM retryproof_records WHERE scope=?1 AND key=?2",
            // RUN-1, CMP-2: by owner, never by time. 1 scope, 2 key, 3 owner, 4 expires_at.
            Self::Extend => {
                "UPDATE retryproof_records SET expires_at=?4 WHERE scope=?1 AND key=?2 AND \
                 state=0 AND owner=?3"
            }
            // CMP-1, CMP-2. 1 scope, 2 key, 3 owner, 4 expires_at, 5 fp, 6 result.
            Self::Complete => {
                "UPDATE retryproof_records SET state=1,expires_at=?4,fp=?5,result=?6 \
                 WHERE scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // STO-4: only when the completion's ttl ends before the one that the acquire named.
            // 1 scope, 2 key, 3 purge_after.
            Self::PurgeEarlier => {
                "UPDATE retryproof_records SET purge_after=?3 WHERE scope=?1 AND key=?2 AND purge_after>?3"
            }
            // CMP-7: both of the above as one statement, for the caller's transaction. Binds as
            // `Complete`.
            Self::JoinedComplete => {
                "UPDATE retryproof_records SET \
                 state=1,expires_at=?4,purge_after=min(purge_after,?4),fp=?5,result=?6 WHERE \
                 scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // RUN-4. 1 scope, 2 key, 3 owner.
            Self::Release => {
                "DELETE FROM retryproof_records WHERE scope=?1 AND key=?2 AND state=0 AND owner=?3"
            }
            // STO-4; a state that we never wrote stays (CMP-8). 1 now, 2 limit.
            Self::Purge => {
                "DELETE FROM retryproof_records WHERE rowid IN (SELECT rowid FROM retryproof_records \
                 WHERE purge_after<=?1 AND expires_at<=?1 AND state IN (0,1) LIMIT ?2)"
            }
            // ACQ-10: the last token drawn.
            Self::Fence => "SELECT value FROM retryproof_records_meta WHERE name='fence'",
            // ACQ-10: written once for all grants of a transaction. 1 token.
            Self::SetFence => "UPDATE retryproof_records_meta SET value=?1 WHERE name='fence'",
            // For an operator. 1 scope, 2 key -> state, token, expires_at, bytes, has fp.
            Self::Summary => {
                "SELECT state,token,expires_at,ifnull(length(result),0),fp IS NOT NULL \
                 FROM retryproof_records WHERE scope=?1 AND key=?2"
            }
            // For an operator; a scan. The constant stands for the fixed columns and the index
            // entries.
            Self::Stats => {
                "SELECT count(*),ifnull(sum(state=0),0),ifnull(sum(2*length(scope)+2*length(key)+80\
                 +ifnull(length(fp),0)+ifnull(length(result),0)),0) FROM retryproof_records"
            }
        }
    }
}

/// The version row (STO-3).
const SCHEMA: &str = "SELECT value FROM retryproof_records_meta WHERE name='schema'";

/// The statements' texts for one table.
#[derive(Debug)]
pub(crate) struct Sql([String; Statement::COUNT]);

impl Sql {
    /// The texts for a validated name.
    pub(crate) fn new(table: &str) -> Self {
        Self(Statement::ALL.map(|statement| statement.text().replace(DEFAULT_TABLE, table)))
    }

    pub(crate) fn of(&self, statement: Statement) -> &str {
        &self.0[statement as usize]
    }
}

/// The schema as plain SQL, for a migrator of your own: it makes the tables under their default
/// names and writes the version row. [`SqliteConfig::schema_sql`] gives it for another table name.
#[must_use]
pub fn schema_sql() -> &'static str {
    MIGRATIONS[0]
}

impl SqliteConfig {
    /// [`schema_sql`](crate::schema_sql) for the configured table name.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the name is not valid (STO-3).
    pub fn schema_sql(&self) -> Result<String> {
        Ok(schema_sql().replace(DEFAULT_TABLE, self.table()?))
    }

    /// Makes the database file if there is none, puts it into WAL mode, and makes or updates the
    /// tables of the store, in one transaction. Safe to call again, and from several processes at
    /// once. It blocks for some milliseconds: call it at start-up or from a deployment step.
    /// Nothing else ever makes a table (STO-3).
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] when a newer version of this library made the tables; else those of
    /// [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn migrate(&self) -> Result<()> {
        self.migrated().map_err(|error| error.during("migrate"))
    }

    fn migrated(&self) -> Result<()> {
        let table = self.table()?;
        let mut conn = connection::create(self)?;
        connection::patiently(self.busy_timeout, || apply(&mut conn, table))
    }
}

fn apply(conn: &mut Connection, table: &str) -> std::result::Result<Result<()>, rusqlite::Error> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&tx, table)?.unwrap_or(0);
    if found > VERSION {
        return Ok(Err(newer(found)));
    }
    for script in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        tx.execute_batch(&script.replace(DEFAULT_TABLE, table))?;
    }
    tx.commit()?;
    Ok(Ok(()))
}

/// Refuses a schema that this code cannot work on (STO-3).
pub(crate) fn check(
    conn: &Connection,
    table: &str,
) -> std::result::Result<Result<()>, rusqlite::Error> {
    Ok(match version(conn, table)? {
        Some(VERSION) => Ok(()),
        Some(found) if found > VERSION => Err(newer(found)),
        Some(found) => Err(Error::new(
            ErrorKind::Schema,
            "the store's schema is of an older version; call `retryproof::migrate(url)` \
             (`SqliteStore::migrate()` where only this crate is used), or apply the shipped SQL",
        )
        .with("found", found)
        .with("wanted", VERSION)),
        None => Err(Error::new(
            ErrorKind::Schema,
            "the database has no tables of the store yet; call `retryproof::migrate(url)` once \
             (`SqliteStore::migrate()` where only this crate is used), or apply the shipped SQL",
        )
        .with("table", table)),
    })
}

/// The version row; `None` without the table or the row.
fn version(conn: &Connection, table: &str) -> std::result::Result<Option<i64>, rusqlite::Error> {
    let there: bool = conn.query_row(
        "SELECT count(*)>0 FROM sqlite_master WHERE type='table' AND lower(name)=lower(?1)",
        [format!("{table}_meta")],
        |row| row.get(0),
    )?;
    if !there {
        return Ok(None);
    }
    match conn.query_row(&SCHEMA.replace(DEFAULT_TABLE, table), [], |row| row.get(0)) {
        Ok(found) => Ok(Some(found)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}

fn newer(found: i64) -> Error {
    Error::new(
        ErrorKind::Schema,
        "a newer retryproof made the store's schema; run that version, or name another table and \
         call `retryproof::migrate(url)`",
    )
    .with("found", found)
    .with("wanted", VERSION)
}

/// The fence row is part of the schema: without it no token can be drawn (ACQ-10).
pub(crate) fn fence_missing(error: rusqlite::Error) -> Error {
    match error {
        rusqlite::Error::QueryReturnedNoRows => Error::new(
            ErrorKind::Schema,
            "the counter of fencing tokens is missing; restore the database, or apply the shipped SQL again",
        ),
        other => classify(other),
    }
}
