// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`SqliteConfig::migrate`], and the checks of the tables' versions and the
//! identity secret (STO-3, REC-1, ID-5).

use retryproof_core::store::StoreFinding;
use retryproof_core::{IdentitySecret, Result};
use retryproof_store_kit::{MetaRows, Schema, TableVersions, other_identities};
use rusqlite::{Connection, TransactionBehavior};

use crate::config::{DEFAULT_TABLE, SqliteConfig, validated};
use crate::connection::{self, retry_while_locked};

const SCHEMA: Schema = Schema {
    migrations: &[include_str!("../migrations/V1__records.sql")],
    reads_from: 1,
    audit: include_str!("../migrations/R__audit.sql"),
    migrate: "SqliteConfig::migrate()",
};

/// Reads the versions (REC-1) and the identity mark (ID-5). Returns the values of the rows
/// `schema`, `compatible_from` and `identity`, each NULL if its row is missing.
const READ_VERSIONS: &str = "SELECT \
     (SELECT value FROM retryproof_records_meta WHERE name='schema'),\
     (SELECT value FROM retryproof_records_meta WHERE name='compatible_from'),\
     (SELECT value FROM retryproof_records_meta WHERE name='identity')";

/// Returns the schema as plain SQL, for your own migration tool. The SQL creates the record
/// table, named `table`, and the tables `<table>_meta` and `<table>_audit`, and writes their
/// versions. Run the SQL inside a transaction. Running it again does not lower the versions of
/// newer tables (REC-1).
///
/// # Errors
/// [`ErrorKind::Config`](retryproof_core::ErrorKind::Config) if the name is invalid (STO-3).
pub fn schema_sql(table: &str) -> Result<String> {
    Ok(SCHEMA.sql().replace(DEFAULT_TABLE, validated(table)?))
}

impl SqliteConfig {
    /// Creates the database file if it does not exist, and puts it into WAL mode. Then creates or
    /// updates the store's tables in one transaction. Does not change newer tables that this
    /// version can use (REC-1). Adds a missing audit table (OPS-10). Call `migrate` at start-up or
    /// in a deployment step. Repeated calls are safe, even from several processes at the same time.
    /// The call blocks for a few milliseconds, or up to the busy timeout if the file is locked. No
    /// other call creates a table (STO-3).
    ///
    /// # Errors
    /// [`ErrorKind::Schema`](retryproof_core::ErrorKind::Schema) if the tables need a newer version
    /// of this library; `Config` if they were set up with another identity secret (ID-5); otherwise
    /// the same as for [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn migrate(&self) -> Result<()> {
        self.try_migrate().map_err(|error| error.during("migrate"))
    }

    fn try_migrate(&self) -> Result<()> {
        let table = self.table()?;
        let mut conn = connection::create(self)?;
        retry_while_locked(self.busy_timeout, || apply(&mut conn, table, self))
    }
}

fn apply(
    conn: &mut Connection,
    table: &str,
    config: &SqliteConfig,
) -> std::result::Result<Result<()>, rusqlite::Error> {
    let secret = config.identity_secret.as_ref();
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = meta_rows(&tx, table)?;
    let pending = match found.check_secret(secret).and_then(|()| SCHEMA.pending(found.versions)) {
        Ok(pending) => pending,
        Err(incompatible) => return Ok(Err(incompatible)),
    };
    for script in pending {
        let script = IdentitySecret::mark_schema(secret, script);
        tx.execute_batch(&script.replace(DEFAULT_TABLE, table))?;
    }
    tx.execute_batch(&SCHEMA.audit.replace(DEFAULT_TABLE, table))?;
    tx.commit()?;
    Ok(Ok(()))
}

/// Fails if the store cannot use the tables (STO-3, REC-1, ID-5).
pub(crate) fn check(
    conn: &Connection,
    table: &str,
    config: &SqliteConfig,
) -> std::result::Result<Result<()>, rusqlite::Error> {
    let found = meta_rows(conn, table)?;
    let checked = SCHEMA.check(found.versions, table);
    Ok(checked.and_then(|()| found.check_secret(config.identity_secret.as_ref())))
}

/// Returns what is wrong with the tables, and with the identity secret (OPS-5).
pub(crate) fn findings(
    conn: &Connection,
    table: &str,
    secret: Option<&IdentitySecret>,
) -> std::result::Result<[Option<StoreFinding>; 2], rusqlite::Error> {
    let found = meta_rows(conn, table)?;
    Ok([SCHEMA.finding(found.versions, table), other_identities(found.check_secret(secret))])
}

/// Reads the rows of the meta table, if it exists.
fn meta_rows(conn: &Connection, table: &str) -> std::result::Result<MetaRows, rusqlite::Error> {
    let exists = |name: &str| {
        conn.query_row(
            "SELECT count(*)>0 FROM sqlite_master WHERE type='table' AND lower(name)=lower(?1)",
            [name],
            |row| row.get(0),
        )
    };
    if !exists(&format!("{table}_meta"))? {
        return Ok(MetaRows::default());
    }
    let has_records = exists(table)?;
    conn.query_row(&READ_VERSIONS.replace(DEFAULT_TABLE, table), [], |row| {
        let versions = TableVersions::from_rows(row.get(0)?, row.get(1)?, has_records);
        Ok(MetaRows { versions, mark: row.get(2)? })
    })
}
