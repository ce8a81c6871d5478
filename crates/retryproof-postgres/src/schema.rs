// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`PostgresConfig::migrate`], and the check of server and schema before the
//! store is used (STO-3).

use retryproof_core::{Error, ErrorKind, Result};
use retryproof_store_kit::{Schema, TableVersions, table_name};
use sqlx_core::connection::Connection as _;
use sqlx_core::row::Row as _;
use sqlx_postgres::PgConnection;

use crate::config::{DEFAULT_TABLE, PostgresConfig};
use crate::connection::{ServerInfo, execute_text, fetch_row, not_postgres, open};
use crate::error::{classify_at_connect, is_missing_table};
use crate::record::hash::pair_hash;

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    migrate: "PostgresConfig::migrate()",
};

/// A function of the schema. It has no version; instead, `migrate` compares its body and settings
/// with those in the database.
struct Function {
    /// The suffix that follows the table name; also the tag of the dollar quotes around the body.
    suffix: &'static str,
    parameters: &'static str,
    /// The function's `SET` clauses, as the catalogue stores them.
    settings: &'static str,
    script: &'static str,
}

const FUNCTIONS: [Function; 2] = [
    Function {
        suffix: "grant",
        parameters: "bytea,bytea,bytea,bigint,bigint,bigint,bytea,boolean,bigint",
        settings: "",
        script: include_str!("../migrations/R__grant.sql"),
    },
    Function {
        suffix: "complete",
        parameters: "bytea[],bytea[],bytea[],bigint[],bigint[],bytea[],bytea[]",
        settings: "{enable_seqscan=off}",
        script: include_str!("../migrations/R__complete.sql"),
    },
];

impl Function {
    /// The name and parameters by which the server finds the function.
    fn signature(&self, table: &str) -> String {
        format!("\"{table}_{}\"({})", self.suffix, self.parameters)
    }

    /// The settings and the body that the function must have.
    fn expected(&self, table: &str) -> Option<(String, String)> {
        let quote = format!("${}$", self.suffix);
        let body = self.script.split(quote.as_str()).nth(1)?;
        Some((self.settings.to_owned(), body.replace(DEFAULT_TABLE, table)))
    }

    /// The function's settings and body in the database, if it exists.
    async fn found(
        &self,
        conn: &mut PgConnection,
        table: &str,
    ) -> Result<Option<(String, String)>, sqlx_core::Error> {
        let sql = format!(
            "SELECT coalesce(proconfig::text,''),prosrc FROM pg_proc WHERE oid=to_regprocedure('{}')",
            self.signature(table)
        );
        fetch_row(conn, sql).await?.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }
}

/// The schema as plain SQL, for your own migrator. It creates the tables under the name `table`, and
/// writes the version row. Run it inside a transaction. Two of the statements create functions whose
/// bodies contain semicolons between dollar quotes, so the migrator must understand dollar quotes.
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn schema_sql(table: &str) -> Result<String> {
    let table = table_name(table)?;
    let functions = FUNCTIONS.iter().map(|function| function.script);
    let scripts = SCHEMA.migrations.iter().copied().chain(functions);
    Ok(scripts.collect::<Vec<_>>().join("\n").replace(DEFAULT_TABLE, table))
}

impl PostgresConfig {
    /// Creates or updates the store's tables, in one transaction and under an advisory lock, so it
    /// is safe to call again, even from several processes at the same time. The database must
    /// exist, and the user needs the privilege to create tables in the first schema of its
    /// `search_path`. No other call creates a table (STO-3).
    ///
    /// If the future is dropped early, either everything or nothing has been done.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if a newer version of this library created the tables; otherwise the
    /// errors of [`PostgresStore::connect`](crate::PostgresStore::connect).
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
        let found = version(&mut conn, table).await.map_err(fail)?;
        for script in SCHEMA.pending(found)? {
            execute_text(&mut conn, script.replace(DEFAULT_TABLE, table)).await.map_err(fail)?;
        }
        // A function is created only if it is missing or differs, so that `migrate` also succeeds
        // for a user who may not create anything, if another user has called it before. It is
        // created in the table's schema, because the table may have been restored, without its
        // functions, into a schema that is not the first in the `search_path`.
        for function in FUNCTIONS {
            if function.found(&mut conn, table).await.map_err(fail)? != function.expected(table) {
                execute_text(&mut conn, prefer_schema_of(table)).await.map_err(fail)?;
                execute_text(&mut conn, function.script.replace(DEFAULT_TABLE, table))
                    .await
                    .map_err(fail)?;
            }
        }
        execute_text(&mut conn, "COMMIT".to_owned()).await.map_err(fail)?;
        // The tables exist, whether or not the connection closes cleanly.
        let _ = conn.close().await;
        Ok(())
    }
}

/// Reads the version row; `None` if the table or the row is missing.
async fn version(
    conn: &mut PgConnection,
    table: &str,
) -> Result<Option<TableVersions>, sqlx_core::Error> {
    // The table is looked up first, because an error for a missing table would abort a migration's
    // transaction.
    let exists =
        fetch_row(conn, format!("SELECT to_regclass('\"{table}_meta\"') IS NOT NULL")).await?;
    if !exists.map_or(Ok(false), |row| row.try_get(0))? {
        return Ok(None);
    }
    match fetch_row(conn, format!("SELECT value FROM \"{table}_meta\" WHERE name='schema'")).await?
    {
        Some(row) => row.try_get(0).map(|schema| TableVersions::from_rows(Some(schema), None)),
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

/// Fails if the store cannot work with the server or the schema (STO-3).
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
    let found = match version(conn, table).await {
        Ok(found) => found,
        Err(error) if is_missing_table(&error) => None,
        Err(error) => return Err(classify_at_connect(&error)),
    };
    SCHEMA.check(found, table)?;
    for function in FUNCTIONS {
        if function.found(conn, table).await.map_err(unreadable)?.is_none() {
            return Err(SCHEMA.missing(table));
        }
    }
    if !facts.try_get::<bool, _>(3).map_err(unreadable)? {
        return Err(Error::new(
            ErrorKind::Unexpected,
            "the user lacks a privilege; GRANT it SELECT, INSERT, UPDATE and DELETE on the \
             table, SELECT on the `_meta` table, and EXECUTE on the `_grant` and `_complete` \
             functions",
        )
        .with("table", table));
    }
    Ok(ServerInfo { reads_committed: facts.try_get(2).map_err(unreadable)? })
}
