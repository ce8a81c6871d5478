// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens connections to the database file. Sets WAL mode and durability, explains why a file cannot
//! be opened, and retries while the file is locked.

pub(crate) mod retry;

use std::path::Path;
use std::time::Duration;

use retryproof_core::config::Synchronous;
use retryproof_core::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::config::{SqliteConfig, is_url};
use crate::error::{classify, is_locked};

use retry::{RetryDeadline, pause};

/// The pause between two attempts to get a lock at start-up.
const RETRY_DELAY: Duration = Duration::from_millis(2);

/// Opens the file for [`migrate`](SqliteConfig::migrate), and creates it if it does not exist.
pub(crate) fn create(config: &SqliteConfig) -> Result<Connection> {
    writable(config, OpenFlags::SQLITE_OPEN_CREATE)
}

/// Opens the file for writing. The file must exist.
pub(crate) fn open_writer(config: &SqliteConfig) -> Result<Connection> {
    writable(config, OpenFlags::empty())
}

/// Opens the file for peeks and replays. The writing connection must be opened first.
pub(crate) fn open_reader(config: &SqliteConfig) -> Result<Connection> {
    let conn = connect(config, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    conn.busy_timeout(Duration::ZERO).map_err(classify)?;
    Ok(conn)
}

/// Opens the file for writing, to find out whether this process may write to it. Changes neither the
/// journal mode nor the write-ahead log. If the file is read-only, SQLite opens it for reading.
pub(crate) fn open_to_diagnose(config: &SqliteConfig) -> Result<Connection> {
    let conn = connect(config, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Without this setting, closing the last connection to the file would empty and delete the log.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(classify)?;
    conn.busy_timeout(Duration::ZERO).map_err(classify)?;
    Ok(conn)
}

/// Repeats `attempt` while another connection holds a lock, for up to `timeout`.
pub(crate) fn retry_while_locked<T>(
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<Result<T>, rusqlite::Error>,
) -> Result<T> {
    let deadline = RetryDeadline::new(timeout);
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) if is_locked(&error) && !deadline.has_passed() => pause(RETRY_DELAY),
            Err(error) => return Err(classify(error)),
        }
    }
}

fn writable(config: &SqliteConfig, extra: OpenFlags) -> Result<Connection> {
    let conn = connect(config, OpenFlags::SQLITE_OPEN_READ_WRITE | extra)?;
    prepare(&conn, config).map_err(|error| error.with("file", config.path.display()))?;
    Ok(conn)
}

fn connect(config: &SqliteConfig, access: OpenFlags) -> Result<Connection> {
    if is_url(&config.path) {
        // The message does not repeat the URL, which can contain a password (ID-4).
        return Err(Error::new(
            ErrorKind::Config,
            "the database path is a URL; write only the path, without `sqlite:`, or pass the \
             URL to `retryproof::connect` (or `SqliteConfig::from_url` if you use only this crate)",
        ));
    }
    // SQLite's own mutex is not needed, because no two threads use a connection concurrently.
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_with_flags(&config.path, flags).map_err(|error| {
        explain(error, &config.path, access.contains(OpenFlags::SQLITE_OPEN_CREATE))
            .with("file", config.path.display())
    })?;
    conn.set_prepared_statement_cache_capacity(32);
    Ok(conn)
}

fn prepare(conn: &Connection, config: &SqliteConfig) -> Result<()> {
    // With a busy timeout, SQLite would sleep inside a call. The store waits and retries outside of
    // SQLite instead.
    conn.busy_timeout(Duration::ZERO).map_err(classify)?;
    if conn.is_readonly("main").map_err(classify)? {
        return Err(Error::new(
            ErrorKind::Unexpected,
            "the database file is read-only; allow this process to write to the file and to its \
             directory",
        ));
    }
    let mode: String = retry_while_locked(config.busy_timeout, || {
        conn.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0)).map(Ok)
    })?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the database file cannot be put into WAL mode; keep it on a local file system",
        )
        .with("journal_mode", mode));
    }
    // On macOS, commits survive a power failure only with the two fullfsync settings. On other
    // systems, these settings have no effect.
    let durability = match config.synchronous {
        Synchronous::Full => {
            "PRAGMA synchronous=FULL; PRAGMA fullfsync=ON; PRAGMA checkpoint_fullfsync=ON"
        }
        Synchronous::Normal => "PRAGMA synchronous=NORMAL",
    };
    conn.execute_batch(durability).map_err(classify)?;
    overwrite_deleted(conn, Overwrite::InPlace).map_err(classify)
}

/// Which deleted bytes SQLite overwrites with zeros.
#[derive(Clone, Copy)]
pub(crate) enum Overwrite {
    /// SQLite overwrites only bytes in pages that it writes anyway. If a purge deletes a large
    /// value, the freed pages keep the value's bytes until SQLite uses the pages again. To
    /// overwrite them, a purge would have to write as many bytes as it deletes, while all other
    /// writes wait.
    InPlace,
    /// SQLite overwrites all deleted bytes. The store uses this when an operator erases values
    /// (OPS-4).
    All,
}

/// Sets which deleted bytes SQLite overwrites from now on. Also works within a transaction.
pub(crate) fn overwrite_deleted(
    conn: &Connection,
    which: Overwrite,
) -> Result<(), rusqlite::Error> {
    // SQLite applies this PRAGMA when it compiles the statement, so running a cached statement
    // would have no effect.
    conn.execute_batch(match which {
        Overwrite::InPlace => "PRAGMA secure_delete=FAST",
        Overwrite::All => "PRAGMA secure_delete=ON",
    })
}

/// Converts an error from opening the file. SQLite reports "unable to open database file" for every
/// cause, so this function looks for the cause. `creates` is true if the call would have created a
/// missing file.
fn explain(error: rusqlite::Error, path: &Path, creates: bool) -> Error {
    let cannot_open =
        error.sqlite_error().is_some_and(|code| code.extended_code & 0xff == ffi::SQLITE_CANTOPEN);
    if !cannot_open || path.to_str().is_some_and(|text| text.starts_with("file:")) {
        return classify(error);
    }
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (kind, message) = if path.is_dir() {
        (ErrorKind::Config, "the database path is a directory; name a file in it")
    } else if matches!(directory.try_exists(), Ok(false)) {
        (ErrorKind::Config, "the directory of the database file does not exist; create it first")
    } else if !creates && matches!(path.try_exists(), Ok(false)) {
        (
            ErrorKind::Schema,
            "the database file does not exist yet; call `retryproof::migrate(url)` once to create \
             it (or `SqliteConfig::migrate()` if you use only this crate)",
        )
    } else {
        (
            ErrorKind::Unexpected,
            "the database file could not be opened; allow this process to read and write the file \
             and its directory",
        )
    };
    Error::new(kind, message).because(error)
}
