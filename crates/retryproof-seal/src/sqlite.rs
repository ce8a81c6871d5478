// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteKeyTable`]: a table of keys in a SQLite file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::seal::DataSubject;
use retryproof_core::{Error, ErrorKind, Result};
use rusqlite::{
    Connection, OpenFlags, OptionalExtension as _, Row, Transaction, TransactionBehavior, ffi,
    params,
};

use crate::master::WrappedKey;
use crate::table::{KeyId, KeyRow, KeyTable, TableFuture};

const SCHEMA: &str = include_str!("../migrations/V1__keys.sql");
const COLUMNS: &str = "id, subject, master, wrapped";
/// How long a call waits for a lock on the file.
const LOCKED_FOR: Duration = Duration::from_secs(5);

/// A table of keys in a SQLite file that several processes of one host share (SEAL-3). Use a file
/// other than the store's, and back it up separately.
///
/// Each call runs on a thread for blocking work. The file has a rollback journal and no write-ahead
/// log, SQLite overwrites deleted data, and [`destroy`](KeyTable::destroy) rewrites the file. After
/// a `destroy`, neither the file nor a log beside it contains the wrapped key. With a million
/// subjects, a `destroy` takes about a second.
#[derive(Clone)]
pub struct SqliteKeyTable {
    path: PathBuf,
    connection: Arc<Mutex<Connection>>,
}

impl SqliteKeyTable {
    /// Creates the file and its table, if they are missing. Call this method where your migrations
    /// run. The call blocks for a few milliseconds.
    ///
    /// # Errors
    /// `Unavailable` if the file is locked; `Unexpected` if it cannot be created.
    pub fn migrate(path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let create = OpenFlags::SQLITE_OPEN_CREATE;
        let migrated = connect(path, create).and_then(|conn| conn.execute_batch(SCHEMA));
        migrated.map_err(|error| classify(error).with("file", path.display()))
    }

    /// Opens the file. The call blocks for a few milliseconds.
    ///
    /// # Errors
    /// `Schema` if the file or the table is missing; `Unavailable` if the file is locked.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let opened = connect(&path, OpenFlags::empty()).and_then(|conn| {
            conn.query_row("SELECT count(*) FROM retryproof_keys WHERE 0", [], |_| Ok(()))?;
            Ok(conn)
        });
        match opened {
            Ok(conn) => Ok(Self { path, connection: Arc::new(Mutex::new(conn)) }),
            Err(error) => Err(classify(error).with("file", path.display())),
        }
    }

    /// Runs `work` on a thread for blocking work.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> TableFuture<'_, T> {
        Box::pin(async move {
            let connection = Arc::clone(&self.connection);
            let done = tokio::task::spawn_blocking(move || work(&connection.lock())).await;
            let done = done.map_err(|error| {
                Error::unavailable("the thread that reads the table of keys ended without a result")
                    .because(error)
            })?;
            done.map_err(|error| classify(error).with("file", self.path.display()))
        })
    }
}

impl KeyTable for SqliteKeyTable {
    fn of_subject<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>> {
        let subject = *subject.digest();
        self.run(move |conn| find(conn, "subject", &subject))
    }

