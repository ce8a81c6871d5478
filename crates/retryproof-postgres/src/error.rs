// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`classify`]: the one place where a driver's error becomes one of ours.

use std::error::Error as StdError;
use std::fmt;

use retryproof_core::ErrorKind::{
    Config, Corrupt, Full, Schema, TooLarge, Unavailable, Unexpected,
};
use retryproof_core::{Error, ErrorKind};
use sqlx_core::Error as Driver;

/// A driver's error in our classes, with the way out. What stands behind it as the source is a copy
/// of the server's code and first line only: the details of a constraint quote the row, keys and
/// values included (ID-4).
pub(crate) fn classify(error: &Driver) -> Error {
    let (kind, message) = match error {
        Driver::Database(inner) => of_code(inner.code().as_deref().unwrap_or_default()),
        Driver::Io(_) => (
            Unavailable,
            "the server could not be reached, or the connection broke; is it up, and are host \
             and port right?",
        ),
        Driver::Tls(_) => (
            Unavailable,
            "no secure connection to the server came about; see its certificate, `sslmode`, and \
             the feature `tls`",
        ),
        Driver::Configuration(_) => {
            (Config, "the URL of the database cannot be used; see its form and the files it names")
        }
        Driver::Protocol(_) => {
            (Unavailable, "the server, or a pooler before it, broke the protocol; see the source")
        }
        Driver::PoolTimedOut | Driver::PoolClosed => {
            (Unavailable, "no connection to the server came about in time")
        }
        Driver::ColumnDecode { .. } | Driver::Decode(_) => (
            Corrupt,
            "a stored column has another type than the store writes (or the server's \
             `bytea_output` is not `hex`)",
        ),
        _ => (Unexpected, "the PostgreSQL driver refused the call; see the source"),
    };
    Error::new(kind, message).because(Shown::of(error))
}

/// By SQLSTATE; <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn of_code(code: &str) -> (ErrorKind, &'static str) {
    match code {
        "28000" | "28P01" => (
            Config,
            "the server refused the user or the password; see the URL and the server's `pg_hba.conf`",
        ),
        "3D000" => (Config, "the database does not exist; create it, or name another in the URL"),
        "42P01" | "42703" | "42883" | "3F000" | "42P10" => (
            Schema,
            "the tables or functions of the store are missing or of another version; call \
             `retryproof::migrate(url)`, or `PostgresConfig::migrate()` where only this crate is \
             used",
        ),
        "42501" => (
            Unexpected,
            "the user lacks a privilege; GRANT it SELECT, INSERT, UPDATE and DELETE on the \
             table, SELECT on the one with `_meta`, and EXECUTE on the functions with `_grant` \
             and `_complete`",
        ),
        // Retried, for after a fail-over the next connection finds the new primary.
        "25006" => (
            Unavailable,
            "the server is read-only: a standby, or set so; point the URL at the primary",
        ),
        "40001" | "40P01" | "55P03" => (
            Unavailable,
            "the statement lost against others again and again; keep transactions on the table short",
        ),
        "53100" => (Full, "the server's disk is full; free space, or purge"),
        "53300" => (
            Unavailable,
            "the server takes no more connections; raise its `max_connections`, or lower \
             `max-connections` of the stores",
        ),
        "54000" | "54001" | "54011" | "54023" => {
            (TooLarge, "the value is larger than PostgreSQL takes")
        }
        "57014" => (Unavailable, "the server cancelled the statement; see its `statement_timeout`"),
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => {
            (Unavailable, "the server is starting up or going down, or ended the connection")
        }
        "XX001" | "XX002" => {
            (Corrupt, "the server found its own data damaged; restore it from a backup")
        }
        // What poolers answer to most refusals.
        "08P01" => (
            Unavailable,
            "the pooler before the server refused the connection; see that it knows the database \
             and the user of the URL, and its log",
        ),
        _ => match code.get(..2).unwrap_or_default() {
            "08" | "53" | "57" | "58" => (Unavailable, "the server is in trouble; see the source"),
            _ => (Unexpected, "PostgreSQL refused the statement; see the source"),
        },
    }
}

/// The class alone, for the errors of other drivers.
#[cfg(any(feature = "sqlx-08", feature = "tokio-postgres"))]
pub(crate) fn kind_of(code: &str) -> ErrorKind {
    of_code(code).0
}

fn code(error: &Driver) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error().and_then(|inner| inner.code())
}

/// Whether the same statement may succeed a moment later: it met another one (ACQ-2).
pub(crate) fn is_lost_race(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01" | "55P03"))
}

/// Whether the wait for a row's lock was ended, which an open transaction holds.
pub(crate) fn is_locked(error: &Driver) -> bool {
    code(error).as_deref() == Some("55P03")
}

/// Whether the server reads, but does not write: completed keys are still replayed then.
pub(crate) fn refuses_writes(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("25006" | "53100" | "42501"))
}

/// Whether the connection is of no use any more, and with it probably all that are as old.
pub(crate) fn is_dead(error: &Driver) -> bool {
    match error {
        Driver::Database(_) => code(error).is_some_and(|code| {
            code == "25006" || code.starts_with("57P") || code.starts_with("08")
        }),
        Driver::Io(_) | Driver::Tls(_) | Driver::Protocol(_) => true,
        _ => false,
    }
}

/// Whether prepared statements go astray: each statement gets another connection of the server.
pub(crate) fn is_pooled(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("26000" | "42P05"))
}

/// Whether the server takes no further connection.
pub(crate) fn is_crowded(error: &Driver) -> bool {
    code(error).as_deref() == Some("53300")
}

/// Whether the table is not there.
pub(crate) fn is_missing(error: &Driver) -> bool {
    matches!(code(error).as_deref(), Some("42P01" | "3F000"))
}

/// What may be shown of a driver's error.
#[derive(Debug)]
struct Shown {
    code: Option<String>,
    text: String,
}

impl Shown {
    fn of(error: &Driver) -> Self {
        let code = code(error).map(String::from);
        let text = match error {
            Driver::Database(inner) => match hidden(code.as_deref().unwrap_or_default()) {
                Some(what) => format!("the server's text may quote {what}, so it is left out"),
                None => inner.message().to_owned(),
            },
            // Not its source: that quotes what it could not read.
            Driver::Configuration(_) => "the settings of the connection are not valid".to_owned(),
            Driver::ColumnDecode { index, .. } => format!("column {index} cannot be decoded"),
            Driver::Decode(_) | Driver::Encode(_) => {
                "a value cannot be decoded or encoded".to_owned()
            }
            other => other.to_string(),
        };
        Self { code, text }
    }
}

/// What the server's text for a code may quote that no message shows (ID-4).
fn hidden(code: &str) -> Option<&'static str> {
    match code.get(..2).unwrap_or_default() {
        // Data and integrity.
        "22" | "23" => Some("values"),
        // Authentication; connections, of which poolers say more than the server; too many of them
        // for one role.
        "28" | "08" => Some("the user"),
        _ if code == "53300" => Some("the user"),
        _ => None,
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.code.iter().try_for_each(|code| write!(f, " (SQLSTATE {code})"))
    }
}

impl StdError for Shown {}

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
            ("55P03", Unavailable),
            ("57014", Unavailable),
            ("57P01", Unavailable),
            ("08006", Unavailable),
            ("54000", TooLarge),
            ("XX001", Corrupt),
            // An integrity error is not "a duplicate".
            ("23505", Unexpected),
            ("", Unexpected),
        ] {
            assert_eq!(of_code(code).0, kind, "{code}");
        }
    }
}
