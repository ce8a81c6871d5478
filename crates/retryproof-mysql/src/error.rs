// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`classify`]: the one place where a driver's error becomes one of ours, and where it is said
//! what may be done about it.

use std::fmt;

use retryproof_core::{Error, ErrorKind};
use sqlx_mysql::MySqlDatabaseError;

/// What the caller of a statement may do about its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The statement was rolled back because it met another: send it again.
    Race,
    /// Somebody held the row for longer than we wait for a lock; nothing was done.
    Locked,
    /// The connection is gone, or nobody knows what it would answer: nothing more is to be sent on
    /// it.
    Broken,
    /// The server takes no writes now, or none that need room; it may still be read.
    ReadOnly,
    /// Nothing but to report it.
    Final,
}

/// An error in our classes, with the way out, and what may be done about it.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) class: Class,
    pub(crate) error: Error,
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        trouble.error
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self { class: Class::Final, error }
    }
}

const TLS: &str = "no encrypted connection came about; see that the server offers TLS, and that \
     its certificate is signed by an authority that this host, or `ssl-ca`, names";

/// A driver's error in our classes. The driver's own text stays behind it as the source, except
/// where the server may quote a value in it: then the source is its number alone (ID-4). No
/// statement of ours has a key in it, and no text of the driver a password.
pub(crate) fn classify(error: sqlx_core::Error) -> Trouble {
    use ErrorKind::{Config, Corrupt, TooLarge, Unavailable, Unexpected};
    let (class, kind, message) = match &error {
        sqlx_core::Error::Database(database) => match database
            .try_downcast_ref::<MySqlDatabaseError>()
        {
            Some(server) => {
                return of_server(
                    server.number(),
                    server.code().unwrap_or(""),
                    error_source(server),
                );
            }
            None => (Class::Broken, Unexpected, "the driver reported an error of another database"),
        },
        // A certificate that is refused comes as an error of the connection.
        sqlx_core::Error::Tls(_) => (Class::Broken, Config, TLS),
        sqlx_core::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => {
            (Class::Broken, Config, TLS)
        }
        sqlx_core::Error::Io(_) => (
            Class::Broken,
            Unavailable,
            "the connection to the MySQL server failed or broke; see that it runs and that host \
             and port are right",
        ),
        sqlx_core::Error::Configuration(_) => (
            Class::Final,
            Config,
            "the URL of the MySQL store is not valid; special characters are percent-encoded",
        ),
        sqlx_core::Error::Protocol(_) | sqlx_core::Error::WorkerCrashed => (
            Class::Broken,
            Unavailable,
            "the server answered what the driver does not understand; see that host and port are \
             those of MySQL",
        ),
        sqlx_core::Error::ColumnDecode { .. } | sqlx_core::Error::Decode(_) => {
            (Class::Final, Corrupt, "a stored column has another type than the store writes")
        }
        sqlx_core::Error::Encode(_) => {
            (Class::Final, TooLarge, "the driver cannot send a value of this size")
        }
        _ => (Class::Broken, Unexpected, "the MySQL driver refused the call; see the source"),
    };
    Trouble { class, error: Error::new(kind, message).because(error) }
}

/// The server's number of an error, where it is the server's.
pub(crate) fn number(error: &sqlx_core::Error) -> Option<u16> {
    let server = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(server.number())
}

/// An error of another driver: its text is left out, for the server may quote a value in it (ID-4).
/// None of the server's: the connection broke.
#[cfg(feature = "sqlx-08")]
pub(crate) fn foreign(server: Option<(u16, &str)>) -> Error {
    match server {
        Some((number, state)) => {
            of_server(number, state, ServerError { number, state: state.to_owned(), text: None })
                .error
        }
        None => Error::unavailable(
            "the application's connection to the MySQL server broke, or none came about in time",
        ),
    }
}

