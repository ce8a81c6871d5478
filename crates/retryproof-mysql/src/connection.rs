// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Connection`]: one connection to the server. It runs statements, and holds the server's
//! features and limits.

use std::sync::Arc;

use retryproof_core::store::Param;
use retryproof_core::{Error, ErrorKind};
use sqlx_core::connection::{ConnectOptions as _, Connection as _};
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use tokio::time::timeout;

use crate::config::MysqlConfig;
use crate::error::{Failure, Recovery, classify, classify_at_connect};
use crate::statement::{Statement, StatementTexts, arguments};

/// The store sends these settings once per connection. Correctness must not depend on them, because
/// a proxy that shares connections can drop them. READ COMMITTED avoids gap locks. One second is
/// the shortest row lock timeout that the server supports. The SQL mode makes the server reject
/// values that it cannot store unchanged.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION \
     innodb_lock_wait_timeout=1, autocommit=1, \
     sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'; SELECT \
     VERSION(),CAST(@@max_allowed_packet AS SIGNED),CONCAT(@@hostname,':',@@port)";

/// What the store needs to know about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// Whether an INSERT can return the row (MariaDB 10.5 and later).
    pub(crate) returning: bool,
    /// The largest packet that the server accepts, in bytes.
    pub(crate) max_packet: usize,
}

/// Whether to read a statement's rows, or only its insert id and the number of rows that it
/// matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultKind {
    Rows,
    Counts,
}

/// The result of a statement.
#[derive(Debug, Default)]
pub(crate) struct StatementResult {
    pub(crate) rows: Vec<MySqlRow>,
    /// How many rows the statement matched. The driver asks the server for this count instead of
    /// the number of changed rows.
    pub(crate) matched: u64,
    pub(crate) insert_id: u64,
}

pub(crate) struct Connection {
    driver: MySqlConnection,
    pub(crate) server: ServerInfo,
    /// The host name and the port that the server itself reports. Behind one address, they tell one
    /// server from another (STO-10).
    pub(crate) node: String,
}

impl Connection {
    /// Opens the first connection, for `connect()` or `migrate()`. The settings in `config` are
    /// still untested, so an error can mean that they are wrong.
    pub(crate) async fn open_first(config: &MysqlConfig) -> Result<Self, Failure> {
        let options = config.source.options();
        match timeout(config.connect_timeout, Self::open_as(&options, classify_at_connect)).await {
            Ok(opened) => opened,
            Err(_) => Err(not_in_time()),
        }
    }

    /// Opens another connection for a store that has already connected. The configuration has
    /// worked before, so an error does not mean that it is wrong.
    pub(crate) async fn open(options: &MySqlConnectOptions) -> Result<Self, Failure> {
        Self::open_as(options, classify).await
    }

    async fn open_as(
        options: &MySqlConnectOptions,
        classify: fn(sqlx_core::Error) -> Failure,
    ) -> Result<Self, Failure> {
        let mut driver = options.connect().await.map_err(classify)?;
        let rows = raw_sql(SETTINGS).fetch_all(&mut driver).await.map_err(classify)?;
        let row = rows.first().ok_or_else(|| {
            Error::new(ErrorKind::Unexpected, "the server did not report its version")
        })?;
        let version: String = row.try_get(0).map_err(classify)?;
        let max_packet: i64 = row.try_get(1).map_err(classify)?;
        let node: String = row.try_get(2).map_err(classify)?;
        let server = ServerInfo {
            returning: has_returning(&version)?,
            max_packet: usize::try_from(max_packet).unwrap_or(0),
        };
        Ok(Self { driver, server, node })
    }

