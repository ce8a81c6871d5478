// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WriteConnection`]: the store's only writing connection, which runs a batch as one transaction.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::Result;
use rusqlite::{Connection, ffi};

use super::transition::{Transition, TransitionResult, WriteTransaction, unexpected_answer};
use crate::config::SqliteConfig;
use crate::connection;
use crate::connection::retry::{RetryDeadline, pause};
use crate::error::{Failure, classify, is_full, is_locked};
use crate::statement::StatementTexts;
use crate::waiters::Waiters;

/// How long a transition from a failed batch is retried while another process holds the lock.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two retries of a transition from a failed batch.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The writing connection and its state.
pub(crate) struct WriteConnection {
    conn: Connection,
    statements: Arc<StatementTexts>,
    wall_clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    waiters: Arc<Waiters>,
    /// SQLite's `data_version` at the last check. Commits by other connections change it. Commits
    /// by this connection do not.
    data_version: i64,
}

/// The result of a batch.
pub(crate) enum BatchResult {
    /// One result for each transition. All successful transitions are committed.
    Committed(Vec<Result<TransitionResult>>),
    /// Another connection holds the write lock; nothing was written.
    Locked(rusqlite::Error),
}

impl WriteConnection {
    pub(crate) fn open(
        config: &SqliteConfig,
        statements: Arc<StatementTexts>,
        waiters: Arc<Waiters>,
    ) -> Result<Self> {
        let conn = connection::open_writer(config)?;
        let wall_clock = Arc::clone(&config.wall_clock);
        Ok(Self { conn, statements, wall_clock, waiters, data_version: 0 })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Runs the transitions in one transaction, in order. If a transition fails, or the disk has no
    /// space for all of them, each transition runs again in a separate transaction. A failed
    /// transition then does not affect the others. If BEGIN or COMMIT fails for another reason,
    /// every transition gets that error. A savepoint for each transition would copy every page that
    /// the batch touches. Savepoints would not help on a full or failing disk either, because
    /// SQLite then ends the whole transaction.
    pub(crate) fn run<'s>(
        &mut self,
        transitions: impl ExactSizeIterator<Item = &'s Transition> + Clone,
    ) -> BatchResult {
        let ran = match self.transact(transitions.clone()) {
            Ok(results) => BatchResult::Committed(results),
            Err(Failure::Driver(error)) if is_locked(&error) => BatchResult::Locked(error),
            Err(error) if transitions.len() == 1 => {
                BatchResult::Committed(vec![Err(error.into_error())])
            }
            Err(Failure::Driver(error)) if !is_full(&error) => BatchResult::Committed(
                transitions.clone().map(|_| Err(classify(copy(&error)))).collect(),
            ),
            Err(_) => BatchResult::Committed(
                transitions.clone().map(|transition| self.run_alone(transition)).collect(),
            ),
        };
        if let BatchResult::Committed(results) = &ran {
            let changed = transitions.zip(results).filter_map(|(transition, result)| {
                transition.changed_record(result.as_ref().ok()?)
            });
            self.waiters.registry.notify_each(changed);
        }
        ran
    }

    /// Runs a transition of a failed batch in a separate transaction.
    fn run_alone(&mut self, transition: &Transition) -> Result<TransitionResult> {
        let deadline = RetryDeadline::new(RETRY_TIMEOUT);
        loop {
            match self.transact(std::iter::once(transition)) {
                Ok(mut results) => {
                    return results.pop().unwrap_or_else(|| Err(unexpected_answer()));
                }
                Err(Failure::Driver(error)) if is_locked(&error) && !deadline.has_passed() => {
                    pause(RETRY_DELAY)
                }
                Err(error) => return Err(error.into_error()),
            }
        }
    }

    /// Notifies waiters if another connection has committed since the last check (ACQ-4).
    pub(crate) fn check_foreign_commits(&mut self) -> Result<(), rusqlite::Error> {
        let version = self
            .conn
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get::<_, i64>(0))?;
        if version != std::mem::replace(&mut self.data_version, version) {
            self.waiters.on_foreign_commit();
        }
        Ok(())
    }

    fn transact<'s>(
        &mut self,
        transitions: impl ExactSizeIterator<Item = &'s Transition>,
    ) -> Result<Vec<Result<TransitionResult>>, Failure> {
        self.execute("BEGIN IMMEDIATE")?;
        let done = self.inside(transitions);
        // SQLite might have rolled the transaction back already.
        if done.is_err() && !self.conn.is_autocommit() {
            // If the rollback fails, the transaction stays open, and the next BEGIN returns an
            // error.
            let _ = self.execute("ROLLBACK");
        }
        done
    }

    fn inside<'s>(
        &mut self,
        transitions: impl ExactSizeIterator<Item = &'s Transition>,
    ) -> Result<Vec<Result<TransitionResult>>, Failure> {
        if !self.waiters.registry.is_empty() {
            self.check_foreign_commits()?;
        }
        // Read the clock while holding the write lock, so that times follow the order of commits
        // (ACQ-7).
        let now = i64::try_from((self.wall_clock)()).unwrap_or(i64::MAX);
        let mut tx = WriteTransaction::new(&self.conn, &self.statements, now);
        let mut results = Vec::with_capacity(transitions.len());
        for transition in transitions {
            results.push(Ok(tx.run(transition).map_err(Failure::Store)?));
        }
        tx.finish()?;
        self.execute("COMMIT")?;
        Ok(results)
    }

    fn execute(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }
}

/// Copies an error for each caller of a batch, because the driver's errors are not `Clone`.
pub(crate) fn copy(error: &rusqlite::Error) -> rusqlite::Error {
    let code = error.sqlite_error().copied().unwrap_or_else(|| ffi::Error::new(ffi::SQLITE_ERROR));
    rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
}
