// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteTxSource`] and [`SqliteTx`]: transactions that the engine opens and ends (CMP-7). One
//! commits only as the transaction that was opened, and only before it has cost another key its
//! lease.

use std::fmt;
use std::future::{Future, ready};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retryproof_core::blocking::in_blocking_context;
use retryproof_core::store::{OwnedTx, Param, TxPort, TxSource};
use retryproof_core::{Error, ErrorKind, Result};
use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::config::SqliteConfig;
use crate::connection;
use crate::connection::retry::{Patience, pause};
use crate::error::{classify, is_busy};
use crate::execute::write_lock::{Taken, Turn};
use crate::join::{Sqlite, run};

/// Between two attempts to get the write lock from another process, or to commit beside a reader of
/// one.
const AGAIN: Duration = Duration::from_millis(1);

/// A transaction may be open for this part of the shortest lease. Beats come at half of it, and it
/// survives an outage of 0.4 (RUN-1); the rest is for the commit.
const PART: u32 = 3;

/// Opens write transactions on the file of the store, for
/// [`IdempotencyEngine::joined`](retryproof_core::IdempotencyEngine::joined). Cheap to clone.
///
/// It has one connection: SQLite lets one transaction write at a time. Those that want one queue
/// for it, together with the store's own writer, so that none starves.
///
/// **An open transaction holds up every acquire, beat and completion of the file.** A lease whose
/// beats are held up for longer than 0.4 of it is lost, and when the file is free again its key is
/// taken over while its holder still works. So a transaction may be open for a third of the
/// shortest lease that this process holds in the file at its begin, its own included; then it is
/// rolled back, the call fails as `Unavailable`, and the key is free. An action that is async is
/// dropped at that moment; one that blocks, or an HTTP handler, finds out at its end. Do the slow
/// things (calls to others) before the first statement, or give longer leases. Leases that *other*
/// processes hold in the file are not known here: where they are shorter, say so by
/// [`with_longest`](Self::with_longest).
#[derive(Clone)]
pub struct SqliteTxSource {
    conn: Arc<Mutex<Connection>>,
    seal: Arc<Seal>,
    turn: Turn,
    busy_timeout: Duration,
    longest: Duration,
}

/// What the hooks of the connection say of its transaction. SQLite ends one by itself on some
/// errors (a full disk, `INSERT OR ROLLBACK`), and an action may send `COMMIT`: what it writes
/// after that would be commits of its own, without the record.
#[derive(Debug, Default)]
struct Seal {
    /// The engine commits. At any other time a commit is turned into a roll-back.
    committing: AtomicBool,
    /// The transaction that was opened is gone.
    broken: AtomicBool,
}

/// The older versions of the driver answer nothing when a hook is installed.
trait Installed {
    fn installed(self) -> Result<()>;
}

impl Installed for () {
    fn installed(self) -> Result<()> {
        Ok(self)
    }
}

impl Installed for Result<(), rusqlite::Error> {
    fn installed(self) -> Result<()> {
        self.map_err(classify)
    }
}

impl SqliteTxSource {
    /// A connection of its own on the file at `path`, as durable as a store with the defaults: see
    /// [`SqliteConfig`].
    ///
    /// # Errors
    /// Those of [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(&SqliteConfig::new(path))
    }

    /// A connection of its own, on the file and with the durability and the busy time-out of
    /// `config`.
    ///
    /// # Errors
    /// Those of [`SqliteStore::open_with`](crate::SqliteStore::open_with).
    pub fn open_with(config: &SqliteConfig) -> Result<Self> {
        let conn = connection::open(config).map_err(|error| error.during("open"))?;
        Self::new(conn, config.busy_timeout)
    }

    /// Takes a connection that the application has opened and set up: functions, pragmas, attached
    /// files. Its `synchronous` decides how durable a joined commit is, record included. Its busy
    /// time-out is set to zero; no call sleeps inside SQLite. Its commit hook and its roll-back
    /// hook are replaced.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a connection without a file, or one that cannot write.
    pub fn over(conn: Connection) -> Result<Self> {
        if conn.path().is_none_or(str::is_empty) || conn.is_readonly("main").map_err(classify)? {
            return Err(Error::new(
                ErrorKind::Config,
                "joined transactions want a writable connection on the file of the store",
            ));
        }
        conn.busy_timeout(Duration::ZERO).map_err(classify)?;
        Self::new(conn, SqliteConfig::new("").busy_timeout)
    }

    /// How long a transaction may be open at most, where the leases of this process allow for more.
    /// Default: 10 s, a third of the default lease. Set it to a third of the shortest lease that
    /// any other process uses on the file.
    #[must_use]
    pub fn with_longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    fn new(mut conn: Connection, busy_timeout: Duration) -> Result<Self> {
        let turn = Turn::at(Path::new(conn.path().unwrap_or_default()));
        let seal = Arc::new(Seal::default());
        let (committed, rolled_back) = (Arc::clone(&seal), Arc::clone(&seal));
        conn.commit_hook(Some(move || {
            let refused = !committed.committing.load(Ordering::Acquire);
            committed.broken.fetch_or(refused, Ordering::AcqRel);
            refused
        }))
        .installed()?;
        conn.rollback_hook(Some(move || rolled_back.broken.store(true, Ordering::Release)))
            .installed()?;
        let conn = Arc::new(Mutex::new(conn));
        Ok(Self { conn, seal, turn, busy_timeout, longest: Duration::from_secs(10) })
    }
}

