// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Desk`]: the one connection that writes, and how a batch becomes one transaction.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{Error, Result};
use rusqlite::{Connection, ffi};

use crate::config::SqliteConfig;
use crate::connection;
use crate::connection::retry::{Patience, pause};
use crate::error::{classify, is_busy, is_full};
use crate::execute::transition::{Answer, Step, Tx, mixed_up};
use crate::schema::Sql;
use crate::waiters::Wake;

/// How long a step of a batch that failed asks for a lock that another process has taken in
/// between, and how often.
const ALONE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(1);

/// The writing connection and what belongs to it.
pub(crate) struct Desk {
    conn: Connection,
    sql: Arc<Sql>,
    wall_clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    wake: Arc<Wake>,
    /// Last seen; it moves when a connection of another process has committed, never by our own
    /// commits.
    data_version: i64,
}

/// What a batch came to.
pub(crate) enum Ran {
    /// One answer for each step; whatever they wrote is committed.
    Done(Vec<Result<Answer>>),
    /// Another connection holds the write lock; nothing was written.
    Busy(rusqlite::Error),
}

/// Why a transaction came to nothing as a whole; it is rolled back.
enum Aborted {
    /// At its beginning or its end.
    Failed(rusqlite::Error),
    /// By one of its steps.
    Step(Error),
}

impl From<rusqlite::Error> for Aborted {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Aborted {
    fn into_error(self) -> Error {
        match self {
            Self::Failed(error) => classify(error),
            Self::Step(error) => error,
        }
    }
}

impl Desk {
    pub(crate) fn new(config: &SqliteConfig, sql: Arc<Sql>, wake: Arc<Wake>) -> Result<Self> {
        let conn = connection::open(config)?;
        Ok(Self { conn, sql, wall_clock: Arc::clone(&config.wall_clock), wake, data_version: 0 })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Runs the steps in one transaction, in order. When one of them fails, or there is no room for
    /// all, each gets a transaction of its own, so that one does not sink the others. (A savepoint
    /// for each step would copy every page that a batch touches, and would not help where SQLite
    /// ends the whole transaction by itself: on a full or failing disk.)
    pub(crate) fn run<'s>(
        &mut self,
        steps: impl ExactSizeIterator<Item = &'s Step> + Clone,
    ) -> Ran {
        let ran = match self.transact(steps.clone()) {
            Ok(answers) => Ran::Done(answers),
            Err(Aborted::Failed(error)) if is_busy(&error) => Ran::Busy(error),
            Err(aborted) if steps.len() == 1 => Ran::Done(vec![Err(aborted.into_error())]),
            Err(Aborted::Failed(error)) if !is_full(&error) => {
                Ran::Done(steps.clone().map(|_| Err(classify(copy(&error)))).collect())
            }
            Err(_) => Ran::Done(steps.clone().map(|step| self.alone(step)).collect()),
        };
        if let Ran::Done(answers) = &ran {
            self.wake.wake(
                steps.zip(answers).filter_map(|(step, answer)| step.wakes(answer.as_ref().ok()?)),
            );
        }
        ran
    }

    /// One step that failed among others, or beside one that did.
    fn alone(&mut self, step: &Step) -> Result<Answer> {
        let patience = Patience::new(ALONE);
        loop {
            match self.transact(std::iter::once(step)) {
                Ok(mut answers) => return answers.pop().unwrap_or_else(|| Err(mixed_up())),
                Err(Aborted::Failed(error)) if is_busy(&error) && !patience.is_over() => {
                    pause(AGAIN)
                }
                Err(aborted) => return Err(aborted.into_error()),
            }
        }
    }

    /// Tells waiters when another process has committed since the last time (ACQ-4).
    pub(crate) fn note_foreign_commits(&mut self) -> Result<(), rusqlite::Error> {
        let version = self
            .conn
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get::<_, i64>(0))?;
        if version != std::mem::replace(&mut self.data_version, version) {
            self.wake.foreign_commit();
        }
        Ok(())
    }

    fn transact<'s>(
        &mut self,
        steps: impl ExactSizeIterator<Item = &'s Step>,
    ) -> Result<Vec<Result<Answer>>, Aborted> {
        self.execute("BEGIN IMMEDIATE")?;
        let done = self.inside(steps);
        // SQLite may have rolled it back by itself.
        if done.is_err() && !self.conn.is_autocommit() {
            // Nothing better is left to try: the connection refuses the next BEGIN if this fails,
            // and says so there.
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
        let mut answers = Vec::with_capacity(steps.len());
        for step in steps {
            answers.push(Ok(tx.run(step).map_err(Aborted::Step)?));
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
