// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SqliteStore`]: the contract over the readers and the writer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::blocking::in_blocking_context;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Peeked, SharedStore, StoreProfile,
};
use retryproof_core::{
    Error, ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result,
};
use rusqlite::limits::Limit;

use crate::config::SqliteConfig;
use crate::connection;
use crate::connection::retry::Patience;
use crate::error::{classify, is_busy};
use crate::execute::Writer;
use crate::execute::transaction::Desk;
use crate::execute::transition::{Answer, Step, mixed_up};
use crate::execute::write_lock::Turn;
use crate::pool::Readers;
use crate::record::{Phase, ReadError, Record, find};
use crate::schema::{self, Sql, Statement};
use crate::waiters::Wake;

/// Between two attempts to read a file that is locked as a whole, which WAL does for moments only.
const AGAIN: Duration = Duration::from_millis(1);
/// Between two questions whether another process has written: at first, and at most (ACQ-4).
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// Room in a row for the other columns.
const ROW_OVERHEAD: usize = 4_096;

/// Keeps records in a SQLite file, for one process or several on the same machine.
///
/// Acquires that find a live record, looks and replays are served on the calling thread by a cached
/// SELECT; they write nothing (ACQ-8). Everything else is queued to one thread that commits in
/// groups. Expiry is judged by the host's wall clock: a jump of it moves every expiry in the file.
///
/// Dropping the store finishes what is queued and ends the thread; that may take as long as the
/// disk takes.
pub struct SqliteStore {
    pub(crate) config: SqliteConfig,
    pub(crate) sql: Arc<Sql>,
    pub(crate) wake: Arc<Wake>,
    pub(crate) readers: Readers,
    pub(crate) writer: Writer,
    max_value: usize,
}

impl SqliteStore {
    /// Makes or updates the tables in the file at `path`, and the file: [`SqliteConfig::migrate`]
    /// with the defaults.
    ///
    /// # Errors
    /// As there.
    pub fn migrate(path: impl AsRef<Path>) -> Result<()> {
        SqliteConfig::new(path).migrate()
    }

