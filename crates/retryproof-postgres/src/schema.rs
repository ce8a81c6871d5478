// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`PostgresConfig::migrate`], and the check of server and schema before the
//! store is used (STO-3, REC-1).

mod function;

use retryproof_core::{Error, ErrorKind, Result};
use retryproof_store_kit::{Schema, TableVersions, table_name};
use sqlx_core::connection::Connection as _;
use sqlx_core::row::Row as _;
use sqlx_postgres::PgConnection;

use crate::config::{DEFAULT_TABLE, PostgresConfig};
use crate::connection::{ServerInfo, execute_text, fetch_row, not_postgres, open};
use crate::error::{LACKS_PRIVILEGE, classify_at_connect, is_missing_table};
use crate::record::hash::pair_hash;
use crate::schema::function::FUNCTIONS;

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    migrate: "PostgresConfig::migrate()",
};

/// The schema as plain SQL, for your own migrator. The SQL creates the tables under the name
/// `table`, and writes the version rows. Run it inside a transaction. Three of the statements
/// contain semicolons between dollar quotes, so the migrator must understand dollar quotes. The SQL
/// can be run again, even while the service works: it never lowers a version row (REC-1), it
/// replaces both functions with those of this release, and it locks an existing table no more than
/// an insert does.
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn schema_sql(table: &str) -> Result<String> {
    let table = table_name(table)?;
    let tables = SCHEMA.migrations.iter().map(|script| script.replace(DEFAULT_TABLE, table));
    let functions = FUNCTIONS.iter().map(|function| function.sql(table));
    Ok(tables.chain(functions).collect::<Vec<_>>().join("\n"))
}

impl PostgresConfig {
    /// Creates or updates the store's tables, in one transaction and under an advisory lock, so
    /// repeated calls are safe, even from several processes at the same time. The database must
    /// exist, and the user needs the privilege to create tables in the first schema of its
    /// `search_path`. No other call creates a table (STO-3).
    ///
    /// Tables of a newer version that this program can still use are left unchanged (REC-1). A
    /// function is replaced only if the database has a lower revision of it, so several releases
    /// can call `migrate` on the same table.
    ///
    /// If the future is dropped early, either everything or nothing has been done.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables have a newer version that this program cannot use;
    /// otherwise the errors of [`PostgresStore::connect`](crate::PostgresStore::connect).
    pub async fn migrate(&self) -> Result<()> {
        let during = |error: Error| error.during("migrate");
        let table = self.table().map_err(during)?;
        // The limit is longer than for other calls, because another process may be migrating.
        let limit = self.call_timeout.max(std::time::Duration::from_secs(30));
        match tokio::time::timeout(limit, self.apply(table)).await {
            Ok(applied) => applied.map_err(during),
            Err(_) => Err(during(Error::unavailable(
                "the migration did not end in time; does another session hold a lock on the tables?",
            ))),
        }
    }

    async fn apply(&self, table: &str) -> Result<()> {
        let fail = |error: sqlx_core::Error| match error
            .as_database_error()
            .and_then(|e| e.code())
            .as_deref()
        {
            Some("42501" | "3F000") => Error::new(
                ErrorKind::Unexpected,
                "the user may not create tables in the first schema of its `search_path`; GRANT \
                 it CREATE there, or apply the shipped SQL as another user",
            ),
            _ => classify_at_connect(&error),
        };
        let mut conn = open(&self.source).await.map_err(fail)?;
        let lock =
            i64::from_ne_bytes(pair_hash(b"retryproof.migrate", table.as_bytes()).to_ne_bytes());
        execute_text(&mut conn, format!("BEGIN; SELECT pg_advisory_xact_lock({lock})"))
            .await
            .map_err(fail)?;
        let found = versions(&mut conn, table).await.map_err(fail)?;
        for script in SCHEMA.pending(found)? {
            execute_text(&mut conn, script.replace(DEFAULT_TABLE, table)).await.map_err(fail)?;
        }
        // A function is created only if it is missing or has a lower revision, so that `migrate`
        // also succeeds for a user without the right to create anything, if another user has
        // already run it. The function is created in the table's schema, because the table may have
        // been restored, without its functions, into a schema that is not the first in the
        // `search_path`.
        for function in FUNCTIONS {
            let found = function.find(&mut conn, table).await.map_err(fail)?;
            if function.is_pending(found.as_ref()) {
                execute_text(&mut conn, prefer_schema_of(table)).await.map_err(fail)?;
                execute_text(&mut conn, function.sql(table)).await.map_err(fail)?;
            }
        }
        execute_text(&mut conn, "COMMIT".to_owned()).await.map_err(fail)?;
        // The tables exist, whether or not the connection closes cleanly.
        let _ = conn.close().await;
        Ok(())
    }
}

