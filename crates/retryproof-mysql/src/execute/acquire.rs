// SPDX-License-Identifier: MIT OR Apache-2.0
//! Acquires a record with one upsert. Runs more statements if the upsert does not settle the
//! outcome.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Grant, HolderNote, LiveLease, Param};
use retryproof_core::{FencingToken, Identity, StoredResult};
use retryproof_store_kit::CallPriority;
use tokio::time::Instant;

use super::{Executor, MAX_LOCK_RETRIES};
use crate::connection::ResultKind;
use crate::error::{Failure, Recovery};
use crate::record::{RecordStatus, read_record, read_replay};
use crate::statement::{Statement, key_of, micros};

/// The result of an upsert.
enum Upserted {
    Granted(Grant),
    NotGranted(RecordStatus),
}

impl Executor {
    /// Reads the stored result of a record that this process has seen complete. Returns `None` if
    /// the record is no longer complete.
    pub(crate) async fn replay(&self, id: &Identity) -> Result<Option<StoredResult>, Failure> {
        let result = self
            .run(CallPriority::Normal, Statement::Replay, &key_of(id), ResultKind::Rows)
            .await?;
        Ok(result.rows.first().map(read_replay).transpose()?)
    }

    /// Grants the lease, or returns the status of a record that is busy or complete. `has_row` is a
    /// hint that the row exists. `Enter` would then waste a round trip, because only `Grant` can
    /// take over an existing row.
    pub(crate) async fn acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        has_row: bool,
    ) -> Result<Acquired, Failure> {
        let mut statement = Statement::Enter;
        if !self.returning || has_row {
            statement = Statement::Grant;
        }
        let (deadline, mut retries) = (self.deadline(), 0);
        let find = || self.read_record_until(deadline, CallPriority::Normal, Statement::Find, id);
        loop {
            let upserted = match self.upsert(deadline, statement, id, req).await {
                Ok(upserted) => upserted,
                // Usually, another open transaction, such as a joined completion (CMP-7), has
                // locked the row. The acquire does not wait until that transaction ends.
                Err(failure) if failure.recovery == Recovery::RowLocked => {
                    match find().await? {
                        Some(record) if record.is_held_by(req.owner) => return Err(failure),
                        None if retries == MAX_LOCK_RETRIES => return Err(failure),
                        None => {
                            retries += 1;
                            continue;
                        }
                        // The row exists, so do not repeat the upsert. Each attempt would occupy a
                        // connection for a second.
                        found => match RecordStatus::of(found, req) {
                            // The lease has ended, but the caller has to wait until the other
                            // transaction unlocks the row.
                            RecordStatus::Absent(Some(ended)) => return Ok(Acquired::Busy(ended)),
                            status => Upserted::NotGranted(status),
                        },
                    }
                }
                // A server that refuses writes can still replay complete records.
                Err(failure) if matches!(failure.recovery, Recovery::ReadOnly | Recovery::Full) => {
                    return match find().await.map(|found| RecordStatus::of(found, req)) {
                        Ok(RecordStatus::Complete(stored)) => Ok(Acquired::Complete(stored)),
                        _ => Err(failure),
                    };
                }
                Err(failure) => return Err(failure),
            };
            match upserted {
                Upserted::Granted(grant) => return Ok(Acquired::Granted(grant)),
                Upserted::NotGranted(RecordStatus::Complete(stored)) => {
                    return Ok(Acquired::Complete(stored));
                }
                Upserted::NotGranted(RecordStatus::Busy(lease)) => {
                    return Ok(Acquired::Busy(lease));
                }
                // Only `Statement::Grant` can take over an existing row. ACQ-8 allows a takeover to
                // cost a second round trip.
                Upserted::NotGranted(RecordStatus::Absent(Some(_)))
                    if statement == Statement::Enter =>
                {
                    statement = Statement::Grant;
                }
                // The lease was live when the upsert ran, and has ended since then. The answer says
                // that no time is left, so the caller asks again at once.
                Upserted::NotGranted(RecordStatus::Absent(Some(ended))) => {
                    return Ok(Acquired::Busy(ended));
                }
                // The row that the upsert found has since been deleted, so the next upsert can
                // insert a new row. The call's time limit ends the loop.
                Upserted::NotGranted(RecordStatus::Absent(None)) => {}
            }
        }
    }

    /// Runs one of the upserts. Takes one round trip, or two if the server cannot return the row
    /// and the key is in use. `Enter` never changes an existing row. If `Enter` finds a row that
    /// `Grant` has to take over or renew, the result is `Absent` with a lease that has no time
    /// left.
    async fn upsert(
        &self,
        deadline: Instant,
        statement: Statement,
        id: &Identity,
        req: &AcquireRequest,
    ) -> Result<Upserted, Failure> {
        let [scope, key] = key_of(id);
        let params = [
            scope,
            key,
            Param::Bytes(req.owner.as_bytes()),
            Param::Int(micros(req.lease)),
            Param::Int(micros(req.ttl)),
            req.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
            req.holder.as_ref().map(HolderNote::as_bytes).into(),
        ];
        let granted = |token, took_over| Upserted::Granted(Grant::new(token, req.lease, took_over));
        if self.returning {
            let result = self
                .run_until(deadline, CallPriority::Normal, statement, &params, ResultKind::Rows)
                .await?;
            let record = match result.rows.first().map(read_record).transpose()? {
                Some(record) if record.is_held_by(req.owner) => record,
                found => return Ok(Upserted::NotGranted(RecordStatus::of(found, req))),
            };
            // The caller's owner is in the record. After `Grant`, that means that the lease was
            // granted. After `Enter`, the lease was granted only if all of it is left. Otherwise,
            // the row already existed, and `Grant` has to renew its lease (ACQ-9).
            let left = record.remaining_lease(record.token).map(micros);
            if statement == Statement::Grant || left == Some(micros(req.lease)) {
                return Ok(granted(record.token, record.takeovers > 0));
            }
            let ended = LiveLease::new(Duration::ZERO, record.token);
            return Ok(Upserted::NotGranted(RecordStatus::Absent(Some(ended))));
        }
        let (priority, statement) = (CallPriority::Normal, Statement::GrantPortable);
        let result =
            self.run_until(deadline, priority, statement, &params, ResultKind::Counts).await?;
        if result.insert_id != 0 {
            return Ok(granted(FencingToken::new(result.insert_id / 2), result.insert_id % 2 == 1));
        }
        let found = self.read_record_until(deadline, priority, Statement::Find, id).await?;
        Ok(Upserted::NotGranted(RecordStatus::of(found, req)))
    }
}
