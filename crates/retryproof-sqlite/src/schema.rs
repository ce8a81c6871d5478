// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`SqliteConfig::migrate`], and the check of the schema version (STO-3).

use retryproof_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, TransactionBehavior};

use crate::config::{DEFAULT_TABLE, SqliteConfig, validated};
use crate::connection::{self, retry_while_locked};

/// The schema version that this code reads and writes.
const VERSION: i64 = 1;

/// The shipped migrations, oldest first; the index of each is the version that it updates.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/V1__records.sql")];

/// Reads the version row (STO-3).
const READ_VERSION: &str = "SELECT value FROM retryproof_records_meta WHERE name='schema'";

/// The schema as plain SQL, for your own migrator. It creates the tables under the name `table`, and
/// writes the version row. Run it inside a transaction.
///
/// # Errors
/// [`ErrorKind::Config`] if the name is invalid (STO-3).
pub fn schema_sql(table: &str) -> Result<String> {
    Ok(MIGRATIONS.join("\n").replace(DEFAULT_TABLE, validated(table)?))
}

impl SqliteConfig {
    /// Creates the database file if there is none, puts it into WAL mode, and creates or updates the
    /// tables of the store, in one transaction. It is safe to call again, and from several processes
    /// at the same time. It blocks for some milliseconds: call it at start-up or from a deployment
    /// step. No other call creates a table (STO-3).
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if a newer version of this library created the tables; otherwise those of
    /// [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn migrate(&self) -> Result<()> {
        self.try_migrate().map_err(|error| error.during("migrate"))
    }

    fn try_migrate(&self) -> Result<()> {
        let table = self.table()?;
        let mut conn = connection::create(self)?;
        retry_while_locked(self.busy_timeout, || apply(&mut conn, table))
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

/// Fails for a schema that the store cannot work on (STO-3).
pub(crate) fn check(
    conn: &Connection,
    table: &str,
) -> std::result::Result<Result<()>, rusqlite::Error> {
    Ok(match version(conn, table)? {
        Some(VERSION) => Ok(()),
        Some(found) if found > VERSION => Err(newer(found)),
        Some(found) => Err(Error::new(
            ErrorKind::Schema,
            "the store's schema has an older version; call `retryproof::migrate(url)` \
             (`SqliteConfig::migrate()` where only this crate is used), or apply the shipped SQL",
        )
        .with("found", found)
        .with("expected", VERSION)),
        None => Err(Error::new(
            ErrorKind::Schema,
            "the database has no tables of the store yet; call `retryproof::migrate(url)` once \
             (`SqliteConfig::migrate()` where only this crate is used), or apply the shipped SQL",
        )
        .with("table", table)),
    })
}

/// The version row; `None` without the table or the row.
fn version(conn: &Connection, table: &str) -> std::result::Result<Option<i64>, rusqlite::Error> {
    let exists: bool = conn.query_row(
        "SELECT count(*)>0 FROM sqlite_master WHERE type='table' AND lower(name)=lower(?1)",
        [format!("{table}_meta")],
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(None);
    }
    match conn.query_row(&READ_VERSION.replace(DEFAULT_TABLE, table), [], |row| row.get(0)) {
        Ok(found) => Ok(Some(found)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}

fn newer(found: i64) -> Error {
    Error::new(
        ErrorKind::Schema,
        "a newer retryproof created the store's schema; run that version, or name another table and \
         call `retryproof::migrate(url)`",
    )
    .with("found", found)
    .with("expected", VERSION)
}