/// Reads the version rows; `None` if the table or the row `schema` is missing.
async fn versions(
    conn: &mut PgConnection,
    table: &str,
) -> Result<Option<TableVersions>, sqlx_core::Error> {
    // The tables are looked up first, because an error for a missing table would abort a migration's
    // transaction.
    let exists = |name| format!("to_regclass('\"{name}\"') IS NOT NULL");
    let sql = format!("SELECT {},{}", exists(format!("{table}_meta")), exists(table.to_owned()));
    let Some(row) = fetch_row(conn, sql).await? else { return Ok(None) };
    let (has_versions, has_records): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if !has_versions {
        return Ok(None);
    }
    let value = |name| format!("(SELECT value FROM \"{table}_meta\" WHERE name='{name}')");
    let sql = format!("SELECT {},{}", value("schema"), value("compatible_from"));
    match fetch_row(conn, sql).await? {
        Some(row) => Ok(TableVersions::from_rows(row.try_get(0)?, row.try_get(1)?, has_records)),
        None => Ok(None),
    }
}

/// SQL that puts the table's schema first in the `search_path` until the transaction ends.
fn prefer_schema_of(table: &str) -> String {
    format!(
        "SELECT set_config('search_path', \
         quote_ident(n.nspname)||','||current_setting('search_path'), true) FROM pg_class AS c \
         JOIN pg_namespace AS n ON n.oid=c.relnamespace WHERE c.oid=to_regclass('\"{table}\"')"
    )
}

/// Fails if the store cannot work with the server or the schema (STO-3, REC-1).
pub(crate) async fn check(conn: &mut PgConnection, table: &str) -> Result<ServerInfo> {
    let unreadable = |error: sqlx_core::Error| classify_at_connect(&error);
    let facts = fetch_row(
        conn,
        format!(
            "SELECT current_setting('server_version_num')::bigint, \
             pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, \
             current_setting('default_transaction_isolation')='read committed', \
             coalesce((SELECT bool_and(has_table_privilege(to_regclass('\"{table}\"'),p)) \
             FROM unnest(ARRAY['SELECT','INSERT','UPDATE','DELETE']) AS p) \
             AND has_function_privilege(to_regprocedure('{}'),'EXECUTE') \
             AND has_function_privilege(to_regprocedure('{}'),'EXECUTE'),true)",
            FUNCTIONS[0].signature(table),
            FUNCTIONS[1].signature(table)
        ),
    )
    .await
    .map_err(unreadable)?
    .ok_or_else(not_postgres)?;
    let number: i64 = facts.try_get(0).map_err(unreadable)?;
    if number < 120_000 {
        return Err(Error::new(ErrorKind::Unsupported, "the store needs PostgreSQL 12 or newer")
            .with("server_version_num", number));
    }
    if facts.try_get(1).map_err(unreadable)? {
        return Err(Error::unavailable(
            "the server is read-only: it is a standby, or set to read-only; point the URL at the \
             primary",
        ));
    }
    let found = match versions(conn, table).await {
        Ok(found) => found,
        Err(error) if is_missing_table(&error) => None,
        Err(error) => return Err(classify_at_connect(&error)),
    };
    SCHEMA.check(found, table)?;
    check_functions(conn, table).await?;
    if !facts.try_get::<bool, _>(3).map_err(unreadable)? {
        return Err(Error::new(ErrorKind::Unexpected, LACKS_PRIVILEGE).with("table", table));
    }
    Ok(ServerInfo { reads_committed: facts.try_get(2).map_err(unreadable)? })
}

/// Fails if a function is missing. Logs one warning if a function has a lower revision than the one
/// that this program ships.
async fn check_functions(conn: &mut PgConnection, table: &str) -> Result<()> {
    let mut older = Vec::new();
    for function in FUNCTIONS {
        let found =
            function.find(conn, table).await.map_err(|error| classify_at_connect(&error))?;
        let Some(found) = found else { return Err(SCHEMA.missing(table)) };
        if found.revision < function.revision() {
            older.push(format!("{table}_{}", function.suffix));
        }
    }
    if !older.is_empty() {
        tracing::warn!(
            functions = older.join(", "),
            "the store's functions are older than those of this version of retryproof; call \
             `retryproof::migrate(url)`"
        );
    }
    Ok(())
}
