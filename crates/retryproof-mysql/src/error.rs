// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Failure`]: a store error, and how the call can recover. [`classify_at_connect`] translates the
//! driver's errors while the store connects, and [`classify`] translates them afterwards.
//!
//! This file is over 400 lines long because the tests of the error codes are next to the code
//! table.

use std::fmt;

use retryproof_core::{Error, ErrorKind};
use retryproof_store_kit::while_running;
use sqlx_mysql::MySqlDatabaseError;

/// How a call can recover from a failed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// The statement conflicted with another statement and was rolled back: send it again.
    Retry,
    /// The statement was stopped and changed nothing, usually because another transaction held the
    /// row for longer than the lock timeout.
    RowLocked,
    /// The connection is broken, or in an unknown state: send nothing more on it. The statement can
    /// be sent again on a new connection.
    RetryOnNewConnection,
    /// Like `RetryOnNewConnection`, but this call has no time left: the next call opens a new
    /// connection.
    ReconnectForNextCall,
    /// The server accepts no more connections: wait until another call returns its connection.
    AwaitReturned,
    /// The server refuses all writes, but still answers reads.
    ReadOnly,
    /// The server refuses writes that need space, but still answers reads.
    Full,
    /// The call cannot recover: report the error.
    None,
}

/// An error with a helpful message, and how the call can recover from the error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) recovery: Recovery,
    pub(crate) error: Error,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { recovery: Recovery::None, error }
    }
}

const TLS: &str = "TLS handshake failed; check that the server offers TLS and that its \
     certificate is signed by a CA that this host trusts or that is in `ssl-ca`";

/// Returns the error for a value of `bytes` bytes on a server that accepts at most `limit` (CMP-9).
pub(crate) fn too_large(bytes: usize, limit: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "the value is larger than the server accepts; raise its `max_allowed_packet`, or make \
         results smaller",
    )
    .with("bytes", bytes)
    .with("limit", limit)
}

/// Like [`classify_at_connect`], but for a store that has already connected.
pub(crate) fn classify(error: sqlx_core::Error) -> Failure {
    let Failure { recovery, error } = classify_at_connect(error);
    Failure { recovery, error: while_running(error) }
}

/// Translates a driver's error and keeps it as the source of the new error. If a server's error
/// text can quote a value, the source has only the error number and the SQLSTATE (ID-4). All other
/// texts are safe to keep: the store's statements contain no keys, and the driver's texts contain
/// no passwords.
pub(crate) fn classify_at_connect(error: sqlx_core::Error) -> Failure {
    use ErrorKind::{Config, Corrupt, TooLarge, Unavailable, Unexpected};
    let (recovery, kind, message) = match &error {
        sqlx_core::Error::Database(database) => {
            match database.try_downcast_ref::<MySqlDatabaseError>() {
                Some(server) => {
                    return of_server(
                        server.number(),
                        server.code().unwrap_or(""),
                        error_source(server),
                    );
                }
                None => (
                    Recovery::RetryOnNewConnection,
                    Unexpected,
                    "the driver reported an error from a different kind of database",
                ),
            }
        }
        // The driver reports a rejected certificate as an I/O error about invalid data, not as
        // `Tls`.
        sqlx_core::Error::Tls(_) => (Recovery::RetryOnNewConnection, Config, TLS),
        sqlx_core::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => {
            (Recovery::RetryOnNewConnection, Config, TLS)
        }
        sqlx_core::Error::Io(_) => (
            Recovery::RetryOnNewConnection,
            Unavailable,
            "the connection to the MySQL server failed or broke; check that the server is \
             running, and check the host and port",
        ),
        sqlx_core::Error::Configuration(_) => (
            Recovery::None,
            Config,
            "the URL of the MySQL store is invalid; percent-encode special characters",
        ),
        sqlx_core::Error::Protocol(_) | sqlx_core::Error::WorkerCrashed => (
            Recovery::RetryOnNewConnection,
            Unavailable,
            "the driver did not understand the server's answer; check that the host and port are \
             those of a MySQL server",
        ),
        sqlx_core::Error::ColumnDecode { .. } | sqlx_core::Error::Decode(_) => {
            (Recovery::None, Corrupt, "a stored column has a type that the store does not write")
        }
        sqlx_core::Error::Encode(_) => {
            (Recovery::None, TooLarge, "the driver cannot send a value of this size")
        }
        _ => (
            Recovery::RetryOnNewConnection,
            Unexpected,
            "the MySQL driver rejected the call; see the error's source",
        ),
    };
    Failure { recovery, error: Error::new(kind, message).because(error) }
}

/// Returns the server's error number, if the error comes from the server.
pub(crate) fn number(error: &sqlx_core::Error) -> Option<u16> {
    let server = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(server.number())
}

/// Whether the server refused a statement because the account lacks a privilege.
pub(crate) fn lacks_privilege(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(|server: &ServerError| matches!(server.number, 1044 | 1142 | 1143))
}

