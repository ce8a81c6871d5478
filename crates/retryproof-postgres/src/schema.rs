// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`PostgresConfig::migrate`], and the check of server and schema before the
//! store is used (STO-3, REC-1, ID-5).

mod function;
pub(crate) mod partitions;
pub(crate) mod plain;

use retryproof_core::config::SqlDialect;
use retryproof_core::store::{Severity, StoreFinding};
use retryproof_core::{Error, ErrorKind, IdentitySecret, Result};
use retryproof_store_kit::{
    MetaRows, Schema, TableVersions, other_identities, table_name, warn_no_audit_table,
};
use sqlx_core::connection::Connection as _;
use sqlx_core::row::Row as _;
use sqlx_postgres::PgConnection;

use crate::config::{DEFAULT_TABLE, PostgresConfig};
use crate::connection::hosts::HostSelector;
use crate::connection::{ServerInfo, execute_text, fetch_row, not_postgres};
use crate::error::{Failure, LACKS_PRIVILEGE, classify_at_connect, code, is_missing_table};
use crate::record::hash::pair_hash;
use crate::schema::function::FUNCTIONS;
use crate::schema::partitions::Partitions;
use crate::schema::plain::plain_schema_sql;

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    audit: include_str!("../migrations/R__audit.sql"),
    migrate: "PostgresConfig::migrate()",
};

/// Returns the schema as plain SQL, for your own migrator. The SQL creates the record table, named
/// `table`, and the tables `<table>_meta` and `<table>_audit`, and writes the version rows. Run it
/// inside a transaction. Three of the statements contain semicolons between dollar quotes, so the
/// migrator must understand dollar quotes. You can run the SQL again, even while the service works.
/// A repeated run never lowers the versions in the `_meta` table (REC-1), and replaces both
/// functions with those of this release. It locks an existing table no more than an insert does.
///
/// # Errors
/// [`ErrorKind::Config`] if the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}`.
pub fn schema_sql(table: &str) -> Result<String> {
    let table = table_name(table)?;
    let tables = SCHEMA.sql().replace(DEFAULT_TABLE, table);
    let functions = FUNCTIONS.iter().map(|function| function.sql(table));
    Ok(std::iter::once(tables).chain(functions).collect::<Vec<_>>().join("\n"))
}

impl PostgresConfig {
    /// Creates or updates the store's tables, in one transaction and under an advisory lock.
    /// Repeated calls are safe, even from several processes at the same time. The database must
    /// exist, and the user needs the privilege to create tables in the first schema of its
    /// `search_path`. No other call creates a table (STO-3).
    ///
    /// Tables of a newer version that this program can still use are left unchanged (REC-1). A
    /// missing audit table is added (OPS-10), unless the user may not create tables.
    /// `migrate` replaces a function only if the database has a lower revision of the function, or
    /// the same revision with other settings. Several releases can therefore call `migrate` on the
    /// same table.
    ///
    /// If the future is dropped early, the migration has taken effect either completely or not at
    /// all.
    ///
    /// In the plain dialect (STO-9), there is no lock, and each statement runs in a transaction of
    /// its own: if the future is dropped early, only some of the tables may exist, and `connect`
    /// refuses them until another call creates the rest. `migrate` then creates no function.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the tables have a newer version that this program cannot use.
    /// [`ErrorKind::Config`] if the tables were set up with another identity secret (ID-5), or if
    /// [partitions](Self::with_partitions) are configured and the table has none or another number.
    /// Otherwise, the errors of [`PostgresStore::connect`](crate::PostgresStore::connect).
    pub async fn migrate(&self) -> Result<()> {
        let during = |error: Error| error.during("migrate");
        let table = self.table().map_err(during)?;
        let partitions = self.checked_partitions().map_err(during)?;
        // The limit is longer than for other calls, because another process might be migrating.
        let limit = self.call_timeout.max(std::time::Duration::from_secs(30));
        let apply = async {
            match self.dialect {
                SqlDialect::Postgres => self.apply(table, partitions).await,
                SqlDialect::Plain => plain::apply(self, table, partitions).await,
            }
        };
        match tokio::time::timeout(limit, apply).await {
            Ok(applied) => applied.map_err(during),
            Err(_) => Err(during(Error::unavailable(
                "the migration did not end in time; check whether another session holds a lock on \
                 the tables",
            ))),
        }
    }