    fn by_id(&self, id: KeyId) -> TableFuture<'_, Option<KeyRow>> {
        self.run(move |conn| find(conn, "id", &id.0))
    }

    fn add(&self, row: KeyRow) -> TableFuture<'_, KeyRow> {
        self.run(move |conn| {
            let wrapped = row.wrapped.as_ref();
            conn.prepare_cached(
                "INSERT INTO retryproof_keys(id, subject, master, wrapped, created_at) \
                 VALUES(?1, ?2, ?3, ?4, CAST(strftime('%s','now') AS INTEGER)) \
                 ON CONFLICT(subject) DO NOTHING",
            )?
            .execute(params![
                row.id.0,
                row.subject,
                wrapped.map(|key| &key.master),
                wrapped.map(|key| &key.bytes)
            ])?;
            find(conn, "subject", &row.subject)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
        })
    }

    fn destroy<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>> {
        let subject = *subject.digest();
        self.run(move |conn| {
            // Take the lock before the read, so that no other process changes the row between the
            // read and the update.
            let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
            let before = find(&tx, "subject", &subject)?;
            tx.prepare_cached(
                "UPDATE retryproof_keys SET master=NULL, wrapped=NULL, \
                 destroyed_at=CAST(strftime('%s','now') AS INTEGER) WHERE subject=?1 AND wrapped IS NOT NULL",
            )?
            .execute([subject])?;
            tx.commit()?;
            // Rewrite the file, because SQLite may have moved the row earlier and left a copy of
            // the wrapped key in the unused part of a page.
            if before.is_some() {
                conn.execute_batch("VACUUM")?;
            }
            Ok(before)
        })
    }

    fn not_under<'a>(
        &'a self,
        master: &'a str,
        after: Option<KeyId>,
        limit: usize,
    ) -> TableFuture<'a, Vec<KeyRow>> {
        let (master, limit) = (master.to_owned(), i64::try_from(limit).unwrap_or(i64::MAX));
        let after = after.map_or_else(Vec::new, |id| id.0.to_vec());
        self.run(move |conn| {
            let sql = format!(
                "SELECT {COLUMNS} FROM retryproof_keys \
                 WHERE wrapped IS NOT NULL AND master<>?1 AND id>?2 ORDER BY id LIMIT ?3"
            );
            let mut statement = conn.prepare_cached(&sql)?;
            statement.query_map(params![master, after, limit], row)?.collect()
        })
    }

    fn replace<'a>(
        &'a self,
        id: KeyId,
        old: &'a WrappedKey,
        new: &'a WrappedKey,
    ) -> TableFuture<'a, bool> {
        let (old, new) = (old.clone(), new.clone());
        self.run(move |conn| {
            let mut statement = conn.prepare_cached(
                "UPDATE retryproof_keys SET master=?1, wrapped=?2 WHERE id=?3 AND wrapped=?4",
            )?;
            Ok(statement.execute(params![new.master, new.bytes, id.0, old.bytes])? == 1)
        })
    }
}

fn find(conn: &Connection, column: &str, value: &[u8]) -> rusqlite::Result<Option<KeyRow>> {
    let sql = format!("SELECT {COLUMNS} FROM retryproof_keys WHERE {column}=?1");
    conn.prepare_cached(&sql)?.query_row([value], row).optional()
}

fn row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    let (master, bytes): (Option<String>, Option<Vec<u8>>) = (row.get(2)?, row.get(3)?);
    let wrapped = master.zip(bytes).map(|(master, bytes)| WrappedKey { master, bytes });
    Ok(KeyRow { id: KeyId(row.get(0)?), subject: row.get(1)?, wrapped })
}

fn connect(path: &Path, extra: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | extra;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(LOCKED_FOR)?;
    conn.execute_batch(
        "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; PRAGMA fullfsync=ON; \
         PRAGMA secure_delete=ON",
    )?;
    Ok(conn)
}

/// Converts the driver's error. That error can be kept as the source, because it names tables,
/// never bound values (ID-4).
fn classify(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error().map(|code| code.extended_code & 0xff);
    let is_missing_table = error.to_string().contains("no such table");
    let (kind, message) = match (code, &error) {
        (Some(ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED), _) => (
            ErrorKind::Unavailable,
            "the table of keys is locked by another connection; keep transactions on its file \
             short",
        ),
        (Some(ffi::SQLITE_IOERR | ffi::SQLITE_FULL), _) => (
            ErrorKind::Unavailable,
            "the file of the table of keys cannot be read or written; check its permissions and \
             the disk",
        ),
        (Some(ffi::SQLITE_CANTOPEN), _) => (
            ErrorKind::Schema,
            "the file of the table of keys cannot be opened; check its path and permissions; \
             `migrate` creates the file, but not its folder",
        ),
        (Some(ffi::SQLITE_NOTADB | ffi::SQLITE_CORRUPT), _)
        | (None, rusqlite::Error::FromSqlConversionFailure(..))
        | (None, rusqlite::Error::InvalidColumnType(..)) => (
            ErrorKind::Corrupt,
            "the table of keys is damaged, or its file is not a SQLite database; restore the file",
        ),
        _ if is_missing_table => {
            (ErrorKind::Schema, "the file has no table of keys; `migrate` creates it")
        }
        _ => (
            ErrorKind::Unexpected,
            "SQLite rejected a statement on the table of keys; see the error's source",
        ),
    };
    Error::new(kind, message).because(error)
}

impl fmt::Debug for SqliteKeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteKeyTable").field("path", &self.path).finish_non_exhaustive()
    }
}
