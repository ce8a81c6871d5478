// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`PostgresConfig::migrate`], and what is checked before the store is used
//! (STO-3).

use retryproof_core::{Error, ErrorKind, Result};
use sqlx_core::connection::Connection as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgConnection, PgRow};

use crate::config::{DEFAULT_TABLE, PostgresConfig, valid};
use crate::error::{classify, is_missing};
use crate::pool::Pool;
use crate::record::hash::hash;

/// The version that this code reads and writes.
const VERSION: i64 = 1;

/// The shipped migrations, oldest first; the index is the version before.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/V1__records.sql")];

/// A function of the schema. It has no version: its text and its settings are compared with what
/// the database has.
struct Function {
    /// What its name has behind the table's; its body stands between this word's dollar quotes.
    name: &'static str,
    takes: &'static str,
    /// Its `SET` clauses, as the catalogue keeps them.
    sets: &'static str,
    script: &'static str,
}

const FUNCTIONS: [Function; 2] = [
    Function {
        name: "grant",
        takes: "bytea,bytea,bytea,bigint,bigint,bigint,bytea,boolean,bigint",
        sets: "",
        script: include_str!("../migrations/R__grant.sql"),
    },
    Function {
        name: "complete",
        takes: "bytea[],bytea[],bytea[],bigint[],bigint[],bytea[],bytea[]",
        sets: "{enable_seqscan=off}",
        script: include_str!("../migrations/R__complete.sql"),
    },
];

impl Function {
    /// As the server finds it.
    fn signature(&self, table: &str) -> String {
        format!("\"{table}_{}\"({})", self.name, self.takes)
    }

    /// What its settings and its body have to be.
    fn wanted(&self, table: &str) -> Option<(String, String)> {
        let quote = format!("${}$", self.name);
        let body = self.script.split(quote.as_str()).nth(1)?;
        Some((self.sets.to_owned(), body.replace(DEFAULT_TABLE, table)))
    }

    /// Its settings and its body, if it is there.
    async fn found(
        &self,
        conn: &mut PgConnection,
        table: &str,
    ) -> Result<Option<(String, String)>, sqlx_core::Error> {
        let sql = format!(
            "SELECT coalesce(proconfig::text,''),prosrc FROM pg_proc WHERE oid=to_regprocedure('{}')",
            self.signature(table)
        );
        row(conn, sql).await?.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }
}

/// The schema as plain SQL, for a migrator of your own: it makes the tables for the records under
/// the name `table`, and writes the version row. Run it inside a transaction. Two of the statements
/// make functions, whose bodies stand between dollar quotes and have semicolons in them, so the
/// migrator has to know these.
///
/// # Errors
/// [`ErrorKind::Config`] when the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn schema_sql(table: &str) -> Result<String> {
    let table = valid(table)?;
    let scripts = MIGRATIONS.into_iter().chain(FUNCTIONS.iter().map(|function| function.script));
    Ok(scripts.collect::<Vec<_>>().join("\n").replace(DEFAULT_TABLE, table))
}

impl PostgresConfig {
    /// Makes or updates the tables of the store, in one transaction and under an advisory lock:
    /// safe to call again, and from several processes at once. The database has to be there, and
    /// the user needs the privilege to create tables in the first schema of its `search_path`.
    /// Nothing else ever makes a table (STO-3).
    ///
    /// Dropped before its end it leaves everything or nothing done.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] when a newer version of this library made the tables; else those of
    /// [`PostgresStore::connect`](crate::PostgresStore::connect).
    pub async fn migrate(&self) -> Result<()> {
        let during = |error: Error| error.during("migrate");
        let table = self.table().map_err(during)?;
        // Longer than a call of the store: another process may be at it.
        let most = self.timeout.max(std::time::Duration::from_secs(30));
        match tokio::time::timeout(most, self.apply(table)).await {
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
            _ => classify(&error),
        };
        let mut conn = Pool::open(&self.source).await.map_err(fail)?;
        let key = i64::from_ne_bytes(hash(b"retryproof.migrate", table.as_bytes()).to_ne_bytes());
        run(&mut conn, format!("BEGIN; SELECT pg_advisory_xact_lock({key})"))
            .await
            .map_err(fail)?;
        let found = version(&mut conn, table).await.map_err(fail)?.unwrap_or(0);
        if found > VERSION {
            return Err(newer(found));
        }
        for script in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
            run(&mut conn, script.replace(DEFAULT_TABLE, table)).await.map_err(fail)?;
        }
        // Compared first, for whoever may not create anything calls this as well, after somebody
        // else has. A table can be restored without its function, so it goes where the table is: in
        // the first schema of the path nobody might find it.
        for function in FUNCTIONS {
            if function.found(&mut conn, table).await.map_err(fail)? != function.wanted(table) {
                run(&mut conn, beside(table)).await.map_err(fail)?;
                run(&mut conn, function.script.replace(DEFAULT_TABLE, table))
                    .await
                    .map_err(fail)?;
            }
        }
        run(&mut conn, "COMMIT".to_owned()).await.map_err(fail)?;
        // The tables are there, whether or not the server hears the good-bye.
        let _ = conn.close().await;
        Ok(())
    }
}

