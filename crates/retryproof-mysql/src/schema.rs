// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shipped schema, [`MysqlConfig::migrate`] and the check of its version (STO-3).

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::Param;
use retryproof_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::config::{DEFAULT_TABLE, MysqlConfig, valid_table};
use crate::connection::{Session, Want};
use crate::error::{Trouble, classify};
use crate::record::integer;

/// The version that this code reads and writes.
const VERSION: i64 = 1;

/// The shipped migrations, oldest first; the index is the version before.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/V1__records.sql")];

/// How long `migrate()` waits for another one on the same tables.
const LOCK_SECONDS: i64 = 60;

/// One migration at a time, over all processes. Locks are the server's, so the name holds database
/// and table; at most 64 characters.
const LOCK: &str =
    "SELECT GET_LOCK(CONCAT('retryproof.',LEFT(SHA2(CONCAT(DATABASE(),'.',?),256),40)),?)";
const UNLOCK: &str =
    "SELECT RELEASE_LOCK(CONCAT('retryproof.',LEFT(SHA2(CONCAT(DATABASE(),'.',?),256),40)))";

/// The version row. It asks for the other table too: without that one the schema is missing,
/// whatever the version says.
const SCHEMA: &str = "SELECT value,(SELECT COUNT(*) FROM `retryproof_records` WHERE scope='' AND k='') \
     FROM `retryproof_records_meta` WHERE name='schema'";

/// The schema as plain SQL, for a migrator of your own: it makes the tables under this name and
/// writes the version row.
///
/// # Errors
/// [`ErrorKind::Config`] when the name does not match `[A-Za-z_][A-Za-z0-9_]{0,47}` (STO-3).
pub fn schema_sql(table: &str) -> Result<String> {
    Ok(MIGRATIONS[0].replace(DEFAULT_TABLE, valid_table(table)?))
}

impl MysqlConfig {
    /// Makes or updates the tables of the store, under an advisory lock of the server. Safe to call
    /// again, and from several processes at once: call it at start-up or from a deployment step.
    /// Nothing else ever makes a table (STO-3). The account needs CREATE and INDEX beside what the
    /// store needs.
    ///
    /// A drop leaves the tables made in part at most; the next call makes the rest.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] when a newer version of this library made the tables;
    /// [`ErrorKind::Unavailable`] when another migration holds the lock for a minute; else those of
    /// [`MysqlStore::connect`](crate::MysqlStore::connect).
    pub async fn migrate(&self) -> Result<()> {
        self.migrated().await.map_err(|trouble| trouble.error.during("migrate"))
    }

    async fn migrated(&self) -> Result<(), Trouble> {
        let table = self.table()?;
        let mut session =
            timeout(self.patience, Session::open(&self.options)).await.map_err(|_| {
                Error::unavailable("the MySQL server did not answer a new connection in time")
            })??;
        let name = Param::Bytes(table.as_bytes());
        let locked = session
            .run(&Arc::from(LOCK), &[name, Param::Int(LOCK_SECONDS)], Want::Rows, false)
            .await
            .map_err(classify)?;
        // NULL when it was killed.
        if locked.rows.first().and_then(|row| integer(row, 0, "lock").ok()) != Some(1) {
            return Err(Error::unavailable(
                "another migration of the same tables is under way; try again later",
            )
            .into());
        }
        let applied = apply(&mut session, table).await;
        // Goes with the connection anyway.
        let _ = session.run(&Arc::from(UNLOCK), &[name], Want::Rows, false).await;
        session.close().await;
        applied
    }
}

async fn apply(session: &mut Session, table: &str) -> Result<(), Trouble> {
    let found = version(session, table).await?.unwrap_or(0);
    if found > VERSION {
        return Err(newer(found).into());
    }
    for script in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        // Each statement commits by itself in MySQL; the version row comes last, and each is
        // harmless twice.
        session.script(script.replace(DEFAULT_TABLE, table)).await?;
    }
    Ok(())
}

/// Refuses a schema that this code cannot work on (STO-3).
pub(crate) async fn check(session: &mut Session, table: &str) -> Result<(), Trouble> {
    Err(match version(session, table).await? {
        Some(VERSION) => return Ok(()),
        Some(found) if found > VERSION => newer(found),
        Some(found) => Error::new(
            ErrorKind::Schema,
            "the store's schema is of an older version; call `retryproof::migrate(url)` \
             (`MysqlConfig::migrate()` where only this crate is used), or apply the shipped SQL",
        )
        .with("found", found)
        .with("wanted", VERSION),
        None => Error::new(
            ErrorKind::Schema,
            "the database has no tables of the store yet; call `retryproof::migrate(url)` once \
             (`MysqlConfig::migrate()` where only this crate is used), or apply the shipped SQL",
        )
        .with("table", table),
    }
    .into())
}

/// The version row; `None` without the tables or the row.
async fn version(session: &mut Session, table: &str) -> Result<Option<i64>, Trouble> {
    let sql = Arc::from(SCHEMA.replace(DEFAULT_TABLE, table));
    let found = match session.run(&sql, &[], Want::Rows, false).await.map_err(classify) {
        Ok(found) => found,
        Err(trouble) if trouble.error.kind() == ErrorKind::Schema => return Ok(None),
        Err(trouble) => return Err(trouble),
    };
    match found.rows.first() {
        Some(row) => Ok(Some(integer(row, 0, "value")?)),
        None => Ok(None),
    }
}

fn newer(found: i64) -> Error {
    Error::new(
        ErrorKind::Schema,
        "a newer retryproof made the store's schema; run that version, or name another table and \
         call `retryproof::migrate(url)`",
    )
    .with("found", found)
    .with("wanted", VERSION)
}

/// How long a check at start-up may take beside the opening of its connection.
pub(crate) const CHECK_MOST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_3_the_shipped_sql_takes_another_name() {
        let sql = schema_sql("other").expect("a valid name");
        assert!(sql.contains("`other`") && sql.contains("`other_meta`"), "{sql}");
        let code = sql.lines().filter(|line| !line.starts_with("--")).collect::<String>();
        assert!(!code.contains(DEFAULT_TABLE), "{code}");
        for bad in ["", "a`; DROP TABLE x; --", "a.b"] {
            assert_eq!(schema_sql(bad).expect_err("refused").kind(), ErrorKind::Config, "{bad}");
        }
    }
}