/// By the number, which MySQL and MariaDB share up to 1880; the newer ones of each are named.
fn of_server(number: u16, state: &str, source: ServerError) -> Trouble {
    use Class::{Broken, Final, Locked, Race, ReadOnly};
    use ErrorKind::{
        Config, Corrupt, Full, Schema, TooLarge, Unavailable, Unexpected, Unsupported,
    };
    let (class, kind, message) = match number {
        // Deadlock; a record changed since it was read (MariaDB, snapshot isolation); a group's
        // certification failed (Galera, group replication).
        1213 | 1020 | 3101 => (
            Race,
            Unavailable,
            "the statement met others in a deadlock again and again; see what else writes to the table",
        ),
        // Lock wait; statement time-out of MariaDB and of MySQL; a killed query.
        1205 | 1969 | 3024 | 1317 => (
            Locked,
            Unavailable,
            "the row of the record stayed locked; keep transactions that join a completion short",
        ),
        // Also when it is about a single account.
        1040 | 1203 | 1226 => (
            Broken,
            Unavailable,
            "the server takes no more connections; lower `max-connections` of the store, or \
             raise `max_connections` of the server",
        ),
        // Wrong password or user; a host that may not connect; an authentication method that this
        // side lacks.
        1045 | 1698 | 1130 | 4151 => (
            Broken,
            Config,
            "the server refuses the user or its password; correct the URL, or the account and \
             the hosts that it may come from",
        ),
        1251 | 1275 | 2059 => (
            Broken,
            Config,
            "the server asks for a way of authentication that this build lacks; MySQL 8 needs \
             TLS for `caching_sha2_password`",
        ),
        1049 => (
            Broken,
            Config,
            "the database that the URL names does not exist; create it, or name another",
        ),
        1046 => (
            Broken,
            Config,
            "the URL names no database; write `mysql://USER:PASSWORD@HOST/DATABASE`",
        ),
        1129 => (
            Broken,
            Unavailable,
            "the server blocks this host after too many broken connections; run `FLUSH HOSTS`",
        ),
        1044 | 1142 | 1143 | 1227 | 1370 => (
            Final,
            Unexpected,
            "the account lacks a privilege; grant it SELECT, INSERT, UPDATE and DELETE on both tables, \
             and CREATE and INDEX for `migrate()`",
        ),
        1146 | 1051 | 1054 | 1136 => (
            Final,
            Schema,
            "the tables of the store are missing or of another version; call \
             `retryproof::migrate(url)` (`MysqlConfig::migrate()` where only this crate is used)",
        ),
        // Another server may have been promoted: the next call connects anew.
        1290 | 1836 | 1792 | 3100 => (
            ReadOnly,
            Unavailable,
            "the server is read-only; let the URL name the primary, or end the read-only mode",
        ),
        1114 | 1021 | 1041 | 1037 | 1038 | 1030 | 3019 | 1534 => (
            ReadOnly,
            Full,
            "the table, the disk or the memory of the server is full; free space, or purge",
        ),
        1153 | 2020 => (
            Broken,
            TooLarge,
            "the value is larger than the server takes; raise `max_allowed_packet`, or make results smaller",
        ),
        1118 | 1406 => (
            Final,
            TooLarge,
            "the value is larger than the server stores in one row; raise `innodb_log_file_size`",
        ),
        1461 => (
            Broken,
            Unavailable,
            "the server holds no more prepared statements; raise `max_prepared_stmt_count`, or \
             lower `max-connections`",
        ),
        // A statement that the connection no longer knows, or that has to be prepared again.
        1243 | 1615 | 1295 => (
            Broken,
            Unavailable,
            "the server forgot a prepared statement; a proxy in between must keep them apart",
        ),
        // Shutdown, a killed connection, time-outs and aborted connections.
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
            Broken,
            Unavailable,
            "the server ends connections, or is not ready yet; see that it runs",
        ),
        1690 => (
            Final,
            Corrupt,
            "the record holds a number that no clock brings; look at it, or delete it by hand",
        ),
        1665 => (
            Final,
            Unsupported,
            "the server logs statements (`binlog_format = STATEMENT`); set it to MIXED or ROW",
        ),
        1286 | 1701 | 1813 => {
            (Final, Unsupported, "the server cannot make or use an InnoDB table; see the source")
        }
        _ if state == "40001" => (
            Race,
            Unavailable,
            "the statement met others again and again; see what else writes to the table",
        ),
        _ if state.starts_with("08") => {
            (Broken, Unavailable, "the connection to the MySQL server broke; see that it runs")
        }
        _ => (Final, Unexpected, "the MySQL server refused the statement; see the source"),
    };
    Trouble { class, error: Error::new(kind, message).because(source) }
}

/// What the server said, without what it may have quoted.
#[derive(Debug)]
struct ServerError {
    number: u16,
    state: String,
    text: Option<String>,
}

fn error_source(server: &MySqlDatabaseError) -> ServerError {
    let state = server.code().unwrap_or("").to_owned();
    // Class 22 are data exceptions, 23 integrity ones; 1300 and 1366 quote strings too, and a
    // syntax error quotes the statement. 1203 and 1226 name the user without the host.
    let quotes = state.starts_with("22")
        || state.starts_with("23")
        || matches!(server.number(), 1203 | 1226 | 1300 | 1366 | 1411);
    let text = (!quotes).then(|| without_account(server.message()));
    ServerError { number: server.number(), state, text }
}

/// A server's text without the account that it may name: `'USER'@'HOST'` (ID-4).
fn without_account(text: &str) -> String {
    let Some(at) = text.find("'@'") else { return text.to_owned() };
    // From the first quotation mark on: a name may hold some itself.
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

    fn of(number: u16, state: &str) -> Trouble {
        let source = ServerError { number, state: state.to_owned(), text: None };
        of_server(number, state, source)
    }

    #[test]
    fn id_4_no_text_of_the_server_names_the_account() {
        for (said, shown) in [
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
            assert_eq!(without_account(said), shown);
        }
    }

    #[test]
    fn sto_5_server_errors_have_a_class_and_a_way_out() {
        for (number, state, class, kind) in [
            (1213, "40001", Class::Race, ErrorKind::Unavailable),
            (1205, "HY000", Class::Locked, ErrorKind::Unavailable),
            (1045, "28000", Class::Broken, ErrorKind::Config),
            (1049, "42000", Class::Broken, ErrorKind::Config),
            (1146, "42S02", Class::Final, ErrorKind::Schema),
            (1142, "42000", Class::Final, ErrorKind::Unexpected),
            (1290, "HY000", Class::ReadOnly, ErrorKind::Unavailable),
            (1114, "HY000", Class::ReadOnly, ErrorKind::Full),
            (1021, "HY000", Class::ReadOnly, ErrorKind::Full),
            (1153, "08S01", Class::Broken, ErrorKind::TooLarge),
            (1040, "08004", Class::Broken, ErrorKind::Unavailable),
            (1053, "08S01", Class::Broken, ErrorKind::Unavailable),
            (9999, "40001", Class::Race, ErrorKind::Unavailable),
            (9999, "HY000", Class::Final, ErrorKind::Unexpected),
        ] {
            let trouble = of(number, state);
            assert_eq!((trouble.class, trouble.error.kind()), (class, kind), "{number}");
        }
    }
}