impl TxSource<Sqlite> for SqliteTxSource {
    type Tx = SqliteTx;

    /// `BEGIN IMMEDIATE`: the write lock is held from here on, so that no statement of the
    /// transaction fails for want of it.
    async fn begin(&self) -> Result<SqliteTx> {
        let conn = Arc::clone(&self.conn).lock_owned().await;
        let turn = self.turn.wait().await;
        let mut tx = SqliteTx {
            conn,
            seal: Arc::clone(&self.seal),
            busy_timeout: self.busy_timeout,
            open: (Patience::new(self.longest), self.longest),
            _turn: turn,
        };
        // Left over by a roll-back that failed.
        tx.end();
        let patience = Patience::new(self.busy_timeout);
        loop {
            match tx.conn.execute_batch("BEGIN IMMEDIATE") {
                Ok(()) => break,
                Err(error) if is_busy(&error) && !patience.is_over() => {
                    tokio::time::sleep(AGAIN).await
                }
                Err(error) => return Err(classify(error)),
            }
        }
        tx.seal.broken.store(false, Ordering::Release);
        // With the lock held no lease is granted, so none becomes shorter.
        let most = self
            .turn
            .leases()
            .shortest()
            .map_or(self.longest, |lease| self.longest.min(lease / PART));
        tx.open = (Patience::new(most), most);
        Ok(tx)
    }
}

impl fmt::Debug for SqliteTxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTxSource").field("longest", &self.longest).finish_non_exhaustive()
    }
}

/// An open write transaction; a [`Connection`] to write with. Dropped, it is rolled back. Its end
/// is the engine's: a `COMMIT` that an action sends is turned into a roll-back, and so is every
/// write after SQLite has rolled the transaction back by itself, on an error that the action did
/// not return.
///
/// Its calls block, but not for the disk: that is the commit's wait, which does not stall a
/// runtime.
pub struct SqliteTx {
    conn: OwnedMutexGuard<Connection>,
    seal: Arc<Seal>,
    busy_timeout: Duration,
    /// For how long it may be open.
    open: (Patience, Duration),
    /// Given on after the connection.
    _turn: Taken,
}

impl SqliteTx {
    fn commit(&self) -> Result<()> {
        let patience = Patience::new(self.busy_timeout);
        loop {
            self.still_open()?;
            if self.open.0.is_over() {
                self.end();
                return Err(Error::unavailable(
                    "the transaction was open for longer than a third of the shortest lease in \
                     the file, whose beats it held up; open it later, or give longer leases",
                )
                .with("limit", format_args!("{:?}", self.open.1)));
            }
            self.seal.committing.store(true, Ordering::Release);
            let done = self.conn.execute_batch("COMMIT");
            self.seal.committing.store(false, Ordering::Release);
            match done {
                Ok(()) => return Ok(()),
                Err(error) if is_busy(&error) && !patience.is_over() => pause(AGAIN),
                Err(error) => {
                    self.end();
                    return Err(classify(error));
                }
            }
        }
    }

    /// Whether it is the transaction that was opened.
    fn still_open(&self) -> Result<()> {
        if self.seal.broken.load(Ordering::Acquire) || self.conn.is_autocommit() {
            return Err(Error::new(
                ErrorKind::Unexpected,
                "the transaction is no longer open: a statement of the action ended it, or \
                 SQLite rolled it back after an error; let the action return such an error",
            ));
        }
        Ok(())
    }

    /// Rolls back what is open.
    fn end(&self) {
        if !self.conn.is_autocommit() {
            // If this fails, the next to begin tries again, or fails and says so.
            let _ = self.conn.execute_batch("ROLLBACK");
        }
    }
}

impl TxPort<Sqlite> for SqliteTx {
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send {
        ready(self.still_open().and_then(|()| run(&self.conn, sql, params)))
    }
}

impl OwnedTx<Sqlite> for SqliteTx {
    fn open_at_most(&self) -> Option<Duration> {
        Some(self.open.1)
    }

    async fn commit_tx(self) -> Result<()> {
        if in_blocking_context() || Handle::try_current().is_err() {
            return self.commit();
        }
        // It waits for the disk.
        let committing = tokio::task::spawn_blocking(move || self.commit());
        committing.await.unwrap_or_else(|gone| {
            Err(Error::unavailable("the runtime went away during the commit").because(gone))
        })
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.end();
        if self.conn.is_autocommit() {
            return Ok(());
        }
        Err(Error::unavailable("SQLite did not roll back"))
    }
}

impl Drop for SqliteTx {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for SqliteTx {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTx").finish_non_exhaustive()
    }
}
