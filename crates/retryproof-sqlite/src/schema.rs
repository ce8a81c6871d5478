// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`SqliteConfig::migrate`], and the check of the schema version (STO-3).

use retryproof_core::Result;
use retryproof_store_kit::{Schema, TableVersions};
use rusqlite::{Connection, TransactionBehavior};

use crate::config::{DEFAULT_TABLE, SqliteConfig, validated};
use crate::connection::{self, retry_while_locked};

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    migrate: "SqliteConfig::migrate()",
};

/// Reads the version row (STO-3).
const READ_VERSION: &str = "SELECT value FROM retryproof_records_meta WHERE name='schema'";

/// Returns the schema as plain SQL, for your own migration tool. The SQL creates the tables under
/// the name `table` and writes the version row. Run it inside a transaction.
///
/// # Errors
/// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config) if the name is invalid (STO-3).
pub fn schema_sql(table: &str) -> Result<String> {
    Ok(SCHEMA.migrations.join("\n").replace(DEFAULT_TABLE, validated(table)?))
}

impl SqliteConfig {
    /// Creates the database file if there is none, puts it into WAL mode, and creates or updates
    /// the store's tables in one transaction. It is safe to call again, and from several processes
    /// at the same time. It blocks for a few milliseconds: call it at start-up or from a deployment
    /// step. No other call creates a table (STO-3).
    ///
    /// # Errors
    /// [`ErrorKind::Schema`](retryproof_core::ErrorKind::Schema) if a newer version of this library
    /// created the tables; otherwise the same as for
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
    let pending = match SCHEMA.pending(version(&tx, table)?) {
        Ok(pending) => pending,
        Err(newer) => return Ok(Err(newer)),
    };
    for script in pending {
        tx.execute_batch(&script.replace(DEFAULT_TABLE, table))?;
    }
    tx.commit()?;
    Ok(Ok(()))
}

/// Fails for a schema that the store cannot use (STO-3).
pub(crate) fn check(
    conn: &Connection,
    table: &str,
) -> std::result::Result<Result<()>, rusqlite::Error> {
    Ok(SCHEMA.check(version(conn, table)?, table))
}

/// Reads the schema version; `None` if the table or the row is missing.
fn version(
    conn: &Connection,
    table: &str,
) -> std::result::Result<Option<TableVersions>, rusqlite::Error> {
    let exists: bool = conn.query_row(
        "SELECT count(*)>0 FROM sqlite_master WHERE type='table' AND lower(name)=lower(?1)",
        [format!("{table}_meta")],
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(None);
    }
    match conn.query_row(&READ_VERSION.replace(DEFAULT_TABLE, table), [], |row| row.get(0)) {
        Ok(found) => Ok(TableVersions::from_rows(found, None)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}
