// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteStore`]: implements the store contract. Reads run on the calling thread, and writes
//! normally run on one separate thread.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::blocking::in_blocking_context;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, ExpiryClock, FencedWrite, Peeked, SharedStore,
    StoreProfile,
};
use retryproof_core::{Error, FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use retryproof_store_kit::{Record, max_pause, too_large, wait_end, wait_for_change};
use rusqlite::limits::Limit;

use crate::config::SqliteConfig;
use crate::connection::retry::RetryDeadline;
use crate::connection::retry_while_locked;
use crate::error::{Failure, classify, is_locked};
use crate::execute::WriteQueue;
use crate::execute::transaction::WriteConnection;
use crate::execute::transition::{Transition, TransitionResult, unexpected_answer};
use crate::execute::write_lock::FileWriteLock;
use crate::pool::ReadPool;
use crate::record::read_record;
use crate::schema;
use crate::statement::{Statement, StatementTexts};
use crate::waiters::{POLL, Waiters};

/// The pause between attempts to read a file that is locked against reads. In WAL mode, such locks
/// are brief.
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// Bytes reserved for the columns of a row other than the value.
const ROW_OVERHEAD: usize = 4_096;

/// Keeps records in a SQLite file, for one process or several on the same machine.
///
/// Peeks, replays, and acquires that find a live record write nothing (ACQ-8). They run a cached
/// SELECT on the calling thread. One thread commits all writes in groups, except those that run on
/// the calling thread (see [`SqliteConfig::with_in_place`]). The host's wall clock decides when
/// records expire. If the clock jumps, all records in the file expire earlier or later.
///
/// Dropping the store blocks while the thread runs the queued operations and waits for the disk.
pub struct SqliteStore {
    pub(crate) config: SqliteConfig,
    pub(crate) statements: Arc<StatementTexts>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) readers: ReadPool,
    pub(crate) writer: WriteQueue,
    pub(crate) max_value: usize,
}

