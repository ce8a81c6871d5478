// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`classify_at_connect`] turns the driver's errors into the library's errors while the store
//! connects, and [`classify`] does so afterwards. [`Failure`] keeps the driver's error while the
//! store can still recover from it.

use std::error::Error as StdError;
use std::fmt;

use retryproof_core::ErrorKind::{
    Config, Corrupt, Full, Schema, TooLarge, Unavailable, Unexpected,
};
use retryproof_core::{Error, ErrorKind};
use retryproof_store_kit::while_running;
use sqlx_core::Error as Driver;

/// Why an operation failed: an error from the store, or an error from the driver.
pub(crate) enum Failure {
    Store(Error),
    Driver(Driver),
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Store(error) => error,
            Self::Driver(error) => classify(&error),
        }
    }

    /// Like [`into_error`](Self::into_error), but for a store that has not connected yet.
    pub(crate) fn at_connect(self) -> Error {
        match self {
            Self::Store(error) => error,
            Self::Driver(error) => classify_at_connect(&error),
        }
    }
}

impl From<Driver> for Failure {
    fn from(error: Driver) -> Self {
        Self::Driver(error)
    }
}

const TLS: &str = "TLS handshake failed; check the server's certificate and `sslmode`, and that \
                   the feature `tls` is on (`postgres-tls` of the crate `retryproof`)";

pub(crate) const LACKS_PRIVILEGE: &str = "the user lacks a privilege; GRANT it SELECT, INSERT, \
     UPDATE and DELETE on the table, SELECT, INSERT and UPDATE on the `_meta` table, and, unless \
     the dialect is `plain`, EXECUTE on the `_grant_1` and `_complete_1` functions";

/// Whether the server refused a statement because the user lacks a privilege.
pub(crate) fn lacks_privilege(failure: &Failure) -> bool {
    matches!(failure, Failure::Driver(Driver::Database(error)) if error.code().as_deref() == Some("42501"))
}

/// Whether the server refused a statement because the server accepts no writes.
pub(crate) fn is_read_only(failure: &Failure) -> bool {
    matches!(failure, Failure::Driver(error) if code(error).as_deref() == Some("25006"))
}

/// Like [`classify_at_connect`], but for a store that has already connected.
pub(crate) fn classify(error: &Driver) -> Error {
    while_running(classify_at_connect(error))
}

/// Turns a driver's error into an error with a kind and advice. The source of the new error holds
/// only the server's code and first line, because constraint details quote the row, including keys
/// and values (ID-4). If the first line could contain a value or the user name, it is left out too.
pub(crate) fn classify_at_connect(error: &Driver) -> Error {
    let (kind, message) = match error {
        Driver::Database(inner) => of_code(inner.code().as_deref().unwrap_or_default()),
        // The driver reports a rejected certificate as an I/O error about invalid data, not as
        // `Tls`.
        Driver::Tls(_) => (Config, TLS),
        Driver::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => (Config, TLS),
        Driver::Io(_) => (
            Unavailable,
            "the server could not be reached, or the connection broke; check that it is up, and \
             check the host and port",
        ),
        Driver::Configuration(_) => {
            (Config, "the database URL is invalid; check its syntax and the files that it names")
        }
        Driver::Protocol(_) => (
            Unavailable,
            "the server, or a pooler in front of it, violated the protocol; see the error's source",
        ),
        Driver::PoolTimedOut | Driver::PoolClosed => (
            Unavailable,
            "no connection to the server could be opened in time; check that it is running and \
             reachable",
        ),
        Driver::ColumnDecode { .. } | Driver::Decode(_) => (
            Corrupt,
            "a stored column has a type that the store does not write, or the server's \
             `bytea_output` is not `hex`",
        ),
        _ => (Unexpected, "the PostgreSQL driver rejected the call; see the error's source"),
    };
    Error::new(kind, message).because(PublicPart::of(error))
}

/// Returns the kind and message for a SQLSTATE; see
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn of_code(code: &str) -> (ErrorKind, &'static str) {
    match code {
        "28000" | "28P01" => (
            Config,
            "the server rejected the login; check the user and the password in the URL, and the \
             server's `pg_hba.conf`",
        ),
        "3D000" => {
            (Config, "the database does not exist; create it, or name another one in the URL")
        }
        "42P01" | "42703" | "42883" | "3F000" | "42P10" => (
            Schema,
            "the store's tables or functions are missing or have another version; call \
             `retryproof::migrate(url)`, or `PostgresConfig::migrate()` if only this crate is used",
        ),
        "42501" => (Unexpected, LACKS_PRIVILEGE),
        // The kind is `Unavailable`, because after a failover the next connection can reach the
        // new primary.
        "25006" => (
            Unavailable,
            "the server is read-only: it is a standby, or set to read-only; point the URL at the primary",
        ),
        "40001" | "40P01" | "55P03" => (
            Unavailable,
            "the statement conflicted with other transactions on every retry; keep transactions on \
             the table short",
        ),
        "40003" => (
            Unavailable,
            "the server does not say whether the statement took effect; the store's statements \
             can be repeated",
        ),
        "53100" => (Full, "the server's disk is full; free space, or purge expired records"),
        "53300" => (
            Unavailable,
            "the server accepts no more connections; raise its `max_connections`, or lower the \
             stores' `max-connections`",
        ),
        "54000" | "54001" | "54011" | "54023" => {
            (TooLarge, "the value is larger than PostgreSQL accepts")
        }
        "57014" => {
            (Unavailable, "the server cancelled the statement; check its `statement_timeout`")
        }
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => {
            (Unavailable, "the server is starting up or shutting down, or closed the connection")
        }
        "XX001" | "XX002" => {
            (Corrupt, "the server found that its data is damaged; restore the data from a backup")
        }
        // Poolers use this code for most refusals.
        "08P01" => (
            Unavailable,
            "the connection was refused, probably by a pooler; check the pooler's log, and check \
             that its settings allow the database and the user in the URL",
        ),
        _ => match code.get(..2).unwrap_or_default() {
            "08" | "53" | "57" | "58" => (
                Unavailable,
                "the server cannot process statements at the moment; see the error's source",
            ),
            _ => (Unexpected, "PostgreSQL rejected the statement; see the error's source"),
        },
    }
}

