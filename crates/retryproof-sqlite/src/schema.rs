// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`SqliteConfig::migrate`], and the check of the tables' versions (STO-3,
//! REC-1).

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

/// Reads the versions (REC-1). Returns: schema, compatible_from; NULL for a missing row.
const READ_VERSIONS: &str = "SELECT \
     (SELECT value FROM retryproof_records_meta WHERE name='schema'),\
     (SELECT value FROM retryproof_records_meta WHERE name='compatible_from')";

/// Returns the schema as plain SQL, for your own migration tool. The SQL creates the tables under
/// the name `table` and writes their versions. Run it inside a transaction. Running it again on
/// newer tables does not lower their versions (REC-1).
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
    /// step. No other call creates a table (STO-3). Tables of a newer version that this version can
    /// use stay as they are (REC-1).
    ///
    /// # Errors
    /// [`ErrorKind::Schema`](retryproof_core::ErrorKind::Schema) if the tables need a newer version
    /// of this library; otherwise the same as for [`SqliteStore::open`](crate::SqliteStore::open).
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
    let pending = match SCHEMA.pending(versions(&tx, table)?) {
        Ok(pending) => pending,
        Err(incompatible) => return Ok(Err(incompatible)),
    };
    for script in pending {
        tx.execute_batch(&script.replace(DEFAULT_TABLE, table))?;
    }
    tx.commit()?;
    Ok(Ok(()))
}

/// Fails for tables that the store cannot use (STO-3, REC-1).
pub(crate) fn check(
    conn: &Connection,
    table: &str,
) -> std::result::Result<Result<()>, rusqlite::Error> {
    Ok(SCHEMA.check(versions(conn, table)?, table))
}

/// Reads the versions of the tables; `None` if the meta table or its `schema` row is missing.
fn versions(
    conn: &Connection,
    table: &str,
) -> std::result::Result<Option<TableVersions>, rusqlite::Error> {
    let exists = |name: &str| {
        conn.query_row(
            "SELECT count(*)>0 FROM sqlite_master WHERE type='table' AND lower(name)=lower(?1)",
            [name],
            |row| row.get(0),
        )
    };
    if !exists(&format!("{table}_meta"))? {
        return Ok(None);
    }
    let has_records = exists(table)?;
    conn.query_row(&READ_VERSIONS.replace(DEFAULT_TABLE, table), [], |row| {
        Ok(TableVersions::from_rows(row.get(0)?, row.get(1)?, has_records))
    })
}
