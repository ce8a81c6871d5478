// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Executor`] runs one operation within its time limit. The executor replaces a dead connection,
//! and repeats a statement that conflicted with another statement.

pub(crate) mod batch;
pub(crate) mod record_limit;

use std::time::Duration;

use retryproof_core::Error;
use retryproof_store_kit::{CallPriority, CoarseTimeout};
use tokio::time::Instant;

use crate::connection::{StatementResult, run};
use crate::error::{Failure, is_broken, is_conflict, is_locked, is_pooler};
use crate::pool::Pool;
use crate::statement::bound::BoundStatement;

/// The maximum number of times that a statement is repeated after a conflict with another
/// statement.
const MAX_CONFLICT_RETRIES: u32 = 5;

pub(crate) struct Executor {
    pool: Pool,
    call_timeout: Duration,
    timer: CoarseTimeout,
}

impl Executor {
    /// Creates an executor. Call this inside a tokio runtime.
    pub(crate) fn new(pool: Pool, call_timeout: Duration) -> Self {
        Self { pool, call_timeout, timer: CoarseTimeout::start() }
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

    /// Runs one statement in autocommit. If the connection is dead, replaces it once. If the
    /// statement conflicts with another one, sends the statement again. Every statement of the
    /// store is safe to repeat, because a holder's writes are fenced by owner (ACQ-9, CMP-3).
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
            let prepared = self.is_direct();
            let Some(ran) = self.timer.until(deadline, run(conn, statement, prepared)).await else {
                connection.discard();
                return Err(Failure::Store(Error::unavailable(
                    "the server did not answer in time; check whether it is overloaded, or whether \
                     an open transaction has locked the row",
                )));
            };
            let error = match ran {
                Ok(result) => {
                    connection.release();
                    return Ok(result);
                }
                Err(Failure::Driver(error)) => error,
                Err(failure) => {
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
                connection.discard();
                if can_replace {
                    replaced = true;
                    continue;
                }
                return Err(Failure::Driver(error));
            }
            connection.release();
            let is_final = conflicts == MAX_CONFLICT_RETRIES || is_locked(&error);
            if !is_conflict(&error) || is_final {
                return Err(Failure::Driver(error));
            }
            conflicts += 1;
            tokio::time::sleep(Duration::from_millis(u64::from(conflicts * conflicts))).await;
        }
    }
}
