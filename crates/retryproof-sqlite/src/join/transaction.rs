// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteTxSource`] and [`SqliteTx`]: transactions that the engine opens and ends (CMP-7). A
//! transaction commits only if nothing has ended it early and its time limit has not passed. A
//! transaction that stays open longer could cause another key's lease to be lost.

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

use super::{SqliteDialect, run};
use crate::config::SqliteConfig;
use crate::connection;
use crate::connection::retry::{RetryDeadline, pause};
use crate::error::{classify, is_locked};
use crate::execute::write_lock::{FileWriteLock, TransactionGuard};

/// The pause between attempts to get the write lock from another process, or to commit while
/// another process reads.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// A transaction may be open for at most a third of the shortest lease. A lease survives if its
/// heartbeats fail for up to 0.4 of its duration (RUN-1). The difference between a third and 0.4
/// leaves time for the commit.
const LEASE_DIVISOR: u32 = 3;

/// Opens write transactions on the store's file, for
/// [`IdempotencyEngine::joined`](retryproof_core::IdempotencyEngine::joined). Cloning is cheap.
///
/// The source has one connection, because SQLite allows one write transaction at a time. Callers
/// share one queue with the store's writer, so each gets its turn.
///
/// **An open transaction delays every acquire, heartbeat and completion in the file.** If a lease's
/// heartbeats are delayed for longer than 0.4 of its duration, the lease can be lost. When the file
/// is free again, another call can then take the key over while its holder still runs. A
/// transaction may therefore be open for at most a third of the shortest lease that this process
/// holds in the file when the transaction begins. The transaction's own lease counts too, and so
/// does the time for which the transaction waits until another process has written. A transaction
/// that stays open longer is rolled back. Its call fails as `Unavailable`, and the key is free. An
/// async action is dropped when the limit passes. A blocking action or an HTTP handler gets the
/// error when it ends. Do slow work (calls to other services) before the transaction begins, or use
/// longer leases. The leases that *other* processes hold in the file do not count. If those leases
/// are shorter, set [`with_longest`](Self::with_longest).
#[derive(Clone)]
pub struct SqliteTxSource {
    conn: Arc<Mutex<Connection>>,
    state: Arc<HookState>,
    write_lock: FileWriteLock,
    busy_timeout: Duration,
    longest: Duration,
}

/// What the connection's hooks have recorded about its transaction. SQLite ends a transaction after
/// some errors (a full disk, `INSERT OR ROLLBACK`), and an action can send `COMMIT`. The hooks
/// detect both cases. Without them, later writes would be committed separately from the record.
#[derive(Debug, Default)]
struct HookState {
    /// Whether the engine is committing. At any other time, a commit is turned into a rollback.
    committing: AtomicBool,
    /// Whether the transaction that `begin` opened has ended.
    ended: AtomicBool,
}

/// The result of installing a hook. Older versions of the driver return `()`.
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
    /// Opens a separate connection to the file at `path`, with the default settings of
    /// [`SqliteConfig`].
    ///
    /// # Errors
    /// Same as for [`SqliteStore::open`](crate::SqliteStore::open).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(&SqliteConfig::new(path))
    }

    /// Opens a separate connection to the file that `config` names, with the durability and the
    /// busy timeout of `config`.
    ///
    /// # Errors
    /// Same as for [`SqliteStore::open_with`](crate::SqliteStore::open_with).
    pub fn open_with(config: &SqliteConfig) -> Result<Self> {
        let conn = connection::open_writer(config).map_err(|error| error.during("open"))?;
        Self::new(conn, config.busy_timeout)
    }

    /// Uses a connection that the application has opened and set up (functions, pragmas, attached
    /// files). The connection's `synchronous` setting decides how durable joined commits are,
    /// including their records. `over` sets the connection's busy timeout to zero, so that no call
    /// sleeps inside SQLite. It also replaces the connection's commit and rollback hooks.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a connection that has no file or is read-only.
    pub fn over(conn: Connection) -> Result<Self> {
        if conn.path().is_none_or(str::is_empty) || conn.is_readonly("main").map_err(classify)? {
            return Err(Error::new(
                ErrorKind::Config,
                "joined transactions need a writable connection to the store's file",
            ));
        }
        conn.busy_timeout(Duration::ZERO).map_err(classify)?;
        Self::new(conn, SqliteConfig::new("").busy_timeout)
    }

    /// Sets the longest time that a transaction may stay open, even if this process's leases would
    /// allow more. Set this limit to a third of the shortest lease that any other process uses in
    /// the file. Default: 10 s, which is a third of the default lease.
    #[must_use]
    pub fn with_longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    fn new(mut conn: Connection, busy_timeout: Duration) -> Result<Self> {
        let write_lock = FileWriteLock::of(Path::new(conn.path().unwrap_or_default()));
        let state = Arc::new(HookState::default());
        let (committed, rolled_back) = (Arc::clone(&state), Arc::clone(&state));
        conn.commit_hook(Some(move || {
            let refused = !committed.committing.load(Ordering::Acquire);
            committed.ended.fetch_or(refused, Ordering::AcqRel);
            refused
        }))
        .installed()?;
        conn.rollback_hook(Some(move || rolled_back.ended.store(true, Ordering::Release)))
            .installed()?;
        let conn = Arc::new(Mutex::new(conn));
        let longest = Duration::from_secs(10);
        Ok(Self { conn, state, write_lock, busy_timeout, longest })
    }
}