    /// Opens the file at `path` with the defaults; see [`open_with`](Self::open_with).
    ///
    /// # Errors
    /// As there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(SqliteConfig::new(path))
    }

    /// Opens a file that [`migrate`](Self::migrate) has prepared. It blocks for some milliseconds:
    /// call it at start-up.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] when the file or the tables are missing or of another version (STO-3);
    /// [`ErrorKind::Config`] for a directory that does not exist or an invalid table name;
    /// [`ErrorKind::Unexpected`] for a file that may not be read or written; [`ErrorKind::Corrupt`]
    /// for a file that is no database; [`ErrorKind::Unsupported`] where WAL is not to be had;
    /// [`ErrorKind::Unavailable`] when another connection keeps the file locked.
    pub fn open_with(config: SqliteConfig) -> Result<Self> {
        Self::opened(config).map_err(|error| error.during("open"))
    }

    fn opened(config: SqliteConfig) -> Result<Self> {
        let table = config.table()?;
        let sql = Arc::new(Sql::new(table));
        let wake = Arc::new(Wake::default());
        let desk = Desk::new(&config, Arc::clone(&sql), Arc::clone(&wake))?;
        connection::patiently(config.busy_timeout, || schema::check(desk.connection(), table))
            .map_err(|error| error.with("file", config.path.display()))?;
        let limit = desk.connection().limit(Limit::SQLITE_LIMIT_LENGTH).map_err(classify)?;
        let limit = usize::try_from(limit).unwrap_or(0).saturating_sub(ROW_OVERHEAD);
        let max_value = config.max_value.map_or(limit, |most| most.min(limit));
        let readers = Readers::open(&config)?;
        // By the name that SQLite has for the file, which a URI does not show.
        let turn = Turn::at(Path::new(desk.connection().path().unwrap_or_default()));
        let writer = Writer::start(desk, turn, config.busy_timeout)?;
        Ok(Self { config, sql, wake, readers, writer, max_value })
    }

    /// The store as an engine takes it, with the capabilities to purge, to inspect, and to join a
    /// transaction (CMP-7).
    #[must_use]
    pub fn into_shared(self) -> SharedStore {
        SharedStore::builder(self).with_purge().with_inspect().with_join().build()
    }

    /// One step in one commit, on the best thread for it.
    pub(crate) async fn write(&self, step: Step) -> Result<Answer> {
        if (self.config.in_place || in_blocking_context())
            && let Some(answer) = self.writer.call_in_place(&step)
        {
            return answer;
        }
        self.writer.call(step).await
    }

    /// Reads a record on this thread. A locked file is asked for again, asleep on the runtime and
    /// not inside SQLite.
    async fn record(&self, statement: Statement, id: &Identity) -> Result<Option<Record>> {
        let mut patience = None;
        loop {
            let read = self.readers.with(|conn| {
                find(&mut *conn.prepare_cached(self.sql.of(statement))?, id, || self.now())
            });
            match read {
                Ok(found) => return Ok(found),
                Err(ReadError::Driver(error)) if is_busy(&error) => {
                    if patience.get_or_insert(Patience::new(self.config.busy_timeout)).is_over() {
                        return Err(classify(error));
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error.into_error()),
            }
        }
    }

    pub(crate) fn now(&self) -> i64 {
        i64::try_from((self.config.wall_clock)()).unwrap_or(i64::MAX)
    }

    /// Whether the holder with token `seen` is still at work.
    async fn still_held(&self, id: &Identity, seen: FencingToken) -> Result<bool> {
        Ok(matches!(
            self.record(Statement::Peeked, id).await?,
            Some(Record { token, phase: Phase::Running(Some(_)), .. }) if token == seen
        ))
    }

    async fn wait(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        let subscription = self.wake.subscribe(id);
        let mut woken = std::pin::pin!(subscription.bell.notified());
        woken.as_mut().enable();
        // Before the look: a commit that the look does not see moves it.
        let mut foreign = self.wake.foreign_commits();
        if at_most.is_zero() || !self.still_held(id, seen).await? {
            return Ok(());
        }
        let end = tokio::time::Instant::now() + at_most;
        let (mut poll, longest) = POLL;
        loop {
            let next = (tokio::time::Instant::now() + self.wake.jitter(poll)).min(end);
            if tokio::time::timeout_at(next, woken.as_mut()).await.is_ok() || next == end {
                return Ok(());
            }
            if self.wake.is_due(next) {
                self.writer.note_foreign_commits();
            }
            let seen_foreign = std::mem::replace(&mut foreign, self.wake.foreign_commits());
            if seen_foreign != foreign && !self.still_held(id, seen).await? {
                return Ok(());
            }
            poll = (poll * 2).min(longest);
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl IdempotencyStore for SqliteStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let of = |error: Error| error.during("acquire").for_identity(id);
        match self.record(Statement::Find, id).await.map_err(of)? {
            Some(Record { phase: Phase::Done(Some(stored)), .. }) => {
                return Ok(Acquired::Complete(stored));
            }
            Some(Record { owner, token, phase: Phase::Running(Some(remaining)) })
                if owner != req.owner =>
            {
                return Ok(Acquired::Busy { remaining, token });
            }
            _ => {}
        }
        match self.write(Step::Acquire(id.clone(), req.clone())).await.map_err(of)? {
            Answer::Acquired(acquired) => Ok(acquired),
            _ => Err(of(mixed_up())),
        }
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let found = self.record(Statement::Find, id).await;
        Ok(match found.map_err(|error| error.during("peek").for_identity(id))? {
            Some(Record { phase: Phase::Done(Some(stored)), .. }) => Peeked::Complete(stored),
            Some(Record { token, phase: Phase::Running(Some(remaining)), .. }) => {
                Peeked::Busy { remaining, token }
            }
            _ => Peeked::Absent,
        })
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
        self.fenced("extend", id, Step::Extend(id.clone(), owner, lease)).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if done.value.len() > self.max_value {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "the value is larger than the store accepts",
            )
            .with("bytes", done.value.len())
            .with("limit", self.max_value)
            .during("complete")
            .for_identity(id));
        }
        self.fenced("complete", id, Step::Complete(id.clone(), owner, done.clone())).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.fenced("release", id, Step::Release(id.clone(), owner)).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("sqlite").with_max_value(self.max_value)
    }
}

impl SqliteStore {
    async fn fenced(
        &self,
        operation: &'static str,
        id: &Identity,
        step: Step,
    ) -> Result<FencedWrite> {
        match self.write(step).await {
            Ok(Answer::Fenced(fenced)) => Ok(fenced),
            Ok(_) => Err(mixed_up()),
            Err(error) => Err(error),
        }
        .map_err(|error| error.during(operation).for_identity(id))
    }
}

/// With every capability that the store has.
impl From<SqliteStore> for SharedStore {
    fn from(store: SqliteStore) -> Self {
        store.into_shared()
    }
}

#[cfg(test)]
mod tests;
