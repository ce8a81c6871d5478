// SPDX-License-Identifier: MIT OR Apache-2.0
//! Implements the store's optional capabilities: to purge, to inspect, and to let operators change
//! records.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{
    Force, ForceAction, ForceRequest, Forced, Inspect, Purge, RecordSummary, ScanCursor, ScanPage,
    StoreStats,
};
use retryproof_core::{Error, Identity, Result};
use retryproof_store_kit::{ScanRows, too_large, unreadable};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::connection;
use crate::connection::retry::{RetryDeadline, pause};
use crate::error::{classify, is_locked};
use crate::execute::transition::{Transition, TransitionResult, unexpected_answer};
use crate::execute::write_lock::FileWriteLock;
use crate::record::summary;
use crate::statement::Statement;
use crate::store::SqliteStore;

/// The largest number of rows that one purging transaction deletes. Acquires wait until that
/// transaction has ended.
const MAX_PURGE_BATCH: usize = 200;
/// The pause between two attempts to empty the write-ahead log.
const LOG_RETRY_DELAY: Duration = Duration::from_millis(10);

impl Purge for SqliteStore {
    /// Deletes in small transactions, so that other writes can run in between. The file keeps its
    /// size, and SQLite reuses the pages.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let mut deleted = 0;
        while deleted < limit {
            let batch = MAX_PURGE_BATCH.min(limit - deleted);
            let purged = match self.writer.run(Transition::Purge(batch)).await {
                Ok(TransitionResult::Purged(purged)) => purged,
                Ok(_) => return Err(unexpected_answer().during("purge")),
                Err(error) => return Err(error.during("purge")),
            };
            deleted += purged;
            if purged < batch {
                break;
            }
        }
        Ok(deleted)
    }

    /// Writes the end of the claim into the row `purge` of the `_meta` table.
    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        let explain = |error: Error| error.during("claim_purge");
        match self.writer.run(Transition::ClaimPurge(at_most)).await.map_err(explain)? {
            TransitionResult::Claimed(claimed) => Ok(claimed),
            _ => Err(explain(unexpected_answer())),
        }
    }
}

impl Inspect for SqliteStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let now = self.now();
        self.readers
            .with(|conn| get(conn, self.statements.get(Statement::Summary), id, now))
            .map_err(|error| error.during("get").for_identity(id))
    }

    /// Scans the table on a separate thread and connection.
    async fn stats(&self) -> Result<StoreStats> {
        let statements = Arc::clone(&self.statements);
        self.aside(connection::open_reader, move |conn| {
            stats(conn, statements.get(Statement::Stats))
        })
        .await
        .map_err(|error| error.during("stats"))
    }

    /// Reads at most 1,000 rows for a page, on a separate thread and connection.
    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        let explain = |error: Error| error.during("scan");
        let (scope, key) = ScanRows::start(after).map_err(explain)?;
        let (scope, key) = (scope.to_vec(), key.to_vec());
        let (clock, statements) =
            (Arc::clone(&self.config.wall_clock), Arc::clone(&self.statements));
        self.aside(connection::open_reader, move |conn| {
            let now = || i64::try_from(clock()).unwrap_or(i64::MAX);
            scan(conn, statements.get(Statement::Scan), (&scope, &key), limit, now)
        })
        .await
        .map_err(explain)
    }
}

impl SqliteStore {
    /// Runs `work` on a separate thread and connection, because it can take a long time. This keeps
    /// the runtime's threads, the connections for replays and the writing thread free.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        open: fn(&SqliteConfig) -> Result<Connection>,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let config = self.config.clone();
        std::thread::Builder::new()
            .name("retryproof-aside".to_owned())
            .spawn(move || {
                // Sending fails only if the caller has dropped its future.
                let _ = reply.send(open(&config).and_then(|conn| work(&conn)));
            })
            .map_err(|error| {
                Error::unavailable(
                    "the operating system could not start a thread for the operator's call",
                )
                .because(error)
            })?;
        answer.await.unwrap_or_else(|_| {
            Err(Error::unavailable(
                "the thread that ran the operator's call ended without a result",
            ))
        })
    }

    /// Empties the write-ahead log, which can contain pages from before a result was erased.
    async fn empty_log(&self) -> Result<()> {
        let timeout = self.config.busy_timeout;
        self.aside(connection::open_writer, move |conn| empty_log(conn, timeout)).await
    }
}