async fn run(conn: &mut PgConnection, sql: String) -> Result<(), sqlx_core::Error> {
    conn.execute(raw_sql(AssertSqlSafe(sql))).await.map(drop)
}

async fn row(conn: &mut PgConnection, sql: String) -> Result<Option<PgRow>, sqlx_core::Error> {
    conn.fetch_optional(raw_sql(AssertSqlSafe(sql))).await
}

/// The version row; `None` without the table or the row.
async fn version(conn: &mut PgConnection, table: &str) -> Result<Option<i64>, sqlx_core::Error> {
    // Asked first: an error would end the transaction of a migration.
    let there = row(conn, format!("SELECT to_regclass('\"{table}_meta\"') IS NOT NULL")).await?;
    if !there.map_or(Ok(false), |row| row.try_get(0))? {
        return Ok(None);
    }
    match row(conn, format!("SELECT value FROM \"{table}_meta\" WHERE name='schema'")).await? {
        Some(row) => row.try_get(0).map(Some),
        None => Ok(None),
    }
}

/// Puts the table's schema first in the path, until the transaction ends.
fn beside(table: &str) -> String {
    format!(
        "SELECT set_config('search_path', \
         quote_ident(n.nspname)||','||current_setting('search_path'), true) FROM pg_class AS c \
         JOIN pg_namespace AS n ON n.oid=c.relnamespace WHERE c.oid=to_regclass('\"{table}\"')"
    )
}

/// What the server is like.
pub(crate) struct Server {
    /// Whether transactions are READ COMMITTED unless they say otherwise.
    pub(crate) reads_committed: bool,
}

/// Refuses a server or a schema that this code cannot work on (STO-3).
pub(crate) async fn check(conn: &mut PgConnection, table: &str) -> Result<Server> {
    let unreadable = |error: sqlx_core::Error| classify(&error);
    let facts = row(
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
    .ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the server does not answer as PostgreSQL does")
    })?;
    let number: i64 = facts.try_get(0).map_err(unreadable)?;
    if number < 120_000 {
        return Err(Error::new(ErrorKind::Unsupported, "the store needs PostgreSQL 12 or newer")
            .with("server_version_num", number));
    }
    if facts.try_get(1).map_err(unreadable)? {
        return Err(Error::unavailable(
            "the server is read-only: a standby, or set so; point the URL at the primary",
        ));
    }
    match version(conn, table).await {
        Ok(Some(VERSION)) => {
            for function in FUNCTIONS {
                if function.found(conn, table).await.map_err(unreadable)?.is_none() {
                    return Err(missing(table));
                }
            }
        }
        Ok(Some(found)) if found > VERSION => return Err(newer(found)),
        Ok(Some(found)) => {
            return Err(Error::new(
                ErrorKind::Schema,
                "the store's schema is of an older version; call `retryproof::migrate(url)` \
                 (`PostgresConfig::migrate()` where only this crate is used), or apply the \
                 shipped SQL",
            )
            .with("found", found)
            .with("wanted", VERSION));
        }
        Ok(None) => return Err(missing(table)),
        Err(error) if is_missing(&error) => return Err(missing(table)),
        Err(error) => return Err(classify(&error)),
    }
    if !facts.try_get::<bool, _>(3).map_err(unreadable)? {
        return Err(Error::new(
            ErrorKind::Unexpected,
            "the user lacks a privilege; GRANT it SELECT, INSERT, UPDATE and DELETE on the \
             table, SELECT on the one with `_meta`, and EXECUTE on the functions with `_grant` \
             and `_complete`",
        )
        .with("table", table));
    }
    Ok(Server { reads_committed: facts.try_get(2).map_err(unreadable)? })
}

/// Which process of the server answers.
pub(crate) async fn backend(conn: &mut PgConnection) -> Result<i64> {
    let answer = row(conn, "SELECT pg_backend_pid()::bigint".to_owned()).await;
    match answer.map_err(|error| classify(&error))? {
        Some(row) => row.try_get(0).map_err(|error| classify(&error)),
        None => {
            Err(Error::new(ErrorKind::Unsupported, "the server does not answer as PostgreSQL does"))
        }
    }
}

fn missing(table: &str) -> Error {
    Error::new(
        ErrorKind::Schema,
        "the database does not have all tables and functions of the store; call \
         `retryproof::migrate(url)` once (`PostgresConfig::migrate()` where only this crate is \
         used), or apply the shipped SQL",
    )
    .with("table", table)
}

fn newer(found: i64) -> Error {
    Error::new(
        ErrorKind::Schema,
        "a newer retryproof made the store's schema; run that version, or name another table",
    )
    .with("found", found)
    .with("wanted", VERSION)
}
