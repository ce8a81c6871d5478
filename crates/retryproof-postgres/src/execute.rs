// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Executor`] runs one operation within its time limit. The executor replaces a dead connection,
//! or one to an old primary, and repeats a statement that conflicted with another statement.

pub(crate) mod batch;
pub(crate) mod record_limit;

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::config::SqlDialect;
use retryproof_core::{Backoff, Error};
use retryproof_store_kit::{CallPriority, CoarseTimeout, jitter};
use tokio::time::Instant;

use crate::connection::hosts::HostSelector;
use crate::connection::{StatementResult, run};
use crate::error::{Failure, is_broken, is_conflict, is_locked, is_pooler};
use crate::pool::Pool;
use crate::statement::bound::BoundStatement;

/// The maximum number of times that a statement is repeated after a conflict with another
/// statement.
const MAX_CONFLICT_RETRIES: u32 = 5;
/// The pauses before the repetitions in the plain dialect, which end with the call's time limit. On
/// a server that only reports conflicts (SQLSTATE 40001) instead of letting a statement wait,
/// conflicts are part of the normal work (STO-9).
const CONFLICT_PAUSES: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));

pub(crate) struct Executor {
    pool: Pool,
    hosts: Arc<HostSelector>,
    call_timeout: Duration,
    dialect: SqlDialect,
    timer: CoarseTimeout,
}

impl Executor {
    /// Creates an executor. Call this inside a tokio runtime.
    pub(crate) fn new(pool: Pool, call_timeout: Duration, dialect: SqlDialect) -> Self {
        let hosts = Arc::clone(pool.hosts());
        hosts.watch();
        Self { pool, hosts, call_timeout, dialect, timer: CoarseTimeout::start() }
    }

    /// Whether completions may share a statement. That statement calls a function of the schema,
    /// and binds lists, which cannot be written as literals behind a pooler.
    pub(crate) fn can_share(&self) -> bool {
        self.is_direct() && self.dialect == SqlDialect::Postgres
    }

    /// Whether each connection keeps its server process. If so, statements can be prepared, and
    /// notifications arrive.
    pub(crate) fn is_direct(&self) -> bool {
        self.pool.is_direct()
    }

    /// Returns the deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    /// Runs one statement in autocommit. If the connection is dead, or the primary moves while the
    /// statement runs, replaces the connection once. If the statement conflicts with another one,
    /// sends the statement again; in the plain dialect, until the call's time is over (STO-9). The
    /// server can report a conflict at the commit, after the statement's row. Every statement of
    /// the store is safe to repeat, because a holder's writes are fenced by owner (ACQ-9, CMP-3).
    pub(crate) async fn run(
        &self,
        priority: CallPriority,
        statement: &BoundStatement<'_>,
    ) -> Result<StatementResult, Failure> {
        self.run_until(self.deadline(), priority, statement).await
    }

    /// Like [`run`](Self::run), but with the deadline of a call that has already begun.
    pub(crate) async fn run_until(
        &self,
        deadline: Instant,
        priority: CallPriority,
        statement: &BoundStatement<'_>,
    ) -> Result<StatementResult, Failure> {
        let (mut conflicts, mut replaced) = (0, false);
        loop {
            let mut connection = self
                .pool
                .acquire(priority, deadline)
                .await
                .map_err(|error| Failure::Store(error.into_error(&self.pool)))?;
            let Some(conn) = connection.conn.as_mut() else { continue };
            let (prepared, epoch) = (self.is_direct(), connection.origin.epoch);
            let running = self.hosts.unless_moved(epoch, run(conn, statement, prepared));
            let Some(ran) = self.timer.until(deadline, running).await else {
                connection.discard();
                self.hosts.doubt(epoch);
                return Err(self.of_primary(Failure::Store(Error::unavailable(
                    "the server did not answer in time; check whether it is overloaded, or whether \
                     an open transaction has locked the row",
                ))));
            };
            let error = match ran {
                Some(Ok(result)) => {
                    connection.release();
                    return Ok(result);
                }
                Some(Err(Failure::Driver(error))) => error,
                // An answer that an old primary gave after the move counts as lost.
                None => {
                    connection.discard();
                    if !std::mem::replace(&mut replaced, true) {
                        continue;
                    }
                    return Err(self.of_primary(Failure::Store(Error::unavailable(
                        "the primary moved while the statement ran; try again",
                    ))));
                }
                Some(Err(failure)) => {
                    connection.release();
                    return Err(failure);
                }
            };
            if prepared && is_pooler(&error) {
                tracing::warn!(
                    "transaction-mode pooler detected; prepared statements are off and waiters \
                     poll from now on"
                );
                self.pool.set_direct(false, None);
                connection.discard();
                continue;
            }
            if is_broken(&error) {
                let can_replace = connection.was_idle && !replaced;
                // Drop the other idle connections too, because they are probably dead as well.
                self.pool.invalidate_idle();
                self.hosts.doubt(epoch);
                connection.discard();
                if can_replace {
                    replaced = true;
                    continue;
                }
                return Err(self.of_primary(Failure::Driver(error)));
            }
            connection.release();
            conflicts += 1;
            let Some(pause) = self.pause_after(conflicts, &error, statement) else {
                return Err(Failure::Driver(error));
            };
            if Instant::now() + pause >= deadline {
                return Err(Failure::Driver(error));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns the pause before a statement is sent again, or `None` if the error is final. Another
    /// statement than a patient one never waits a second time for a locked row.
    fn pause_after(
        &self,
        conflicts: u32,
        error: &sqlx_core::Error,
        statement: &BoundStatement<'_>,
    ) -> Option<Duration> {
        if !is_conflict(error) {
            return None;
        }
        match self.dialect {
            SqlDialect::Postgres if is_locked(error) || conflicts > MAX_CONFLICT_RETRIES => None,
            SqlDialect::Postgres => {
                Some(Duration::from_millis(u64::from(conflicts) * u64::from(conflicts)))
            }
            SqlDialect::Plain if is_locked(error) && !statement.is_patient => None,
            SqlDialect::Plain => Some(jitter(CONFLICT_PAUSES.after(conflicts))),
        }
    }

    /// Names the primary, if there are several hosts (STO-7).
    fn of_primary(&self, failure: Failure) -> Failure {
        match self.hosts.primary() {
            Some(host) => Failure::Store(failure.into_error().with("host", host)),
            None => failure,
        }
    }
}