/// Translates an error from a different driver. `server` is the server's error number and SQLSTATE,
/// or `None` if the connection broke or could not be opened. The result omits the server's text,
/// which can quote a value (ID-4).
#[cfg(feature = "sqlx-08")]
pub(crate) fn other_driver(server: Option<(u16, &str)>) -> Error {
    match server {
        Some((number, state)) => {
            let source = ServerError { number, state: state.to_owned(), text: None };
            while_running(of_server(number, state, source).error)
        }
        None => Error::unavailable(
            "the application's connection to the MySQL server broke, or could not be opened in time",
        ),
    }
}

/// Translates the server's error number. MySQL and MariaDB share the error numbers up to 1880.
/// Above 1880, the servers use different numbers, and the list contains both.
fn of_server(number: u16, state: &str, source: ServerError) -> Failure {
    use ErrorKind::{
        Config, Corrupt, Full, Schema, TooLarge, Unavailable, Unexpected, Unsupported,
    };
    use Recovery::{AwaitReturned, ReadOnly, Retry, RetryOnNewConnection, RowLocked};
    let (recovery, kind, message) = match number {
        // The cause is a deadlock, a row that changed after the transaction's snapshot (MariaDB),
        // or a failed certification (Galera, group replication).
        1213 | 1020 | 3101 => (
            Retry,
            Unavailable,
            "the statement conflicted with others on every retry; check what else writes to the table",
        ),
        // The cause is a lock wait timeout, a statement timeout of MariaDB or MySQL, or a killed
        // query.
        1205 | 1969 | 3024 | 1317 => (
            RowLocked,
            Unavailable,
            "the row stayed locked, or the statement was stopped; keep joined transactions short",
        ),
        // The server or the account has reached its connection limit.
        1040 | 1203 | 1226 => (
            AwaitReturned,
            Unavailable,
            "the server accepts no more connections; lower the store's `max-connections`, or \
             raise the server's `max_connections`",
        ),
        // The user or password is wrong, the account is locked, or the host is not allowed to
        // connect.
        1045 | 1698 | 1130 | 4151 => (
            RetryOnNewConnection,
            Config,
            "the server rejected the login; correct the user and the password in the URL, the \
             account, or the hosts that the account may connect from",
        ),
        1251 | 1275 | 2059 => (
            RetryOnNewConnection,
            Config,
            "the server requires an authentication method that this build lacks; MySQL 8 needs \
             TLS for `caching_sha2_password`",
        ),
        1049 => (
            RetryOnNewConnection,
            Config,
            "the database named in the URL does not exist; create it, or name another one",
        ),
        1046 => (
            RetryOnNewConnection,
            Config,
            "the URL names no database; write `mysql://USER:PASSWORD@HOST/DATABASE`",
        ),
        1129 => (
            RetryOnNewConnection,
            Unavailable,
            "the server has blocked this host after too many broken connections; run `FLUSH HOSTS`",
        ),
        1044 | 1142 | 1143 | 1227 | 1370 => (
            Recovery::None,
            Unexpected,
            "the account lacks a privilege; grant it SELECT, INSERT, UPDATE and DELETE on both tables, \
             and CREATE and INDEX for `migrate()`",
        ),
        1146 | 1051 | 1054 | 1136 => (
            Recovery::None,
            Schema,
            "the store's tables are missing or have another version; call \
             `retryproof::migrate(url)` (`MysqlConfig::migrate()` if only this crate is used)",
        ),
        // Another server might have become the primary, so the next call opens a new connection.
        1290 | 1836 | 1792 | 3100 => (
            ReadOnly,
            Unavailable,
            "the server is read-only; let the address in the URL lead to the primary, or end the \
             read-only mode",
        ),
        1114 | 1021 | 1041 | 1037 | 1038 | 1030 | 3019 | 1534 => (
            Recovery::Full,
            Full,
            "the server's table, disk or memory is full; free space, or purge expired records",
        ),
        1153 | 2020 => (
            RetryOnNewConnection,
            TooLarge,
            "the value is larger than the server accepts; raise `max_allowed_packet`, or make \
             results smaller",
        ),
        1118 | 1406 => (
            Recovery::None,
            TooLarge,
            "the value is larger than the server stores in one row; raise `innodb_log_file_size`",
        ),
        1461 => (
            RetryOnNewConnection,
            Unavailable,
            "the server accepts no more prepared statements; raise `max_prepared_stmt_count`, or \
             lower `max-connections`",
        ),
        // The server no longer recognises the prepared statement, needs it to be prepared again, or
        // cannot prepare it.
        1243 | 1615 | 1295 => (
            RetryOnNewConnection,
            Unavailable,
            "the server no longer recognises a prepared statement; if a proxy is in between, it \
             must keep each connection's prepared statements separate",
        ),
        // The server is shutting down, offline or not ready yet, or the connection was killed, was
        // aborted or timed out.
        1053
        | 1077
        | 1079
        | 1080
        | 1152
        | 1158..=1161
        | 1184
        | 1927
        | 4031
        | 1047
        | 3169
        | 3032 => (
            RetryOnNewConnection,
            Unavailable,
            "the server is shutting down or not ready, or it ended the connection; check its log",
        ),
        1690 => (
            Recovery::None,
            Corrupt,
            "the record holds a time that no clock could produce; inspect or delete it by hand",
        ),
        1665 => (
            Recovery::None,
            Unsupported,
            "the server's binary log has `binlog_format = STATEMENT`; set it to MIXED or ROW",
        ),
        1286 | 1701 | 1813 => (
            Recovery::None,
            Unsupported,
            "the server cannot create or use an InnoDB table; see the error's source",
        ),
        _ if state == "40001" => (
            Retry,
            Unavailable,
            "the statement conflicted with others on every retry; check what else writes to the table",
        ),
        _ if state.starts_with("08") => (
            RetryOnNewConnection,
            Unavailable,
            "the connection to the MySQL server broke; check that it is running",
        ),
        _ => (Recovery::None, Unexpected, "MySQL rejected the statement; see the error's source"),
    };
    Failure { recovery, error: Error::new(kind, message).because(source) }
}

