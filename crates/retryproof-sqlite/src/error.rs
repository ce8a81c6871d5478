// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`classify`]: the one place where a driver's error becomes one of ours.

use retryproof_core::{Error, ErrorKind};
use rusqlite::ffi;

/// A driver's error in our classes, with the way out. The driver's text stays behind it as the
/// source: SQLite's messages name tables and columns, never bound values, and no statement of ours
/// has a literal key in it (ID-4).
pub(crate) fn classify(error: rusqlite::Error) -> Error {
    let (kind, message) = match error.sqlite_error() {
        Some(code) => of_code(code.extended_code, &error),
        None => of_driver(&error),
    };
    Error::new(kind, message).because(error)
}

/// Whether somebody else holds a lock, so that the same statement may succeed a moment later.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error().map(|code| code.extended_code & 0xff),
        Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL)
    )
}

/// Whether the disk, or the page limit, is full.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|code| code.extended_code & 0xff == ffi::SQLITE_FULL)
}

/// `SQLITE_READONLY_DIRECTORY`, which the oldest bindings of our driver's range have only with a
/// bundled SQLite.
const READONLY_DIRECTORY: i32 = ffi::SQLITE_READONLY | (6 << 8);

fn of_code(extended: i32, error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Full, Schema, TooLarge, Unavailable, Unexpected};
    if extended == READONLY_DIRECTORY {
        return (
            Unexpected,
            "the directory of the database file does not let files be made, and the journal \
             needs one; allow it",
        );
    }
    match extended & 0xff {
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL => (
            Unavailable,
            "the database file is locked by another connection; keep write transactions on it short",
        ),
        ffi::SQLITE_FULL => {
            (Full, "the disk, or the database's page limit, is full; free space, or purge")
        }
        ffi::SQLITE_IOERR => (
            Unavailable,
            "the file system failed while the database file was in use; see the source",
        ),
        ffi::SQLITE_CANTOPEN => (
            Unavailable,
            "the database file or its journal could not be opened; see that it is still there \
             and may be opened",
        ),
        ffi::SQLITE_NOMEM | ffi::SQLITE_INTERRUPT => {
            (Unavailable, "SQLite gave up on the statement; see the source")
        }
        ffi::SQLITE_READONLY => (
            Unexpected,
            "the database file is read-only; let this process write to the file and to its directory",
        ),
        ffi::SQLITE_PERM | ffi::SQLITE_AUTH => (
            Unexpected,
            "this process may not use the database file; grant it the permission to read and write",
        ),
        ffi::SQLITE_CORRUPT => (
            Corrupt,
            "the database file is damaged; restore it from a backup, or run `PRAGMA integrity_check`",
        ),
        ffi::SQLITE_NOTADB => {
            (Corrupt, "the file is not a SQLite database, or is encrypted; name another file")
        }
        ffi::SQLITE_TOOBIG => (TooLarge, "the value is larger than SQLite stores in one row"),
        ffi::SQLITE_ERROR if names_a_missing_part(error) => (
            Schema,
            "the tables of the store are missing or of another version; call \
             `retryproof::migrate(url)` (`SqliteStore::migrate()` where only this crate is used)",
        ),
        _ => (Unexpected, "SQLite refused the statement; see the source"),
    }
}

fn of_driver(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match error {
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::FromSqlConversionFailure(..) => {
            (ErrorKind::Corrupt, "a stored column has another type than the store writes")
        }
        rusqlite::Error::InvalidPath(_) | rusqlite::Error::NulError(_) => (
            ErrorKind::Config,
            "the path of the database file cannot be handed to SQLite; it must be UTF-8 without a zero byte",
        ),
        _ => (ErrorKind::Unexpected, "the SQLite driver refused the call; see the source"),
    }
}

/// SQLite has no code of its own for a table or a column that is not there.
fn names_a_missing_part(error: &rusqlite::Error) -> bool {
    // Newer drivers tell such an error apart, as `SqlInputError`; its text begins alike.
    let text = error.to_string();
    text.starts_with("no such table")
        || text.starts_with("no such column")
        || text.contains("has no column named")
}
