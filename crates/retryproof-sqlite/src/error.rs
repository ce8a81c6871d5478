// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`classify`] turns the driver's errors into the library's errors. [`Failure`] keeps the driver's
//! error while the store can still recover from it.

use retryproof_core::{Error, ErrorKind};
use rusqlite::ffi;

/// Why an operation failed. A `Store` error, for example about an unreadable row, is final. After a
/// `Driver` error, a retry can succeed.
pub(crate) enum Failure {
    Store(Error),
    Driver(rusqlite::Error),
}

impl Failure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Store(error) => error,
            Self::Driver(error) => classify(error),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Driver(error)
    }
}

/// Converts a driver's error into an error with a kind and advice. The driver's error is safe to
/// keep as the source (ID-4): SQLite's messages name tables and columns, but no bound values, and
/// the store's statements contain no literal keys.
pub(crate) fn classify(error: rusqlite::Error) -> Error {
    let (kind, message) = match error.sqlite_error() {
        Some(code) => of_code(code.extended_code, &error),
        None => of_driver(&error),
    };
    Error::new(kind, message).because(error)
}

/// Returns whether another connection holds a lock. If so, the same statement can succeed a moment
/// later.
pub(crate) fn is_locked(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error().map(|code| code.extended_code & 0xff),
        Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL)
    )
}

/// Returns whether this process is not allowed to write to the file, or to use the files beside it.
pub(crate) fn is_denied(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error().map(|code| code.extended_code & 0xff),
        Some(ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN | ffi::SQLITE_PERM)
    )
}

/// Returns whether the disk is full, or the page limit is reached.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|code| code.extended_code & 0xff == ffi::SQLITE_FULL)
}

/// `SQLITE_READONLY_DIRECTORY`. The oldest supported bindings define this code only if SQLite is
/// bundled.
const READONLY_DIRECTORY: i32 = ffi::SQLITE_READONLY | (6 << 8);

fn of_code(extended: i32, error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Full, Schema, TooLarge, Unavailable, Unexpected};
    if extended == READONLY_DIRECTORY {
        return (
            Unexpected,
            "the journal cannot be created in the directory of the database file; allow this \
             process to create files there",
        );
    }
    match extended & 0xff {
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL => (
            Unavailable,
            "the database file is locked by another connection; keep write transactions on it short",
        ),
        ffi::SQLITE_FULL => (
            Full,
            "the disk is full, or the database's page limit is reached; free space on the disk (a \
             purge needs some, too), or raise the limit",
        ),
        ffi::SQLITE_IOERR => (
            Unavailable,
            "the file system failed while the database file was in use; see the error's source",
        ),
        ffi::SQLITE_CANTOPEN => (
            Unavailable,
            "the database file or its journal could not be opened; check that it still exists and \
             that this process is allowed to open it",
        ),
        ffi::SQLITE_NOMEM | ffi::SQLITE_INTERRUPT => (
            Unavailable,
            "SQLite interrupted the statement or ran out of memory; see the error's source",
        ),
        ffi::SQLITE_READONLY => (
            Unexpected,
            "the database file is read-only; allow this process to write to the file and to its \
             directory",
        ),
        ffi::SQLITE_PERM | ffi::SQLITE_AUTH => (
            Unexpected,
            "this process is not allowed to use the database file; allow it to read and write the \
             file",
        ),
        ffi::SQLITE_CORRUPT => (
            Corrupt,
            "the database file is damaged; check it with `PRAGMA integrity_check`, or restore it \
             from a backup",
        ),
        ffi::SQLITE_NOTADB => {
            (Corrupt, "the file is not a SQLite database, or is encrypted; use another file")
        }
        ffi::SQLITE_TOOBIG => (TooLarge, "the value is larger than SQLite accepts in one row"),
        ffi::SQLITE_ERROR if names_a_missing_part(error) => (
            Schema,
            "the store's tables are missing or have another version; call \
             `retryproof::migrate(url)` (or `SqliteConfig::migrate()` if you use only this crate)",
        ),
        _ => (Unexpected, "SQLite rejected the statement; see the error's source"),
    }
}

fn of_driver(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match error {
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::FromSqlConversionFailure(..) => {
            (ErrorKind::Corrupt, "a stored column has a type that the store does not write")
        }
        rusqlite::Error::InvalidPath(_) | rusqlite::Error::NulError(_) => (
            ErrorKind::Config,
            "the path of the database file is invalid for SQLite; it must be UTF-8 without NUL \
             bytes",
        ),
        _ => (ErrorKind::Unexpected, "the SQLite driver rejected the call; see the error's source"),
    }
}

/// Returns whether a table or column is missing. SQLite has no separate error code for this case.
fn names_a_missing_part(error: &rusqlite::Error) -> bool {
    // Newer drivers report a missing table or column as `SqlInputError`. The text of that error
    // also begins with SQLite's message.
    let text = error.to_string();
    text.starts_with("no such table")
        || text.starts_with("no such column")
        || text.contains("has no column named")
}