/// A server's error, without any text that can quote a value.
#[derive(Debug)]
struct ServerError {
    number: u16,
    state: String,
    text: Option<String>,
}

fn error_source(server: &MySqlDatabaseError) -> ServerError {
    let state = server.code().unwrap_or("").to_owned();
    // Messages of SQLSTATE classes 22 (data) and 23 (integrity) and of errors 1300, 1366 and 1411
    // quote values. Errors 1203 and 1226 name the user without the host, so `without_account` would
    // not find the user.
    let quotes = state.starts_with("22")
        || state.starts_with("23")
        || matches!(server.number(), 1203 | 1226 | 1300 | 1366 | 1411);
    let text = (!quotes).then(|| without_account(server.message()));
    ServerError { number: server.number(), state, text }
}

/// Returns the server's text with "of the URL" in place of the account `'USER'@'HOST'` (ID-4).
fn without_account(text: &str) -> String {
    let Some(at) = text.find("'@'") else { return text.to_owned() };
    // Treat everything from the first quotation mark on as part of the account, because a user name
    // can contain quotation marks.
    let (begin, host) = (text.find('\'').unwrap_or(at), at + "'@'".len());
    let end = text[host..].find('\'').map_or(text.len(), |end| host + end + 1);
    format!("{}of the URL{}", &text[..begin], &text[end..])
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MySQL error {} ({})", self.number, self.state)?;
        match &self.text {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u16, state: &str) -> Failure {
        of_server(number, state, ServerError { number, state: state.to_owned(), text: None })
    }

    #[test]
    fn id_4_no_text_of_the_server_names_the_account() {
        for (text, shown) in [
            (
                "Access denied for user 'app'@'10.0.0.1' (using password: YES)",
                "Access denied for user of the URL (using password: YES)",
            ),
            (
                "SELECT command denied to user 'a'b'@'%' for table `d`.`t`",
                "SELECT command denied to user of the URL for table `d`.`t`",
            ),
            ("Access denied for user 'app'@'cut", "Access denied for user of the URL"),
            ("Table 'd.t' doesn't exist", "Table 'd.t' doesn't exist"),
        ] {
            assert_eq!(without_account(text), shown);
        }
    }

    #[test]
    fn cmp_3_tls_errors_are_repeated_once_the_store_has_connected() {
        use sqlx_core::Error::{Io, Tls};
        for error in [|| Io(std::io::ErrorKind::InvalidData.into()), || Tls("refused".into())] {
            assert_eq!(classify_at_connect(error()).error.kind(), ErrorKind::Config);
            assert_eq!(classify(error()).error.kind(), ErrorKind::Unavailable);
        }
    }

    #[test]
    fn sto_5_server_errors_have_a_class_and_a_way_out() {
        for (number, state, recovery, kind) in [
            (1213, "40001", Recovery::Retry, ErrorKind::Unavailable),
            (1205, "HY000", Recovery::RowLocked, ErrorKind::Unavailable),
            (1045, "28000", Recovery::RetryOnNewConnection, ErrorKind::Config),
            (1049, "42000", Recovery::RetryOnNewConnection, ErrorKind::Config),
            (1146, "42S02", Recovery::None, ErrorKind::Schema),
            (1142, "42000", Recovery::None, ErrorKind::Unexpected),
            (1290, "HY000", Recovery::ReadOnly, ErrorKind::Unavailable),
            (1792, "25006", Recovery::ReadOnly, ErrorKind::Unavailable),
            (1836, "HY000", Recovery::ReadOnly, ErrorKind::Unavailable),
            (1114, "HY000", Recovery::Full, ErrorKind::Full),
            (1021, "HY000", Recovery::Full, ErrorKind::Full),
            (1153, "08S01", Recovery::RetryOnNewConnection, ErrorKind::TooLarge),
            (1040, "08004", Recovery::AwaitReturned, ErrorKind::Unavailable),
            (1053, "08S01", Recovery::RetryOnNewConnection, ErrorKind::Unavailable),
            (9999, "40001", Recovery::Retry, ErrorKind::Unavailable),
            (9999, "HY000", Recovery::None, ErrorKind::Unexpected),
        ] {
            let failure = of(number, state);
            assert_eq!((failure.recovery, failure.error.kind()), (recovery, kind), "{number}");
        }
    }
}
