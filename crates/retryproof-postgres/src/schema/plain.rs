// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schema in the plain dialect (STO-9): tables and an index, but no function. Everything that
//! PostgreSQL's dialect reads from the catalogue is found out here by a statement that changes
//! nothing, because another server may have another catalogue.

use std::time::Duration;

use retryproof_core::config::SqlDialect;
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::{MetaRows, Schema, jitter, table_name, warn_no_audit_table};
use sqlx_postgres::PgConnection;

use super::partitions::Partitions;
use super::{migration_error, open, read_meta};
use crate::config::{DEFAULT_TABLE, PostgresConfig};
use crate::connection::{ServerInfo, execute_text};
use crate::error::{LACKS_PRIVILEGE, classify_at_connect, code, is_conflict, is_missing_table};
use crate::statement::plain::SESSION_SETTINGS;

pub(super) const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../../migrations/V1__records_plain.sql")],
    ..super::SCHEMA
};

/// One statement for each privilege. No statement changes a row, whatever the table contains. The
/// server checks the privileges, and whether it accepts writes, before it looks for rows.
const PRIVILEGES: [(&str, &str); 5] = [
    ("SELECT on retryproof_records", "SELECT state FROM \"retryproof_records\" WHERE 1=0"),
    (
        "INSERT on retryproof_records",
        "INSERT INTO \"retryproof_records\" (scope) SELECT scope FROM \"retryproof_records\" \
         WHERE 1=0",
    ),
    ("UPDATE on retryproof_records", "UPDATE \"retryproof_records\" SET takeovers=0 WHERE 1=0"),
    ("DELETE on retryproof_records", "DELETE FROM \"retryproof_records\" WHERE 1=0"),
    (
        "SELECT on retryproof_records_meta",
        "SELECT value FROM \"retryproof_records_meta\" WHERE 1=0",
    ),
];

/// How many times a statement that creates something is sent, if other processes create it too.
const MAX_CREATIONS: u32 = 100;
/// The pause before such a statement is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the schema of the plain dialect as plain SQL, for your own migrator (STO-9). The SQL
/// creates the record table, named `table`, and the tables `<table>_meta` and `<table>_audit`, and
/// writes the version rows. The SQL creates no function, and a semicolon ends each statement. The
/// statements may run in one transaction or each in its own. You can run the SQL again, even while
/// the service works.
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn plain_schema_sql(table: &str) -> Result<String> {
    Ok(SCHEMA.sql().replace(DEFAULT_TABLE, table_name(table)?))
}

/// Creates or updates the tables, with each statement in a transaction of its own. Two processes
/// that create the same table at the same time can disturb each other, because no lock keeps them
/// apart. Each statement is therefore sent again until one of the processes has created the table.
/// A divided table and its partitions share a transaction, so the table is never left with only
/// some of its partitions.
pub(super) async fn apply(
    config: &PostgresConfig,
    table: &str,
    partitions: Option<Partitions>,
) -> Result<()> {
    let mut conn = open(config).await?;
    let secret = config.identity_secret.as_ref();
    let found = meta_rows(&mut conn, table).await.map_err(migration_error)?;
    found.check_secret(secret)?;
    if let Some(partitions) = partitions {
        partitions.check_before(&mut conn, table, SqlDialect::Plain).await?;
    }
    for script in SCHEMA.pending(found.versions)? {
        let script = IdentitySecret::mark_schema(secret, script);
        let script = match partitions {
            Some(partitions) => partitions.divide(&script),
            None => script,
        };
        // An empty line ends a statement, or a table with its partitions.
        for statement in script.replace(DEFAULT_TABLE, table).split(";\n\n") {
            create(&mut conn, statement).await.map_err(migration_error)?;
            // The versions follow the tables, so a table that lacks a partition gets none.
            if let Some(partitions) = partitions {
                partitions.check_after(&mut conn, table, SqlDialect::Plain).await?;
            }
        }
    }
    // Another process may have set up the same tables with another secret in the meantime.
    meta_rows(&mut conn, table).await.map_err(migration_error)?.check_secret(secret)?;
    if exists(&mut conn, &format!("{table}_audit")).await.map_err(migration_error)? {
        return Ok(());
    }
    match create(&mut conn, &SCHEMA.audit.replace(DEFAULT_TABLE, table)).await {
        Err(error) if code(&error).as_deref() == Some("42501") => {
            warn_no_audit_table(table);
            Ok(())
        }
        created => created.map_err(migration_error),
    }
}

