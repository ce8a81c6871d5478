// SPDX-License-Identifier: MIT OR Apache-2.0
//! Acquires a record with one statement. Sends the statement again if it conflicts with another
//! caller, or with the lock of an open transaction.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Grant, HolderNote, LiveLease, Peeked};
use retryproof_core::{Error, FencingToken, Identity, Result};
use retryproof_store_kit::{CallPriority, Record, RecordPhase, jitter};
use tokio::time::{Instant, timeout};

use crate::connection::StatementResult;
use crate::error::{Failure, is_locked, is_read_only, lacks_privilege};
use crate::execute::record_limit::LimitDecision;
use crate::record::AcquireRow;
use crate::statement::Statement;
use crate::store::PostgresStore;

/// How many times an acquire is sent without a pause if it is not granted and finds no live record.
/// Before each further attempt, the store reads the record and pauses.
const ATTEMPTS_WITHOUT_LOOK: u32 = 3;
const MAX_ATTEMPTS: u32 = 20;
/// How long an acquire waits for a row that an open transaction has locked (CMP-7). The first wait,
/// of `FIRST_LOCK_TIMEOUT`, occupies a connection. Later waits use the one connection that the
/// acquires of a locked record share, or no connection.
const LOCK_TIMEOUT: Duration = Duration::from_millis(250);
const FIRST_LOCK_TIMEOUT: Duration = Duration::from_millis(50);
/// How much longer an acquire without a connection waits for the acquire that has one. After that,
/// the waiting acquire reads the record itself.
const QUEUE_GRACE: Duration = Duration::from_millis(100);

/// The outcome of sending the statement.
enum AcquireAttempt {
    Answered(StatementResult),
    /// The statement could not run, or found a locked row; the value is the record's status.
    Blocked(Acquired),
}

impl PostgresStore {
    pub(super) async fn try_acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> Result<Acquired> {
        if self.completed.has(id) {
            match self.look(id).await? {
                Peeked::Complete(stored) => return Ok(Acquired::Complete(stored)),
                // The hint is out of date: the record has expired, or has been deleted or replaced.
                Peeked::Busy(_) | Peeked::Absent => self.completed.forget(id),
            }
        }
        let began = Instant::now();
        for attempt in 0..MAX_ATTEMPTS {
            if attempt >= ATTEMPTS_WITHOUT_LOOK {
                match self.read_record(CallPriority::Normal, Statement::Read, id).await? {
                    // The holder itself tries again (ACQ-9).
                    Some(Record {
                        owner,
                        token,
                        holder,
                        fingerprint,
                        phase: RecordPhase::InProgress(remaining),
                        ..
                    }) if owner != req.owner => {
                        let lease = LiveLease::new(remaining.unwrap_or_default(), token);
                        let mismatch = req.differs_from(fingerprint.as_ref());
                        let lease = lease.with_holder(holder).with_mismatch(mismatch);
                        return Ok(Acquired::Busy(lease));
                    }
                    record => {
                        if let Peeked::Complete(stored) = self.peeked(id, record) {
                            return Ok(Acquired::Complete(stored));
                        }
                    }
                }
                // Other callers keep acquiring and releasing the record, so wait for a random time
                // to get out of step with them.
                tokio::time::sleep(jitter(Duration::from_millis(1))).await;
            }
            let result = match self.send_acquire(id, req, began).await? {
                AcquireAttempt::Answered(result) => result,
                AcquireAttempt::Blocked(acquired) => return Ok(acquired),
            };
            let Some(row) = &result.row else { continue };
            match AcquireRow::read(row)? {
                AcquireRow::Granted { token, took_over } => {
                    self.waiters.notify_local(id);
                    return Ok(Acquired::Granted(Grant::new(token, req.lease, took_over)));
                }
                AcquireRow::Found(record) => {
                    if let Some(acquired) = self.acquired(id, record, req) {
                        return Ok(acquired);
                    }
                }
                AcquireRow::Conflict => {}
            }
        }
        Err(Error::unavailable("the record changed during each attempt to acquire it; try again"))
    }