impl TxSource<SqliteDialect> for SqliteTxSource {
    type Tx = SqliteTx;

    /// Sends `BEGIN IMMEDIATE`, which takes the write lock, so no later statement of the
    /// transaction has to wait for the lock.
    async fn begin(&self) -> Result<SqliteTx> {
        let conn = Arc::clone(&self.conn).lock_owned().await;
        let guard = self.write_lock.lock_transaction().await;
        // While the lock is held, no lease is granted, so the shortest lease cannot become shorter.
        // From now on, beats wait, also while another process has SQLite's lock.
        let limit = self
            .write_lock
            .leases()
            .shortest()
            .map_or(self.longest, |lease| self.longest.min(lease / LEASE_DIVISOR));
        let tx = SqliteTx {
            conn,
            state: Arc::clone(&self.state),
            busy_timeout: self.busy_timeout,
            limit: (RetryDeadline::new(limit), limit),
            _guard: guard,
        };
        // If an earlier rollback failed, its transaction is still open. Roll it back now.
        tx.roll_back();
        let deadline = RetryDeadline::new(self.busy_timeout);
        loop {
            match tx.conn.execute_batch("BEGIN IMMEDIATE") {
                Ok(()) => break,
                Err(error)
                    if is_locked(&error) && !deadline.has_passed() && !tx.limit.0.has_passed() =>
                {
                    tokio::time::sleep(RETRY_DELAY).await
                }
                Err(error) => return Err(classify(error)),
            }
        }
        tx.state.ended.store(false, Ordering::Release);
        Ok(tx)
    }
}

impl fmt::Debug for SqliteTxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTxSource").field("longest", &self.longest).finish_non_exhaustive()
    }
}

/// An open write transaction. It dereferences to the [`Connection`] that runs its statements.
/// Dropping the transaction rolls it back.
///
/// Only the engine may end the transaction. A `COMMIT` from an action is turned into a rollback. If
/// the action ignores an error that made SQLite roll the transaction back, the action's later
/// writes are rolled back too.
///
/// Statements block the thread, but do not wait for the disk. The commit waits for the disk without
/// blocking a runtime thread.
pub struct SqliteTx {
    conn: OwnedMutexGuard<Connection>,
    state: Arc<HookState>,
    busy_timeout: Duration,
    /// How long the transaction may block other writers, as a deadline and as a duration.
    limit: (RetryDeadline, Duration),
    /// Declared last, so that the lock is released only after the connection is dropped.
    _guard: TransactionGuard,
}

impl SqliteTx {
    fn commit(&self) -> Result<()> {
        let deadline = RetryDeadline::new(self.busy_timeout);
        loop {
            self.check_open()?;
            if self.limit.0.has_passed() {
                self.roll_back();
                return Err(Error::unavailable(
                    "the transaction was rolled back, because it was open for longer than the \
                     limit and could have delayed the heartbeats of other keys; open the \
                     transaction later, or use longer leases",
                )
                .with("limit", format_args!("{:?}", self.limit.1)));
            }
            self.state.committing.store(true, Ordering::Release);
            let done = self.conn.execute_batch("COMMIT");
            self.state.committing.store(false, Ordering::Release);
            match done {
                Ok(()) => return Ok(()),
                Err(error) if is_locked(&error) && !deadline.has_passed() => pause(RETRY_DELAY),
                Err(error) => {
                    self.roll_back();
                    return Err(classify(error));
                }
            }
        }
    }

    /// Fails if the transaction that `begin` opened has ended.
    fn check_open(&self) -> Result<()> {
        if self.state.ended.load(Ordering::Acquire) || self.conn.is_autocommit() {
            return Err(Error::new(
                ErrorKind::Unexpected,
                "the transaction is no longer open: a statement of the action ended it, or \
                 SQLite rolled it back after an error; return such errors from the action",
            ));
        }
        Ok(())
    }

    /// Rolls the transaction back if it is still open.
    fn roll_back(&self) {
        if !self.conn.is_autocommit() {
            // If the rollback fails, the next `begin` repeats the rollback. If the second rollback
            // fails too, BEGIN fails and reports an error.
            let _ = self.conn.execute_batch("ROLLBACK");
        }
    }
}

impl TxPort<SqliteDialect> for SqliteTx {
    fn run_statement(
        &mut self,
        sql: &str,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<u64>> + Send {
        ready(self.check_open().and_then(|()| run(&self.conn, sql, params)))
    }
}

impl OwnedTx<SqliteDialect> for SqliteTx {
    fn open_at_most(&self) -> Option<Duration> {
        Some(self.limit.0.remaining())
    }

    async fn commit_tx(self) -> Result<()> {
        if in_blocking_context() || Handle::try_current().is_err() {
            return self.commit();
        }
        // Commit on a blocking thread, because the commit waits for the disk.
        let committing = tokio::task::spawn_blocking(move || self.commit());
        committing.await.unwrap_or_else(|gone| {
            Err(Error::unavailable(
                "the runtime was shut down during the commit, so the result of the commit is \
                 unknown",
            )
            .because(gone))
        })
    }

    async fn roll_back_tx(self) -> Result<()> {
        self.roll_back();
        if self.conn.is_autocommit() {
            return Ok(());
        }
        Err(Error::unavailable("SQLite did not roll the transaction back"))
    }
}

impl Drop for SqliteTx {
    fn drop(&mut self) {
        self.roll_back();
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
