// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Executor`]: runs one operation on the server within a time limit, usually in one round trip.
//! After a conflict with another statement, sends its own statement again. Replaces a dead
//! connection.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::Param;
use retryproof_core::{Error, Identity};
use retryproof_store_kit::{CallPriority, CoarseTimeout, Record, jitter};
use tokio::time::{Instant, sleep};

use crate::connection::{ResultKind, StatementResult};
use crate::error::{Failure, Recovery, classify, too_large};
use crate::pool::Pool;
use crate::record::read_record;
use crate::statement::{PACKET_OVERHEAD, Statement, StatementTexts, key_of, size};

mod acquire;

/// How many times a statement is sent again after conflicts with other statements.
const MAX_CONFLICT_RETRIES: u32 = 20;
/// The longest pause before a statement is sent again.
const MAX_CONFLICT_PAUSE: Duration = Duration::from_millis(20);
/// How many times an operation is retried because a row stayed locked for a second.
const MAX_LOCK_RETRIES: u32 = 2;

pub(crate) struct Executor {
    pub(crate) texts: StatementTexts,
    pub(crate) pool: Pool,
    timer: CoarseTimeout,
    call_timeout: Duration,
    /// Whether an upsert returns the row (`RETURNING`), which saves a second statement.
    pub(crate) returning: bool,
}

impl Executor {
    pub(crate) fn new(
        texts: StatementTexts,
        pool: Pool,
        call_timeout: Duration,
        returning: bool,
    ) -> Self {
        Self { texts, pool, timer: CoarseTimeout::start(), call_timeout, returning }
    }

    /// Returns the deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    /// Runs one statement, usually in one round trip. If the statement conflicts with another one,
    /// sends the statement again. If an idle connection turns out to be dead, sends the statement
    /// once more on a new connection. Every statement of the store is safe to repeat: acquires and
    /// holders' writes contain the owner id, which identifies a repetition (ACQ-9, CMP-3).
    pub(crate) async fn run(
        &self,
        priority: CallPriority,
        statement: Statement,
        params: &[Param<'_>],
        kind: ResultKind,
    ) -> Result<StatementResult, Failure> {
        self.run_until(self.deadline(), priority, statement, params, kind).await
    }

    /// Like [`run`](Self::run), but with the deadline of a call that has already begun.
    async fn run_until(
        &self,
        deadline: Instant,
        priority: CallPriority,
        statement: Statement,
        params: &[Param<'_>],
        kind: ResultKind,
    ) -> Result<StatementResult, Failure> {
        let sql = self.texts.of(statement);
        self.run_text(deadline, priority, sql, params, kind, true).await
    }

    /// Like [`run_until`](Self::run_until), but for any SQL text. If `cached` is false, the
    /// connection does not keep the prepared statement.
    pub(crate) async fn run_text(
        &self,
        deadline: Instant,
        priority: CallPriority,
        sql: &Arc<str>,
        params: &[Param<'_>],
        kind: ResultKind,
        cached: bool,
    ) -> Result<StatementResult, Failure> {
        let (mut conflicts, mut renewed) = (0, false);
        loop {
            let mut lent = self.pool.acquire(priority, deadline).await?;
            let max_packet = lent.connection.server.max_packet;
            if size(params) + sql.len() > max_packet {
                lent.release();
                let limit = max_packet.saturating_sub(PACKET_OVERHEAD);
                return Err(too_large(size(params), limit).into());
            }
            let call = lent.connection.run(sql, params, kind, cached);
            let Some(result) = self.timer.until(deadline, call).await else {
                // Dropping `lent` closes the connection, because an unread part of the statement's
                // result could still arrive.
                return Err(Failure {
                    recovery: Recovery::ReconnectForNextCall,
                    error: Error::unavailable(
                        "the MySQL server did not answer a statement in time; check whether it is \
                         overloaded",
                    ),
                });
            };
            let failure = match result {
                Ok(result) => {
                    lent.release();
                    return Ok(result);
                }
                Err(error) => classify(error),
            };
            match failure.recovery {
                // This connection may have died while it was idle, and all other idle connections
                // may be dead too. Retry once on a new connection. If the new connection breaks
                // too, the server has a problem, so return the error.
                Recovery::RetryOnNewConnection if lent.was_idle && !renewed => {
                    lent.invalidate_idle();
                    renewed = true;
                }
                Recovery::Retry if conflicts < MAX_CONFLICT_RETRIES => {
                    lent.release();
                    conflicts += 1;
                    let pause = MAX_CONFLICT_PAUSE * conflicts / MAX_CONFLICT_RETRIES;
                    sleep(jitter(pause)).await;
                }
                Recovery::RetryOnNewConnection
                | Recovery::ReconnectForNextCall
                | Recovery::AwaitReturned => {
                    return Err(failure);
                }
                // Another server might be the primary by now, so the next call opens a new
                // connection to the address (STO-10). The error names this server, because the
                // address may lead to another one when an operator reads the error.
                Recovery::ReadOnly => {
                    let Failure { recovery, error } = failure;
                    let error = error.with("server", &lent.connection.node);
                    lent.invalidate_idle();
                    return Err(Failure { recovery, error });
                }
                Recovery::Retry | Recovery::RowLocked | Recovery::Full | Recovery::None => {
                    lent.release();
                    return Err(failure);
                }
            }
        }
    }

    /// Runs a statement of a holder or an operator, and returns whether the statement matched the
    /// row. It matches only if the row still has the expected owner or token. If the row stays
    /// locked, the call fails after `MAX_LOCK_RETRIES` retries.
    pub(crate) async fn run_fenced(
        &self,
        statement: Statement,
        params: &[Param<'_>],
    ) -> Result<bool, Failure> {
        let (deadline, mut retries) = (self.deadline(), 0);
        loop {
            let kind = ResultKind::Counts;
            match self.run_until(deadline, CallPriority::Holder, statement, params, kind).await {
                Ok(result) => return Ok(result.matched > 0),
                Err(failure)
                    if failure.recovery == Recovery::RowLocked && retries < MAX_LOCK_RETRIES =>
                {
                    retries += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads a record with a plain SELECT, which locks and writes nothing (ACQ-8).
    pub(crate) async fn read_record(
        &self,
        priority: CallPriority,
        statement: Statement,
        id: &Identity,
    ) -> Result<Option<Record>, Failure> {
        self.read_record_until(self.deadline(), priority, statement, id).await
    }

    async fn read_record_until(
        &self,
        deadline: Instant,
        priority: CallPriority,
        statement: Statement,
        id: &Identity,
    ) -> Result<Option<Record>, Failure> {
        let params = key_of(id);
        let result =
            self.run_until(deadline, priority, statement, &params, ResultKind::Rows).await?;
        Ok(result.rows.first().map(read_record).transpose()?)
    }
}