impl Force for SqliteStore {
    /// For a forget or an erase, also overwrites the removed bytes and empties the write-ahead log.
    ///
    /// # Errors
    /// Also fails as `Unavailable` if the record was changed but the log could not be emptied,
    /// because another connection read the file during the whole busy timeout. Repeat the request
    /// in that case.
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let explain = |error: Error| error.during("force").for_identity(id);
        if let ForceAction::Resolve { done, .. } = &req.action
            && done.value.len() > self.max_value
        {
            return Err(explain(too_large(done.value.len(), self.max_value)));
        }
        let forced = match self.write(Transition::Force(id.clone(), req.clone())).await {
            Ok(TransitionResult::Forced(forced)) => forced,
            Ok(_) => return Err(explain(unexpected_answer())),
            Err(error) => return Err(explain(error)),
        };
        // Also empty the log if there is no record, because an earlier forget may have deleted the
        // record but failed to empty the log.
        if matches!(req.action, ForceAction::Forget | ForceAction::Erase)
            && matches!(forced, Forced::Applied | Forced::Absent)
        {
            self.empty_log().await.map_err(explain)?;
        }
        Ok(forced)
    }
}

/// Moves all pages of the log to the database and truncates the log. Retries for up to `timeout`,
/// because moving the pages fails while another connection reads an older state of the file. That
/// time includes the waits for the write lock. Each attempt holds the write lock only while it
/// moves pages.
fn empty_log(conn: &Connection, timeout: Duration) -> Result<()> {
    let write_lock = FileWriteLock::of(Path::new(conn.path().unwrap_or_default()));
    let deadline = RetryDeadline::new(timeout);
    loop {
        if let Some(_guard) = write_lock.queue().wait(deadline.remaining()) {
            let emptied = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, i64>(0).map(|busy| busy == 0)
            });
            match emptied {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_locked(&error) => {}
                Err(error) => return Err(classify(error)),
            }
        }
        if deadline.has_passed() {
            return Err(Error::unavailable(
                "the record was changed, but its former value is still in the write-ahead log, \
                 because another connection has been reading or writing for a long time; repeat \
                 the request when that connection has finished",
            ));
        }
        pause(LOG_RETRY_DELAY);
    }
}

fn scan(
    conn: &Connection,
    sql: &str,
    (scope, key): (&[u8], &[u8]),
    limit: usize,
    now: impl Fn() -> i64,
) -> Result<ScanPage> {
    let mut page = ScanRows::new(limit);
    let mut statement = conn.prepare(sql).map_err(classify)?;
    let mut rows = statement.query((scope, key, page.limit())).map_err(classify)?;
    while let Some(row) = rows.next().map_err(classify)? {
        // The page begins after a position whose scope is a blob, and SQLite sorts text and numbers
        // before blobs. So the page contains no row whose scope is text or a number.
        let blob = |at: usize, field| {
            let value = row.get_ref(at).ok().and_then(|value| value.as_blob().ok());
            value.ok_or_else(|| unreadable(field))
        };
        // SQLite sorts such keys before the empty blob, so the next page begins behind them.
        let (key, summary) = match blob(9, "key") {
            Ok(key) => (key, summary(row, now())),
            Err(error) => (&b""[..], Err(error)),
        };
        page.add(blob(8, "scope")?, key, summary)?;
    }
    Ok(page.finish())
}

fn get(conn: &Connection, sql: &str, id: &Identity, now: i64) -> Result<Option<RecordSummary>> {
    let names = (id.scope().as_str().as_bytes(), id.key().expose().as_bytes());
    let found = conn
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(names, |row| Ok(summary(row, now))));
    match found {
        Ok(summary) => summary,
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(classify(error)),
    }
}

fn stats(conn: &Connection, sql: &str) -> Result<StoreStats> {
    let count = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    conn.query_row(sql, [], |row| {
        Ok(StoreStats::new(count(row, 0)?, count(row, 1)?, count(row, 2)?))
    })
    .map_err(classify)
}