    async fn look(&self, id: &Identity) -> Result<Peeked> {
        let record = self.read_record(CallPriority::Normal, Statement::Read, id).await?;
        Ok(self.peeked(id, record))
    }

    /// Sends the statement. While an open transaction keeps the row locked, only one caller of the
    /// record at a time sends the statement again. The others wait without a connection, each until
    /// its time is up.
    async fn send_acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        began: Instant,
    ) -> Result<AcquireAttempt> {
        // This hash is keyed, so that clients cannot choose keys whose records share a limit.
        let hash = id.keyed_hash();
        loop {
            let waited = began.elapsed();
            if waited >= LOCK_TIMEOUT && self.record_limits.is_locked(hash) {
                let since = Instant::now();
                let record = self.read_record(CallPriority::Normal, Statement::Read, id).await?;
                // The holder itself, whose first answer was lost, is not in flight: it gets the
                // lease as soon as the row is unlocked, or an error (ACQ-9).
                if let Some(record) = record.filter(|record| !record.is_held_by(req.owner)) {
                    let owner = record.owner;
                    if let Some(acquired) = self.status_of_locked(id, record, req) {
                        if let Acquired::Busy(lease @ LiveLease { remaining: Duration::ZERO, .. }) =
                            &acquired
                        {
                            self.record_limits.publish_locked(hash, since, owner, lease.clone());
                        }
                        return Ok(AcquireAttempt::Blocked(acquired));
                    }
                }
            }
            if waited >= self.config.call_timeout {
                return Err(Error::unavailable(
                    "the record could not be acquired in time: an open transaction has locked its \
                     row, or too many callers are trying to acquire it",
                ));
            }
            let rest = LOCK_TIMEOUT.saturating_sub(waited).max(FIRST_LOCK_TIMEOUT);
            let permit = match self.record_limits.enter(hash) {
                LimitDecision::Admitted(permit) => permit,
                LimitDecision::Queued(mut queued) => {
                    let _ = timeout(rest + QUEUE_GRACE, queued.changed.as_mut()).await;
                    if let Some(lease) = queued.locked_since(began, req.owner) {
                        return Ok(AcquireAttempt::Blocked(Acquired::Busy(lease)));
                    }
                    continue;
                }
            };
            let lock_timeout = if permit.is_probe { rest } else { FIRST_LOCK_TIMEOUT };
            let statement = self.statements.acquire(id, req, lock_timeout);
            match self.executor.run(CallPriority::Normal, &statement).await {
                Ok(result) => {
                    permit.answered();
                    return Ok(AcquireAttempt::Answered(result));
                }
                Err(Failure::Driver(error)) if is_locked(&error) => permit.found_locked(),
                // The server refuses the statement to a user who may not call the function, even if
                // the statement would not call it. In the plain dialect, a read-only server refuses
                // the statement even if it would write nothing (STO-9). Complete records are
                // replayed all the same.
                Err(failure) if lacks_privilege(&failure) || is_read_only(&failure) => {
                    drop(permit);
                    return match self.look(id).await {
                        Ok(Peeked::Complete(stored)) => {
                            Ok(AcquireAttempt::Blocked(Acquired::Complete(stored)))
                        }
                        _ => Err(failure.into_error()),
                    };
                }
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    /// Returns the status of another owner's record whose row an open transaction, most likely a
    /// joined completion (CMP-7), has locked; `None` if the record counts as absent.
    fn status_of_locked(
        &self,
        id: &Identity,
        record: Record,
        req: &AcquireRequest,
    ) -> Option<Acquired> {
        match record {
            Record { token, holder, phase: RecordPhase::InProgress(None), .. } => {
                Some(expired_but_locked(token, holder))
            }
            record => self.acquired(id, Some(record), req),
        }
    }
}

/// Returns the answer for a record whose lease is over, but whose row is locked, so nothing can be
/// granted yet.
fn expired_but_locked(token: FencingToken, holder: Option<HolderNote>) -> Acquired {
    Acquired::Busy(LiveLease::new(Duration::ZERO, token).with_holder(holder))
}