impl SqliteStore {
    /// Opens the file at `path` with default settings; see [`open_with`](Self::open_with).
    ///
    /// # Errors
    /// Same as for [`open_with`](Self::open_with).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(SqliteConfig::new(path))
    }

    /// Opens a file that [`SqliteConfig::migrate`] has prepared. The call blocks for a few
    /// milliseconds, or up to the busy timeout if the file is locked. Open the store at start-up.
    ///
    /// # Errors
    /// The error's [kind](retryproof_core::ErrorKind) names the cause: `Schema` if the file or the
    /// tables are missing (STO-3), or if this version of the library cannot use the tables (REC-1);
    /// `Config` for a directory that does not exist, an invalid table name or another identity
    /// secret (ID-5); `Unexpected` for a file that this process has no permission to read or write;
    /// `Corrupt` for a file that is not a database; `Unsupported` if the file cannot use WAL;
    /// `Unavailable` if another connection keeps the file locked.
    pub fn open_with(config: SqliteConfig) -> Result<Self> {
        Self::try_open(config).map_err(|error| error.during("open"))
    }

    fn try_open(config: SqliteConfig) -> Result<Self> {
        let table = config.table()?;
        let statements = Arc::new(StatementTexts::new(table));
        let waiters = Arc::new(Waiters::default());
        let writing =
            WriteConnection::open(&config, Arc::clone(&statements), Arc::clone(&waiters))?;
        retry_while_locked(config.busy_timeout, || {
            schema::check(writing.connection(), table, &config)
        })
        .map_err(|error| error.with("file", config.path.display()))?;
        let row_limit = writing.connection().limit(Limit::SQLITE_LIMIT_LENGTH).map_err(classify)?;
        let row_limit = usize::try_from(row_limit).unwrap_or(0).saturating_sub(ROW_OVERHEAD);
        let max_value = config.max_value.map_or(row_limit, |bytes| bytes.min(row_limit));
        let readers = ReadPool::open(&config)?;
        // Look up the lock under SQLite's name for the file, because the configuration can contain
        // a URI instead.
        let write_lock =
            FileWriteLock::of(Path::new(writing.connection().path().unwrap_or_default()));
        let writer = WriteQueue::start(writing, write_lock, config.busy_timeout)?;
        Ok(Self { config, statements, waiters, readers, writer, max_value })
    }

    /// Converts the store to the form that an engine takes. The result can also purge and inspect
    /// records, let operators change them (OPS-3), keep an audit table (OPS-10), and join a
    /// transaction (CMP-7).
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        let builder = SharedStore::builder(self).with_purge().with_inspect().with_force();
        builder.with_audit().with_join().build()
    }

    /// Runs a transition on the calling thread if that thread may block and nothing else is
    /// writing. Otherwise, the transition goes through the queue.
    pub(crate) async fn write(&self, transition: Transition) -> Result<TransitionResult> {
        if (self.config.in_place || in_blocking_context())
            && let Some(result) = self.writer.run_in_place(&transition)
        {
            return result;
        }
        self.writer.run(transition).await
    }

    /// Reads a record on this thread. Retries while the file is locked, and sleeps on the runtime
    /// between attempts, not inside SQLite.
    async fn read_record(&self, statement: Statement, id: &Identity) -> Result<Option<Record>> {
        let mut deadline = None;
        loop {
            let read = self.readers.with(|conn| {
                let statement = &mut *conn.prepare_cached(self.statements.get(statement))?;
                read_record(statement, id, || self.now())
            });
            match read {
                Ok(found) => return Ok(found),
                Err(Failure::Driver(error)) if is_locked(&error) => {
                    let deadline =
                        deadline.get_or_insert(RetryDeadline::new(self.config.busy_timeout));
                    if deadline.has_passed() {
                        return Err(classify(error));
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error.into_error()),
            }
        }
    }

    pub(crate) fn now(&self) -> i64 {
        i64::try_from((self.config.wall_clock)()).unwrap_or(i64::MAX)
    }

    /// Returns the time left in the lease with token `seen`; `None` if that lease is over.
    async fn remaining_lease(&self, id: &Identity, seen: FencingToken) -> Result<Option<Duration>> {
        let found = self.read_record(Statement::Peek, id).await?;
        Ok(found.and_then(|record| record.remaining_lease(seen)))
    }

    async fn wait(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        if at_most.is_zero() {
            return Ok(());
        }
        let until = wait_end(at_most);
        let subscription = self.waiters.registry.subscribe(id.clone());
        // The value of `foreign_commits` before the last read of the record.
        let commits_read = Mutex::new(None);
        let remaining_lease = || async {
            if commits_read.lock().is_some() && self.waiters.is_check_due() {
                self.writer.check_foreign_commits();
            }
            // Load the count before the read. If the read misses a commit, the count changes after
            // this load, so the next check notices the commit.
            let commits = Some(self.waiters.foreign_commits());
            let is_unchanged = commits == std::mem::replace(&mut *commits_read.lock(), commits);
            if is_unchanged || self.remaining_lease(id, seen).await?.is_some() {
                return Ok(Some(Duration::MAX));
            }
            Ok(None)
        };
        wait_for_change(subscription.woken(), until, || POLL, remaining_lease).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl IdempotencyStore for SqliteStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let explain = |error: Error| error.during("acquire").for_identity(id);
        let found = self.read_record(Statement::Read, id).await.map_err(explain)?;
        if !found.as_ref().is_some_and(|record| record.is_held_by(req.owner))
            && let Some(acquired) = Record::acquired(found, req)
        {
            return Ok(acquired);
        }
        match self.write(Transition::Acquire(id.clone(), req.clone())).await.map_err(explain)? {
            TransitionResult::Acquired(acquired) => Ok(acquired),
            _ => Err(explain(unexpected_answer())),
        }
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let found = self.read_record(Statement::Read, id).await;
        found.map(Record::peeked).map_err(|error| error.during("peek").for_identity(id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.wait(id, seen, at_most)
            .await
            .map_err(|error| error.during("wait_for_change").for_identity(id))
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.fenced("extend", id, Transition::Extend(id.clone(), owner, lease)).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.max_value {
            let error = too_large(done.value.len(), self.max_value);
            return Err(error.during("complete").for_identity(id));
        }
        self.fenced("complete", id, Transition::Complete(id.clone(), owner, done.clone())).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.fenced("release", id, Transition::Release(id.clone(), owner)).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("sqlite")
            .with_expiry_clock(ExpiryClock::Host)
            .with_max_poll(max_pause(POLL))
            .with_max_round_trips(0)
            .with_max_value(self.max_value)
            .with_identity_secret(self.config.identity_secret.clone())
    }
}

impl SqliteStore {
    async fn fenced(
        &self,
        operation: &'static str,
        id: &Identity,
        transition: Transition,
    ) -> Result<FencedWrite> {
        match self.write(transition).await {
            Ok(TransitionResult::Fenced(fenced)) => Ok(fenced),
            Ok(_) => Err(unexpected_answer()),
            Err(error) => Err(error),
        }
        .map_err(|error| error.during(operation).for_identity(id))
    }
}

/// The conversion keeps every capability of the store.
impl From<SqliteStore> for SharedStore {
    fn from(store: SqliteStore) -> Self {
        store.into_shared()
    }
}

#[cfg(test)]
mod tests;