    async fn apply(&self, table: &str, partitions: Option<Partitions>) -> Result<()> {
        let fail = migration_error;
        let mut conn = open(self).await?;
        let lock =
            i64::from_ne_bytes(pair_hash(b"retryproof.migrate", table.as_bytes()).to_ne_bytes());
        execute_text(&mut conn, format!("BEGIN; SELECT pg_advisory_xact_lock({lock})"))
            .await
            .map_err(fail)?;
        let secret = self.identity_secret.as_ref();
        let found = meta_rows(&mut conn, table).await.map_err(fail)?;
        found.check_secret(secret)?;
        if let Some(partitions) = partitions {
            partitions.check_before(&mut conn, table, self.dialect).await?;
        }
        for script in SCHEMA.pending(found.versions)? {
            let script = IdentitySecret::mark_schema(secret, script);
            let script = match partitions {
                Some(partitions) => partitions.divide(&script),
                None => script,
            };
            execute_text(&mut conn, script.replace(DEFAULT_TABLE, table)).await.map_err(fail)?;
        }
        if let Some(partitions) = partitions {
            partitions.check_after(&mut conn, table, self.dialect).await?;
        }
        // Create only the functions that are pending, so that a user without the right to create
        // anything can run `migrate` after another user has run it. Create each function in the
        // table's schema, because a restore can put the table, without its functions, into a schema
        // that is not the first in the `search_path`.
        for function in FUNCTIONS {
            let found = function.find(&mut conn, table).await.map_err(fail)?;
            if function.is_pending(found.as_ref()) {
                execute_text(&mut conn, prefer_schema_of(table)).await.map_err(fail)?;
                execute_text(&mut conn, function.sql(table)).await.map_err(fail)?;
            }
        }
        add_audit_table(&mut conn, table).await.map_err(fail)?;
        execute_text(&mut conn, "COMMIT".to_owned()).await.map_err(fail)?;
        // Ignore any error: the tables exist even if the connection does not close cleanly.
        let _ = conn.close().await;
        Ok(())
    }
}

