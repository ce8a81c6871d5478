// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Desk`]: the one connection that writes, and how a batch becomes one transaction.

use std::sync::Arc;

use retryproof_core::Result;
use rusqlite::{Connection, ffi};

use crate::config::SqliteConfig;
use crate::error::{classify, is_busy, is_full};
use crate::file;
use crate::schema::Sql;
use crate::step::{Answer, Step, Tx};
use crate::wake::Wake;

/// The writing connection and what belongs to it.
pub(crate) struct Desk {
    conn: Connection,
    sql: Arc<Sql>,
    wall_clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    wake: Arc<Wake>,
    /// Last seen; it moves when a connection of another process has committed, never by our own commits.
    data_version: i64,
}

/// What a batch came to.
pub(crate) enum Ran {
    /// One answer for each step; whatever they wrote is committed.
    Done(Vec<Result<Answer>>),
    /// Another connection holds the write lock; nothing was written.
    Busy(rusqlite::Error),
}

/// Why a transaction came to nothing as a whole.
enum Aborted {
    Failed(rusqlite::Error),
    /// SQLite rolled it back by itself, in the middle of a step.
    RolledBack,
}

impl From<rusqlite::Error> for Aborted {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Desk {
    pub(crate) fn new(config: &SqliteConfig, sql: Arc<Sql>, wake: Arc<Wake>) -> Result<Self> {
        let conn = file::open(config)?;
        Ok(Self { conn, sql, wall_clock: Arc::clone(&config.wall_clock), wake, data_version: 0 })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Runs the steps in one transaction, in order. One that fails does not sink the others.
    pub(crate) fn run<'s>(&mut self, steps: impl ExactSizeIterator<Item = &'s Step> + Clone) -> Ran {
        let ran = match self.transact(steps.clone()) {
            Ok(answers) => Ran::Done(answers),
            Err(Aborted::Failed(error)) if is_busy(&error) => Ran::Busy(error),
            // Small steps may still find room where the batch as a whole did not.
            Err(Aborted::Failed(error)) if is_full(&error) && steps.len() > 1 => {
                self.run_singly(steps.clone())
            }
            Err(Aborted::Failed(error)) => {
                Ran::Done(steps.clone().map(|_| Err(classify(copy(&error)))).collect())
            }
            Err(Aborted::RolledBack) => self.run_singly(steps.clone()),
        };
        if let Ran::Done(answers) = &ran {
            self.wake.wake(steps.zip(answers).filter_map(|(step, answer)| step.wakes(answer.as_ref().ok()?)));
        }
        ran
    }

    /// Tells waiters when another process has committed since the last time (ACQ-4).
    pub(crate) fn note_foreign_commits(&mut self) -> Result<(), rusqlite::Error> {
        let version =
            self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get::<_, i64>(0))?;
        if version != std::mem::replace(&mut self.data_version, version) {
            self.wake.foreign_commit();
        }
        Ok(())
    }

    fn run_singly<'s>(&mut self, steps: impl Iterator<Item = &'s Step>) -> Ran {
        let mut answers = Vec::new();
        for step in steps {
            answers.push(match self.transact(std::iter::once(step)) {
                Ok(mut answer) if answer.len() == 1 => answer.remove(0),
                Ok(_) | Err(Aborted::RolledBack) => Err(classify(rusqlite::Error::QueryReturnedNoRows)),
                Err(Aborted::Failed(error)) => Err(classify(error)),
            });
        }
        Ran::Done(answers)
    }

    fn transact<'s>(
        &mut self,
        steps: impl ExactSizeIterator<Item = &'s Step>,
    ) -> Result<Vec<Result<Answer>>, Aborted> {
        self.execute("BEGIN IMMEDIATE")?;
        let done = self.inside(steps);
        if done.is_err() && !self.conn.is_autocommit() {
            // Nothing better is left to try: the connection refuses the next BEGIN if this fails, and says so there.
            let _ = self.execute("ROLLBACK");
        }
        done
    }

    fn inside<'s>(
        &mut self,
        steps: impl ExactSizeIterator<Item = &'s Step>,
    ) -> Result<Vec<Result<Answer>>, Aborted> {
        if self.wake.is_watched() {
            self.note_foreign_commits()?;
        }
        // The lock is held from here on, so nobody acts on a later instant before us (ACQ-7).
        let now = i64::try_from((self.wall_clock)()).unwrap_or(i64::MAX);
        let mut tx = Tx::new(&self.conn, &self.sql, now);
        // One step alone needs no savepoint: when it fails, so does the transaction.
        let several = steps.len() > 1;
        let mut answers = Vec::with_capacity(steps.len());
        for step in steps {
            if several {
                self.execute("SAVEPOINT step")?;
            }
            let answer = tx.run(step);
            if answer.is_err() {
                if self.conn.is_autocommit() {
                    return if several { Err(Aborted::RolledBack) } else { Ok(vec![answer]) };
                }
                self.execute(if several { "ROLLBACK TO step" } else { "ROLLBACK" })?;
                if !several {
                    return Ok(vec![answer]);
                }
            }
            if several {
                self.execute("RELEASE step")?;
            }
            answers.push(answer);
        }
        tx.seal()?;
        self.execute("COMMIT")?;
        Ok(answers)
    }

    fn execute(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }
}

/// The same failure once more, for each caller of a batch; the driver's errors do not clone.
pub(crate) fn copy(error: &rusqlite::Error) -> rusqlite::Error {
    let code = error.sqlite_error().copied().unwrap_or_else(|| ffi::Error::new(ffi::SQLITE_ERROR));
    rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
}
