// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Session`]: one connection, what is known of its server, and one statement on it.

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

use crate::error::{Trouble, classify};
use crate::statement::arguments;

/// Set once per connection. A help only: a proxy that shares connections may drop it, so nothing
/// rests on it but comfort. Under READ COMMITTED no gap is locked; a second for a row lock is the
/// server's smallest unit; the mode refuses what it cannot store as it is.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION \
     innodb_lock_wait_timeout=1, autocommit=1, \
     sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'; SELECT \
     VERSION(),CAST(@@max_allowed_packet AS SIGNED)";

/// The server at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    /// Whether an INSERT can return the row (MariaDB from 10.5 on).
    pub(crate) returning: bool,
    /// The largest packet that it takes, in bytes.
    pub(crate) max_packet: usize,
}

/// What is wanted from a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Rows,
    Counts,
}

/// What a statement came to.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<MySqlRow>,
    /// Rows that matched: the driver asks for them, not for those that changed.
    pub(crate) matched: u64,
    pub(crate) insert_id: u64,
}

pub(crate) struct Session {
    conn: MySqlConnection,
    pub(crate) server: Server,
}

impl Session {
    pub(crate) async fn open(options: &MySqlConnectOptions) -> Result<Self, Trouble> {
        let mut conn = options.connect().await.map_err(classify)?;
        let rows = raw_sql(SETTINGS).fetch_all(&mut conn).await.map_err(classify)?;
        let row = rows.first().ok_or_else(|| {
            Error::new(ErrorKind::Unexpected, "the server does not say what it is")
        })?;
        let version: String = row.try_get(0).map_err(classify)?;
        let max_packet: i64 = row.try_get(1).map_err(classify)?;
        let server = Server {
            returning: has_returning(&version)?,
            max_packet: usize::try_from(max_packet).unwrap_or(0),
        };
        Ok(Self { conn, server })
    }

    /// One round trip, once the connection knows the statement (three for one that is not `kept`).
    /// It reads the answer to its end: an INSERT that returns rows sends them before it has
    /// committed.
    ///
    /// A drop leaves the connection in the middle of an answer: it must not be used again.
    pub(crate) async fn run(
        &mut self,
        sql: &Arc<str>,
        params: &[Param<'_>],
        want: Want,
        kept: bool,
    ) -> Result<Answer, sqlx_core::Error> {
        let query = query_with(AssertSqlSafe(Arc::clone(sql)), arguments(params)?).persistent(kept);
        Ok(match want {
            Want::Rows => Answer { rows: self.conn.fetch_all(query).await?, ..Answer::default() },
            Want::Counts => {
                let done = self.conn.execute(query).await?;
                Answer {
                    rows: Vec::new(),
                    matched: done.rows_affected(),
                    insert_id: done.last_insert_id(),
                }
            }
        })
    }

    /// Says goodbye to the server.
    pub(crate) async fn close(self) {
        // Whoever does not hear it closes the connection too.
        let _ = self.conn.close().await;
    }

    /// A script of several statements without parameters.
    pub(crate) async fn script(&mut self, script: String) -> Result<(), Trouble> {
        self.conn.execute(raw_sql(AssertSqlSafe(script))).await.map_err(classify)?;
        Ok(())
    }
}

/// Reads `10.11.14-MariaDB-0+deb12u2`, `5.5.5-10.4.1-MariaDB`, `8.4.0`.
fn has_returning(version: &str) -> Result<bool, Error> {
    let maria = version.contains("MariaDB");
    // The prefix is for replication with old servers.
    let digits = if maria { version.strip_prefix("5.5.5-").unwrap_or(version) } else { version };
    let mut parts =
        digits.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let oldest = if maria { (10, 5) } else { (8, 0) };
    if number < oldest {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the server is too old; MariaDB 10.5 or MySQL 8.0, or newer, is needed",
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
