// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`MysqlConfig::migrate`], and the checks of the schema's version and the
//! identity secret (STO-3, ID-5).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Param, StoreFinding};
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::{
    MetaRows, Schema, TableVersions, other_identities, table_name, unreadable, warn_no_audit_table,
};
use sqlx_core::row::Row as _;

use crate::config::{DEFAULT_TABLE, MysqlConfig};
use crate::connection::{Connection, ResultKind};
use crate::error::{Failure, classify_at_connect, lacks_privilege};
use crate::record::integer;

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    audit: include_str!("../migrations/R__audit.sql"),
    migrate: "MysqlConfig::migrate()",
};

/// How long `migrate()` waits for another migration of the same tables, in seconds.
const LOCK_TIMEOUT: i64 = 60;

/// Takes the lock that lets only one process migrate at a time. Lock names are global to the
/// server, so the name contains a hash of the database and the table. The hash keeps the name
/// within the server's limit of 64 characters.
const LOCK: &str =
    "SELECT GET_LOCK(CONCAT('retryproof.',LEFT(SHA2(CONCAT(DATABASE(),'.',?),256),40)),?)";
const UNLOCK: &str =
    "SELECT RELEASE_LOCK(CONCAT('retryproof.',LEFT(SHA2(CONCAT(DATABASE(),'.',?),256),40)))";

/// Reads both version rows and the identity mark. Fails if the record table is missing.
const READ_VERSIONS: &str = "SELECT \
     (SELECT value FROM `retryproof_records_meta` WHERE name='schema'),\
     (SELECT value FROM `retryproof_records_meta` WHERE name='compatible_from'),\
     (SELECT value FROM `retryproof_records_meta` WHERE name='identity'),\
     (SELECT COUNT(*) FROM `retryproof_records` WHERE scope='' AND k='')";

/// Like `READ_VERSIONS`, but does not need the record table.
const READ_VERSIONS_ALONE: &str = "SELECT \
     (SELECT value FROM `retryproof_records_meta` WHERE name='schema'),\
     (SELECT value FROM `retryproof_records_meta` WHERE name='compatible_from'),\
     (SELECT value FROM `retryproof_records_meta` WHERE name='identity')";

/// Succeeds if the audit table exists and the account has a privilege on it.
const HAS_AUDIT_TABLE: &str = "SELECT id FROM `retryproof_records_audit` WHERE FALSE";