/// Returns the kind for a SQLSTATE that a different driver has reported.
#[cfg(any(feature = "sqlx-08", feature = "tokio-postgres"))]
pub(crate) fn kind_of(code: &str) -> ErrorKind {
    of_code(code).0
}

/// Returns the SQLSTATE of an error that the server has reported.
pub(crate) fn code(error: &Driver) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error().and_then(|inner| inner.code())
}

/// Whether the statement conflicted with another statement. A repetition can succeed a moment later
/// (ACQ-2).
pub(crate) fn is_conflict(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01" | "55P03"))
}

/// Whether the statement waited too long for a row that an open transaction has locked.
pub(crate) fn is_locked(error: &Driver) -> bool {
    code(error).as_deref() == Some("55P03")
}

/// Whether the connection is unusable. If so, all older connections are probably unusable too.
pub(crate) fn is_broken(error: &Driver) -> bool {
    match error {
        Driver::Database(_) => code(error).is_some_and(|code| {
            code == "25006" || code.starts_with("57P") || code.starts_with("08")
        }),
        Driver::Io(_) | Driver::Tls(_) | Driver::Protocol(_) => true,
        _ => false,
    }
}

/// Whether a prepared statement does not exist, or exists already. The cause is a pooler that runs
/// the statements of one connection on different server connections.
pub(crate) fn is_pooler(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("26000" | "42P05"))
}

/// Whether the server accepts no more connections.
pub(crate) fn is_connection_limit(error: &Driver) -> bool {
    code(error).as_deref() == Some("53300")
}

/// Whether the table does not exist.
pub(crate) fn is_missing_table(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("42P01" | "3F000"))
}

/// Returns the server's code and the first line of its text, unless that line could contain a value
/// or the user name (ID-4).
pub(crate) fn public_text(error: &Driver) -> String {
    PublicPart::of(error).to_string()
}

/// The part of a driver's error that may be shown.
#[derive(Debug)]
struct PublicPart {
    code: Option<String>,
    text: String,
}

impl PublicPart {
    fn of(error: &Driver) -> Self {
        let code = code(error).map(String::from);
        let text = match error {
            Driver::Database(inner) => match hidden_part(code.as_deref().unwrap_or_default()) {
                Some(part) => {
                    format!("the server's text is omitted, because it could quote {part}")
                }
                None => inner.message().to_owned(),
            },
            // Leave out the driver's text, because that text quotes the setting that could not be
            // read.
            Driver::Configuration(_) => "the connection settings are invalid".to_owned(),
            Driver::ColumnDecode { index, .. } => format!("column {index} cannot be decoded"),
            Driver::Decode(_) | Driver::Encode(_) => {
                "a value cannot be decoded or encoded".to_owned()
            }
            other => other.to_string(),
        };
        Self { code, text }
    }
}

/// Names the kind of secret that the server's text for this error code can quote, such as "values"
/// (ID-4); `None` if the text may be shown.
fn hidden_part(code: &str) -> Option<&'static str> {
    match code.get(..2).unwrap_or_default() {
        // The texts of data and integrity errors can quote values.
        "22" | "23" => Some("values"),
        // The texts of authentication errors can name the user. The texts of connection errors, to
        // which poolers add details, can name the user too, and so can the text of 53300, which
        // also reports too many connections of one role.
        "28" | "08" => Some("the user"),
        _ if code == "53300" => Some("the user"),
        _ => None,
    }
}

impl fmt::Display for PublicPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.code.iter().try_for_each(|code| write!(f, " (SQLSTATE {code})"))
    }
}

impl StdError for PublicPart {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_5_codes_have_their_classes() {
        for (code, kind) in [
            ("28P01", Config),
            ("3D000", Config),
            ("42P01", Schema),
            ("42883", Schema),
            ("42501", Unexpected),
            ("25006", Unavailable),
            ("53100", Full),
            ("53300", Unavailable),
            ("53200", Unavailable),
            ("40P01", Unavailable),
            ("40001", Unavailable),
            ("40003", Unavailable),
            ("55P03", Unavailable),
            ("57014", Unavailable),
            ("57P01", Unavailable),
            ("08006", Unavailable),
            ("54000", TooLarge),
            ("XX001", Corrupt),
            // An integrity error does not mean that the request is a duplicate.
            ("23505", Unexpected),
            ("", Unexpected),
        ] {
            assert_eq!(of_code(code).0, kind, "{code}");
        }
    }

    /// rustls reports a broken TLS record on an open connection in the same way as a refused
    /// certificate.
    #[test]
    fn cmp_3_tls_errors_are_repeated_once_the_store_has_connected() {
        let broken = || Driver::Io(std::io::ErrorKind::InvalidData.into());
        let refused = || Driver::Tls("refused".into());
        for error in [broken(), refused()] {
            assert_eq!(classify_at_connect(&error).kind(), Config);
            assert_eq!(classify(&error).kind(), Unavailable);
        }
    }
}