/// Sends a statement that creates something, and sends it again if another process did the same at
/// that moment.
pub(crate) async fn create(
    conn: &mut PgConnection,
    statement: &str,
) -> Result<(), sqlx_core::Error> {
    let mut sent = 0;
    loop {
        sent += 1;
        match execute_text(conn, statement.to_owned()).await {
            Err(error) if sent < MAX_CREATIONS && is_creation_race(&error) => {
                tokio::time::sleep(jitter(PAUSE)).await;
            }
            created => return created,
        }
    }
}

/// Whether another process has created the same thing at the same time. Despite `IF NOT EXISTS`,
/// PostgreSQL then reports a duplicate key of its catalogue, or a table that exists.
fn is_creation_race(error: &sqlx_core::Error) -> bool {
    is_conflict(error) || matches!(code(error).as_deref(), Some("23505" | "42P07" | "42710"))
}

/// Whether the table exists. A table that the user may not read exists too.
pub(crate) async fn exists(conn: &mut PgConnection, table: &str) -> Result<bool, sqlx_core::Error> {
    match execute_text(conn, format!("SELECT 1 FROM \"{table}\" WHERE 1=0")).await {
        Err(error) if is_missing_table(&error) => Ok(false),
        Err(error) if code(&error).as_deref() == Some("42501") => Ok(true),
        done => done.map(|()| true),
    }
}

/// Reads the rows of the meta table, if the table exists.
pub(super) async fn meta_rows(
    conn: &mut PgConnection,
    table: &str,
) -> Result<MetaRows, sqlx_core::Error> {
    let has_records = exists(conn, table).await?;
    match read_meta(conn, table, has_records).await {
        Err(error) if is_missing_table(&error) => Ok(MetaRows::default()),
        found => found,
    }
}

/// Fails if the store cannot work with the server or the schema (STO-3, REC-1, ID-5).
pub(super) async fn check(
    conn: &mut PgConnection,
    table: &str,
    secret: Option<&IdentitySecret>,
) -> Result<ServerInfo> {
    let found = meta_rows(conn, table).await.map_err(|error| classify_at_connect(&error))?;
    SCHEMA.check(found.versions, table)?;
    found.check_secret(secret)?;
    if !missing_privileges(conn, table).await?.is_empty() {
        return Err(Error::new(ErrorKind::Unexpected, LACKS_PRIVILEGE).with("table", table));
    }
    let mut accepted = Vec::new();
    for setting in SESSION_SETTINGS {
        // The setting ends with these statements, because behind a pooler, another client may use
        // the server's connection next.
        match execute_text(conn, format!("SET LOCAL {setting};SELECT 1")).await {
            Ok(()) => accepted.push(format!("SET {setting}")),
            Err(error @ sqlx_core::Error::Database(_)) => {
                tracing::debug!(
                    setting,
                    code = code(&error).as_deref(),
                    "the server refused a setting"
                );
            }
            Err(error) => return Err(classify_at_connect(&error)),
        }
    }
    Ok(ServerInfo { settings: accepted.join(";").into() })
}

/// Returns the privileges that the user lacks.
///
/// # Errors
/// Any other error of the statements, for example that the server is read-only.
pub(crate) async fn missing_privileges(
    conn: &mut PgConnection,
    table: &str,
) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (privilege, statement) in PRIVILEGES {
        match execute_text(conn, statement.replace(DEFAULT_TABLE, table)).await {
            Err(error) if code(&error).as_deref() == Some("42501") => {
                missing.push(privilege.replace(DEFAULT_TABLE, table));
            }
            Err(error) if is_missing_table(&error) => {}
            done => done.map_err(|error| classify_at_connect(&error))?,
        }
    }
    Ok(missing)
}