/// Returns the schema as plain SQL for your own migration tool. The SQL creates the record
/// table, named `table`, and the tables `<table>_meta` and `<table>_audit`, and writes the version
/// rows. Running it again changes nothing, even on newer tables (REC-1).
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}` (STO-3).
pub fn schema_sql(table: &str) -> Result<String> {
    Ok(SCHEMA.sql().replace(DEFAULT_TABLE, table_name(table)?))
}

impl MysqlConfig {
    /// Creates or updates the store's tables, under an advisory lock on the server. Does not change
    /// newer tables that this version can use (REC-1). Adds a missing audit table (OPS-10), unless
    /// the account may not create tables. Call `migrate` at start-up or in a deployment step.
    /// Repeated calls are safe, even from several processes at the same time. No other call creates
    /// tables (STO-3). The account needs CREATE and INDEX in addition to the store's privileges.
    ///
    /// # Cancel safety
    /// If the call is dropped, some of the tables may already exist. The next call creates the
    /// others.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables need a newer version of this library.
    /// [`ErrorKind::Config`] if they were set up with another identity secret (ID-5).
    /// [`ErrorKind::Unavailable`] if another migration holds the lock for a minute. Otherwise, the
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
        // GET_LOCK returns 0 if the wait timed out, and NULL after an error, for example if the
        // statement was killed.
        if locked.rows.first().and_then(|row| integer(row, 0, "lock").ok()) != Some(1) {
            return Err(Error::unavailable(
                "another migration of the same tables is running; try again later",
            )
            .into());
        }
        let applied = apply(&mut connection, table, self.identity_secret.as_ref()).await;
        // If the unlock fails, closing the connection releases the lock.
        let _ = connection.run(&Arc::from(UNLOCK), &[name], ResultKind::Rows, false).await;
        connection.close().await;
        applied
    }
}

async fn apply(
    connection: &mut Connection,
    table: &str,
    secret: Option<&IdentitySecret>,
) -> Result<(), Failure> {
    let found = meta_rows(connection, table).await?;
    // Check the mark of the identity secret first, because a migration that ended early may have
    // written the mark but no version.
    found.check_secret(secret)?;
    for script in SCHEMA.pending(found.versions)? {
        // MySQL commits each statement of the script separately. A script that stopped halfway can
        // be repeated, because each statement is safe to run twice, and the version rows are
        // written last.
        let script = IdentitySecret::mark_schema(secret, script);
        connection.run_script(script.replace(DEFAULT_TABLE, table)).await?;
    }
    add_audit_table(connection, table).await
}

/// Creates the audit table if it is missing (OPS-10). If this account may not create tables, which
/// is usual for a service that migrates when it starts, the table is left to the next migration by
/// another account.
async fn add_audit_table(connection: &mut Connection, table: &str) -> Result<(), Failure> {
    // Look for the table first, because CREATE TABLE requires the privilege to create tables even
    // if the table exists.
    let sql = Arc::from(HAS_AUDIT_TABLE.replace(DEFAULT_TABLE, table));
    let found = connection.run(&sql, &[], ResultKind::Rows, false).await;
    let Err(error) = found.map_err(classify_at_connect) else { return Ok(()) };
    // To an account without any privilege on the table, the server does not reveal whether the
    // table exists.
    let is_hidden = lacks_privilege(&error.error);
    if !is_hidden && error.error.kind() != ErrorKind::Schema {
        return Err(error);
    }
    match connection.run_script(SCHEMA.audit.replace(DEFAULT_TABLE, table)).await {
        Err(failure) if lacks_privilege(&failure.error) => {
            if !is_hidden {
                warn_no_audit_table(table);
            }
            Ok(())
        }
        created => created,
    }
}

/// Returns what is wrong with the tables, and with the identity secret (OPS-5).
pub(crate) async fn findings(
    connection: &mut Connection,
    table: &str,
    secret: Option<&IdentitySecret>,
) -> Result<[Option<StoreFinding>; 2], Failure> {
    let found = meta_rows(connection, table).await?;
    Ok([SCHEMA.finding(found.versions, table), other_identities(found.check_secret(secret))])
}

/// Fails if this version of the library cannot use the tables (REC-1, STO-3), or if they were set
/// up with another identity secret (ID-5).
pub(crate) async fn check(
    connection: &mut Connection,
    table: &str,
    secret: Option<&IdentitySecret>,
) -> Result<(), Failure> {
    let found = meta_rows(connection, table).await?;
    SCHEMA.check(found.versions, table)?;
    Ok(found.check_secret(secret)?)
}

/// Reads the rows of the meta table, if it exists.
async fn meta_rows(connection: &mut Connection, table: &str) -> Result<MetaRows, Failure> {
    for (sql, has_records) in [(READ_VERSIONS, true), (READ_VERSIONS_ALONE, false)] {
        let sql = Arc::from(sql.replace(DEFAULT_TABLE, table));
        let read = connection.run(&sql, &[], ResultKind::Rows, false).await;
        let found = match read.map_err(classify_at_connect) {
            Ok(found) => found,
            // The meta table or the records table is missing.
            Err(failure) if failure.error.kind() == ErrorKind::Schema => continue,
            Err(failure) => return Err(failure),
        };
        let Some(row) = found.rows.first() else { break };
        let value = |at| row.try_get::<Option<i64>, _>(at).map_err(|_| unreadable("value"));
        let versions = TableVersions::from_rows(value(0)?, value(1)?, has_records);
        return Ok(MetaRows { versions, mark: value(2)? });
    }
    Ok(MetaRows::default())
}

/// How long each check in `connect()` may take. Opening the connection has its own limit.
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
