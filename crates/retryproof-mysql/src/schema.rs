// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`MysqlConfig::migrate`], and the check of the schema's version (STO-3).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::Param;
use retryproof_core::{Error, ErrorKind, Result};
use retryproof_store_kit::{Schema, TableVersions, table_name, unreadable};
use sqlx_core::row::Row as _;

use crate::config::{DEFAULT_TABLE, MysqlConfig};
use crate::connection::{Connection, ResultKind};
use crate::error::{Failure, classify_at_connect};
use crate::record::integer;

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    migrate: "MysqlConfig::migrate()",
};

/// How long `migrate()` waits for another migration of the same tables, in seconds.
const LOCK_TIMEOUT: i64 = 60;

/// Lets one process migrate at a time. Lock names are global to the server, so this name contains a
/// hash of the database and the table, which keeps it within 64 characters.
const LOCK: &str =
    "SELECT GET_LOCK(CONCAT('retryproof.',LEFT(SHA2(CONCAT(DATABASE(),'.',?),256),40)),?)";
const UNLOCK: &str =
    "SELECT RELEASE_LOCK(CONCAT('retryproof.',LEFT(SHA2(CONCAT(DATABASE(),'.',?),256),40)))";

/// Reads both version rows, and also queries the record table, which may be missing.
const READ_VERSIONS: &str = "SELECT \
     (SELECT value FROM `retryproof_records_meta` WHERE name='schema'),\
     (SELECT value FROM `retryproof_records_meta` WHERE name='compatible_from'),\
     (SELECT COUNT(*) FROM `retryproof_records` WHERE scope='' AND k='')";

/// Reads both version rows if the record table is missing.
const READ_VERSIONS_ALONE: &str = "SELECT \
     (SELECT value FROM `retryproof_records_meta` WHERE name='schema'),\
     (SELECT value FROM `retryproof_records_meta` WHERE name='compatible_from')";

/// The schema as plain SQL, for your own migrator: it creates the tables, named after `table`, and
/// writes the version rows. Running the SQL again, even on newer tables, changes nothing (REC-1).
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}` (STO-3).
pub fn schema_sql(table: &str) -> Result<String> {
    Ok(SCHEMA.migrations.join("\n").replace(DEFAULT_TABLE, table_name(table)?))
}

impl MysqlConfig {
    /// Creates or updates the store's tables, under an advisory lock on the server. Newer tables
    /// that this version can use stay unchanged (REC-1). Repeated calls are safe, even from several
    /// processes concurrently: call `migrate` at start-up or in a deployment step. No other call
    /// creates tables (STO-3). The account needs CREATE and INDEX in addition to the store's
    /// privileges.
    ///
    /// # Cancel safety
    /// If the call is dropped, some of the tables may already exist; the next call creates the
    /// rest.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables need a newer version of this library;
    /// [`ErrorKind::Unavailable`] if another migration holds the lock for a minute; otherwise the
    /// errors of [`MysqlStore::connect`](crate::MysqlStore::connect).
    pub async fn migrate(&self) -> Result<()> {
        self.try_migrate().await.map_err(|failure| failure.error.during("migrate"))
    }

    async fn try_migrate(&self) -> Result<(), Failure> {
        let table = self.table()?;
        let mut connection = Connection::open_first(self).await?;
        let name = Param::Bytes(table.as_bytes());
        let locked = connection
            .run(&Arc::from(LOCK), &[name, Param::Int(LOCK_TIMEOUT)], ResultKind::Rows, false)
            .await
            .map_err(classify_at_connect)?;
        // The result is 0 if the wait timed out, and NULL after an error, for example if the
        // statement was killed.
        if locked.rows.first().and_then(|row| integer(row, 0, "lock").ok()) != Some(1) {
            return Err(Error::unavailable(
                "another migration of the same tables is running; try again later",
            )
            .into());
        }
        let applied = apply(&mut connection, table).await;
        // If the unlock fails, closing the connection releases the lock.
        let _ = connection.run(&Arc::from(UNLOCK), &[name], ResultKind::Rows, false).await;
        connection.close().await;
        applied
    }
}

async fn apply(connection: &mut Connection, table: &str) -> Result<(), Failure> {
    for script in SCHEMA.pending(versions(connection, table).await?)? {
        // MySQL commits each statement of the script by itself. Each statement is safe to run
        // twice, and the version rows are written last.
        connection.run_script(script.replace(DEFAULT_TABLE, table)).await?;
    }
    Ok(())
}

/// Fails if this version of the library cannot use the tables (REC-1, STO-3).
pub(crate) async fn check(connection: &mut Connection, table: &str) -> Result<(), Failure> {
    Ok(SCHEMA.check(versions(connection, table).await?, table)?)
}

/// Reads the version rows; `None` if their table or the row `schema` is missing.
async fn versions(
    connection: &mut Connection,
    table: &str,
) -> Result<Option<TableVersions>, Failure> {
    for (sql, has_records) in [(READ_VERSIONS, true), (READ_VERSIONS_ALONE, false)] {
        let sql = Arc::from(sql.replace(DEFAULT_TABLE, table));
        let read = connection.run(&sql, &[], ResultKind::Rows, false).await;
        let found = match read.map_err(classify_at_connect) {
            Ok(found) => found,
            // At least one of the two tables is missing.
            Err(failure) if failure.error.kind() == ErrorKind::Schema => continue,
            Err(failure) => return Err(failure),
        };
        let Some(row) = found.rows.first() else { return Ok(None) };
        let value = |at| row.try_get::<Option<i64>, _>(at).map_err(|_| unreadable("value"));
        return Ok(TableVersions::from_rows(value(0)?, value(1)?, has_records));
    }
    Ok(None)
}

/// How long each check in `connect()` may take, apart from opening the connection.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_the_shipped_sql_takes_another_name() {
        let sql = schema_sql("other").expect("the name should be valid");
        assert!(sql.contains("`other`") && sql.contains("`other_meta`"), "{sql}");
        let code = sql.lines().filter(|line| !line.starts_with("--")).collect::<String>();
        assert!(!code.contains(DEFAULT_TABLE), "{code}");
        for bad in ["", "a`; DROP TABLE x; --", "a.b"] {
            assert_eq!(schema_sql(bad).expect_err("refused").kind(), ErrorKind::Config, "{bad}");
        }
    }
}