/// Opens a connection for a migration.
async fn open(config: &PostgresConfig) -> Result<PgConnection> {
    match HostSelector::new(config).connect().await {
        Ok(opened) => Ok(opened.conn),
        Err(Failure::Driver(error)) => Err(migration_error(error)),
        Err(Failure::Store(error)) => Err(error),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the function is an argument of `map_err`")]
fn migration_error(error: sqlx_core::Error) -> Error {
    match code(&error).as_deref() {
        Some("42501" | "3F000") => Error::new(
            ErrorKind::Unexpected,
            "the user may not create tables in the first schema of its `search_path`; GRANT it \
             CREATE there, or apply the shipped SQL as another user",
        ),
        _ => classify_at_connect(&error),
    }
}

/// Creates the audit table in the schema of the record table, if it is missing there (OPS-10). If
/// this user may not create tables, which is usual for a service that migrates when it starts, the
/// table is left to the next migration by another user.
async fn add_audit_table(conn: &mut PgConnection, table: &str) -> Result<(), sqlx_core::Error> {
    let missing = format!(
        "SELECT has_schema_privilege(c.relnamespace,'CREATE') FROM pg_class AS c WHERE \
         c.oid=to_regclass('\"{table}\"') AND NOT EXISTS (SELECT FROM pg_class AS a WHERE \
         a.relnamespace=c.relnamespace AND a.relname='{table}_audit')"
    );
    let Some(row) = fetch_row(conn, missing).await? else { return Ok(()) };
    if !row.try_get::<bool, _>(0)? {
        warn_no_audit_table(table);
        return Ok(());
    }
    execute_text(conn, prefer_schema_of(table)).await?;
    execute_text(conn, SCHEMA.audit.replace(DEFAULT_TABLE, table)).await
}

/// Reads the rows of the meta table if the table exists.
async fn meta_rows(conn: &mut PgConnection, table: &str) -> Result<MetaRows, sqlx_core::Error> {
    // Look up the tables first, because an error for a missing table would abort a migration's
    // transaction.
    let exists = |name| format!("to_regclass('\"{name}\"') IS NOT NULL");
    let sql = format!("SELECT {},{}", exists(format!("{table}_meta")), exists(table.to_owned()));
    let Some(row) = fetch_row(conn, sql).await? else { return Ok(MetaRows::default()) };
    let (has_versions, has_records): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if !has_versions {
        return Ok(MetaRows::default());
    }
    read_meta(conn, table, has_records).await
}

/// Reads the rows of a meta table that exists.
async fn read_meta(
    conn: &mut PgConnection,
    table: &str,
    has_records: bool,
) -> Result<MetaRows, sqlx_core::Error> {
    let value = |name| format!("(SELECT value FROM \"{table}_meta\" WHERE name='{name}')");
    let [schema, from, mark] = ["schema", "compatible_from", "identity"].map(value);
    let Some(row) = fetch_row(conn, format!("SELECT {schema},{from},{mark}")).await? else {
        return Ok(MetaRows::default());
    };
    let versions = TableVersions::from_rows(row.try_get(0)?, row.try_get(1)?, has_records);
    Ok(MetaRows { versions, mark: row.try_get(2)? })
}

/// Returns SQL that puts the table's schema first in the `search_path` until the transaction ends.
fn prefer_schema_of(table: &str) -> String {
    format!(
        "SELECT set_config('search_path', \
         quote_ident(n.nspname)||','||current_setting('search_path'), true) FROM pg_class AS c \
         JOIN pg_namespace AS n ON n.oid=c.relnamespace WHERE c.oid=to_regclass('\"{table}\"')"
    )
}

/// Finds what is wrong with the tables and functions, and with the identity secret (OPS-5).
pub(crate) async fn findings(
    conn: &mut PgConnection,
    table: &str,
    secret: Option<&IdentitySecret>,
    dialect: SqlDialect,
) -> Result<Vec<StoreFinding>> {
    let found = match dialect {
        SqlDialect::Postgres => meta_rows(conn, table).await,
        SqlDialect::Plain => plain::meta_rows(conn, table).await,
    };
    let found = match found {
        Ok(found) => found,
        Err(error) if is_missing_table(&error) => MetaRows::default(),
        Err(error) => return Err(classify_at_connect(&error)),
    };
    let mut findings: Vec<_> = SCHEMA.finding(found.versions, table).into_iter().collect();
    if findings.iter().any(|finding| finding.severity == Severity::Error) {
        return Ok(findings);
    }
    findings.extend(other_identities(found.check_secret(secret)));
    if dialect == SqlDialect::Plain {
        return Ok(findings);
    }
    for function in FUNCTIONS {
        let found =
            function.find(conn, table).await.map_err(|error| classify_at_connect(&error))?;
        let name = format!("{table}_{}", function.suffix);
        match found {
            None => findings.push(StoreFinding::error(
                "functions",
                format!("The function `{name}` is missing, so calls fail."),
                "Run `retryproof migrate`.",
            )),
            Some(found) if found.revision < function.revision() => {
                findings.push(StoreFinding::warning(
                    "functions",
                    format!(
                        "The function `{name}` has revision {}, and this program ships revision \
                         {}, so the corrections in between have no effect.",
                        found.revision,
                        function.revision()
                    ),
                    "Run `retryproof migrate`.",
                ));
            }
            Some(_) => {}
        }
    }
    Ok(findings)
}

/// Returns the names and parameters by which the server finds the functions.
pub(crate) fn signatures(table: &str) -> [String; 2] {
    FUNCTIONS.map(|function| function.signature(table))
}

/// Fails if the store cannot work with the server or the schema (STO-3, REC-1, ID-5).
pub(crate) async fn check(
    conn: &mut PgConnection,
    table: &str,
    secret: Option<&IdentitySecret>,
    dialect: SqlDialect,
) -> Result<ServerInfo> {
    if dialect == SqlDialect::Plain {
        return plain::check(conn, table, secret).await;
    }
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
    let found = match meta_rows(conn, table).await {
        Ok(found) => found,
        Err(error) if is_missing_table(&error) => MetaRows::default(),
        Err(error) => return Err(classify_at_connect(&error)),
    };
    SCHEMA.check(found.versions, table)?;
    found.check_secret(secret)?;
    check_functions(conn, table).await?;
    if !facts.try_get::<bool, _>(3).map_err(unreadable)? {
        return Err(Error::new(ErrorKind::Unexpected, LACKS_PRIVILEGE).with("table", table));
    }
    Ok(ServerInfo::of_postgres(facts.try_get(2).map_err(unreadable)?))
}

/// Fails if a function is missing. Logs one warning if the database has a lower revision of a
/// function than this program ships.
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