    /// Runs one statement. Takes one round trip if the connection has already prepared the
    /// statement, and two otherwise. A statement that is not `cached` always takes two. Reads the
    /// result to its end, because the server sends an INSERT's rows before it commits the INSERT.
    ///
    /// # Cancel safety
    /// If the future is dropped, do not use the connection again: part of the result may still be
    /// unread.
    pub(crate) async fn run(
        &mut self,
        sql: &Arc<str>,
        params: &[Param<'_>],
        kind: ResultKind,
        cached: bool,
    ) -> Result<StatementResult, sqlx_core::Error> {
        let query =
            query_with(AssertSqlSafe(Arc::clone(sql)), arguments(params)?).persistent(cached);
        Ok(match kind {
            ResultKind::Rows => StatementResult {
                rows: self.driver.fetch_all(query).await?,
                ..StatementResult::default()
            },
            ResultKind::Counts => {
                let done = self.driver.execute(query).await?;
                StatementResult {
                    rows: Vec::new(),
                    matched: done.rows_affected(),
                    insert_id: done.last_insert_id(),
                }
            }
        })
    }

    /// Runs a script of several statements without parameters.
    pub(crate) async fn run_script(&mut self, script: String) -> Result<(), Failure> {
        self.driver.execute(raw_sql(AssertSqlSafe(script))).await.map_err(classify)?;
        Ok(())
    }

    /// Returns the completion's SQL text for an application's transaction on this server (CMP-7).
    ///
    /// With `innodb_snapshot_isolation`, which MariaDB turns on by default from 11.6.2, a
    /// transaction at REPEATABLE READ cannot update a row that has changed since its snapshot
    /// (error 1020). Each heartbeat changes the record's row (RUN-1). A transaction that reads
    /// before a heartbeat could therefore never complete the record after it. The completion needs
    /// no snapshot, because it checks the owner in the current row (CMP-2). The returned text
    /// therefore turns the setting off for this one statement. The store keeps the transaction's
    /// isolation level, because the application may depend on it. READ COMMITTED, for example,
    /// would expose the application's locking reads to phantoms.
    pub(crate) async fn joined_completion(
        &mut self,
        texts: &StatementTexts,
    ) -> Result<Arc<str>, Failure> {
        let text = texts.of(Statement::Complete);
        let sql = Arc::from("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'");
        let known = self.run(&sql, &[], ResultKind::Rows, false).await.map_err(classify)?;
        Ok(match known.rows.is_empty() {
            true => Arc::clone(text),
            // Turn the setting off for this statement even if it is off on the server, because a
            // session can turn it on.
            false => format!("SET STATEMENT innodb_snapshot_isolation=OFF FOR {text}").into(),
        })
    }

    /// Closes the connection cleanly.
    pub(crate) async fn close(self) {
        // Ignore any error: the server closes the connection even if it does not receive the quit
        // message.
        let _ = self.driver.close().await;
    }
}

/// Returns the failure for a connection that did not open in time.
pub(crate) fn not_in_time() -> Failure {
    Failure {
        recovery: Recovery::ReconnectForNextCall,
        error: Error::unavailable(
            "the MySQL server did not accept a new connection in time; check that it is running, \
             and check the host and port",
        ),
    }
}

/// Returns whether a server of this `version` can return rows from an INSERT. Fails if the server
/// is too old. Versions look like `10.11.14-MariaDB-0+deb12u2`, `5.5.5-10.4.1-MariaDB` or `8.4.0`.
fn has_returning(version: &str) -> Result<bool, Error> {
    let maria = version.contains("MariaDB");
    // Older MariaDB servers put `5.5.5-` before their version, so that old replicas accept it.
    let digits = if maria { version.strip_prefix("5.5.5-").unwrap_or(version) } else { version };
    let mut parts =
        digits.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let oldest = if maria { (10, 5) } else { (8, 0) };
    if number < oldest {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the server is too old; the store needs MariaDB 10.5 or MySQL 8.0, or newer",
        )
        .with("version", format_args!("{:?}", version.chars().take(40).collect::<String>())));
    }
    Ok(maria)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acq_8_the_version_tells_whether_an_insert_returns_rows() {
        for (version, returning) in [
            ("10.11.14-MariaDB-0+deb12u2", Some(true)),
            ("5.5.5-10.5.0-MariaDB", Some(true)),
            ("11.4.2-MariaDB-log", Some(true)),
            ("10.4.33-MariaDB", None),
            ("8.0.36", Some(false)),
            ("8.4.0-commercial", Some(false)),
            ("9.1.0", Some(false)),
            ("5.7.44", None),
            ("10.1.48-MariaDB", None),
            ("", None),
        ] {
            assert_eq!(has_returning(version).ok(), returning, "{version}");
        }
    }
}
