// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transitions of a record. Each transition runs inside a write transaction that the caller
//! begins and commits.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, ForceAction, ForceRequest, Forced, Grant,
    HolderNote,
};
use retryproof_core::{Error, ErrorKind, FencingToken, Identity, OwnerId, Result, Tombstone};
use retryproof_store_kit::{Record, RecordPhase};
use rusqlite::{CachedStatement, Connection};

use crate::connection::{self, Overwrite};
use crate::error::{Failure, classify};
use crate::record::{micros, read_record};
use crate::statement::{Statement, StatementTexts};

/// The maximum takeover count. Some stores keep this count in a 16-bit column.
const MAX_TAKEOVERS: u16 = 32_767;

/// A change that a caller requests.
#[derive(Debug)]
pub(crate) enum Transition {
    Acquire(Identity, AcquireRequest),
    Extend(Identity, OwnerId, Duration),
    Complete(Identity, OwnerId, Completion),
    Release(Identity, OwnerId),
    /// A change by an operator (OPS-3).
    Force(Identity, ForceRequest),
    /// Deletes at most this many expired records.
    Purge(usize),
    /// Claims the purge for this long (STO-6).
    ClaimPurge(Duration),
}

#[derive(Debug)]
pub(crate) enum TransitionResult {
    Acquired(Acquired),
    Fenced(FencedWrite),
    Forced(Forced),
    Purged(usize),
    Claimed(bool),
}

impl Transition {
    /// Returns the record that the transition changed, if any. Its waiters must be notified.
    pub(crate) fn changed_record(&self, result: &TransitionResult) -> Option<&Identity> {
        match (self, result) {
            (Self::Acquire(id, _), TransitionResult::Acquired(Acquired::Granted(_)))
            | (
                Self::Complete(id, ..) | Self::Release(id, _),
                TransitionResult::Fenced(FencedWrite::Applied),
            )
            | (Self::Force(id, _), TransitionResult::Forced(Forced::Applied)) => Some(id),
            _ => None,
        }
    }
}

/// One write transaction, with its statements, its time and its last token.
pub(crate) struct WriteTransaction<'a> {
    conn: &'a Connection,
    statements: &'a StatementTexts,
    /// The time for all transitions, read once after the lock is taken (ACQ-7).
    now: i64,
    /// The last token that was issued. It is written to the database before the commit (ACQ-10).
    last_token: Option<i64>,
    /// The statements that this transaction has taken from the connection's cache. It takes each
    /// statement only once, because a cache lookup costs as much as a small statement.
    prepared: [Option<CachedStatement<'a>>; Statement::COUNT],
}

impl<'a> WriteTransaction<'a> {
    pub(crate) fn new(conn: &'a Connection, statements: &'a StatementTexts, now: i64) -> Self {
        Self { conn, statements, now, last_token: None, prepared: Default::default() }
    }

    pub(crate) fn run(&mut self, transition: &Transition) -> Result<TransitionResult> {
        match transition {
            Transition::Acquire(id, req) => self.acquire(id, req).map(TransitionResult::Acquired),
            Transition::Extend(id, owner, lease) => {
                self.extend(id, *owner, *lease).map(TransitionResult::Fenced)
            }
            Transition::Complete(id, owner, done) => {
                self.complete(id, *owner, done).map(TransitionResult::Fenced)
            }
            Transition::Release(id, owner) => {
                self.release(id, *owner).map(TransitionResult::Fenced)
            }
            Transition::Force(id, req) => self.force(id, req).map(TransitionResult::Forced),
            Transition::Purge(limit) => self.purge(*limit).map(TransitionResult::Purged),
            Transition::ClaimPurge(at_most) => {
                self.claim_purge(*at_most).map(TransitionResult::Claimed)
            }
        }
    }

    /// Writes the token counter once for all grants of the transaction.
    pub(crate) fn finish(mut self) -> Result<(), rusqlite::Error> {
        if let Some(last) = self.last_token {
            self.prepared(Statement::SetFence)?.execute([last])?;
        }
        Ok(())
    }

    fn acquire(&mut self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        // Read the record again under the lock, because the earlier read might have seen an older
        // snapshot.
        let found = self.read_record(id)?;
        let (token, takeovers) = match &found {
            Some(record) if record.is_held_by(req.owner) => (record.token, record.takeovers),
            Some(Record { takeovers, phase: RecordPhase::InProgress(None), .. }) => {
                (self.draw()?, takeovers.saturating_add(1).min(MAX_TAKEOVERS))
            }
            _ => match Record::acquired(found, req) {
                Some(acquired) => return Ok(acquired),
                None => (self.draw()?, 0),
            },
        };
        let granted = self.execute(
            Statement::Grant,
            (
                id.scope().as_str().as_bytes(),
                id.key().expose().as_bytes(),
                req.owner.as_bytes(),
                i64::try_from(token.get()).unwrap_or(i64::MAX),
                self.after(req.lease),
                self.after(req.ttl),
                req.fingerprint.as_ref().map(|fp| fp.as_bytes()),
                self.now,
                takeovers,
                req.holder.as_ref().map(HolderNote::as_bytes),
            ),
        )?;
        if granted == 1 {
            Ok(Acquired::Granted(Grant::new(token, req.lease, takeovers > 0)))
        } else {
            Err(row_changed())
        }
    }

    fn extend(&mut self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let changed = self.execute(
            Statement::Extend,
            (
                id.scope().as_str().as_bytes(),
                id.key().expose().as_bytes(),
                owner.as_bytes(),
                self.after(lease),
            ),
        )?;
        Ok(if changed == 1 { FencedWrite::Applied } else { FencedWrite::NotOwner })
    }

    fn complete(
        &mut self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let (scope, key) = (id.scope().as_str().as_bytes(), id.key().expose().as_bytes());
        let expires_at = self.after(done.ttl);
        let changed = self.execute(
            Statement::Complete,
            (
                scope,
                key,
                owner.as_bytes(),
                expires_at,
                done.fingerprint.as_ref().map(|fp| fp.as_bytes()),
                &*done.value,
            ),
        )?;
        if changed == 1 {
            self.execute(Statement::PurgeEarlier, (scope, key, expires_at))?;
            return Ok(FencedWrite::Applied);
        }
        Ok(match self.read_record(id)? {
            Some(Record { owner: by, phase: RecordPhase::Complete(_), .. }) if by == owner => {
                FencedWrite::AlreadyApplied
            }
            _ => FencedWrite::NotOwner,
        })
    }

    fn release(&mut self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let changed = self.execute(
            Statement::Release,
            (id.scope().as_str().as_bytes(), id.key().expose().as_bytes(), owner.as_bytes()),
        )?;
        if changed == 1 {
            return Ok(FencedWrite::Applied);
        }
        Ok(match self.read_record(id)? {
            None | Some(Record { phase: RecordPhase::Released, .. }) => FencedWrite::AlreadyApplied,
            Some(_) => FencedWrite::NotOwner,
        })
    }

    /// Changes a record for an operator (OPS-3, OPS-4).
    fn force(&mut self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let found = self.read_record(id)?;
        if let Some(refusal) = Record::refusal(found, req) {
            return Ok(refusal);
        }
        connection::overwrite_deleted(self.conn, Overwrite::All).map_err(classify)?;
        let changed = self.force_change(id, req);
        // Reset the setting even if the change failed, because the connection outlives the
        // transaction. If both fail, return the error of the change.
        let reset = connection::overwrite_deleted(self.conn, Overwrite::InPlace);
        let changed = changed?;
        reset.map_err(classify)?;
        if changed == 1 { Ok(Forced::Applied) } else { Err(row_changed()) }
    }

    /// Runs the statement of an operator's change, and returns the number of changed rows.
    fn force_change(&mut self, id: &Identity, req: &ForceRequest) -> Result<usize> {
        let (scope, key) = (id.scope().as_str().as_bytes(), id.key().expose().as_bytes());
        let token = i64::try_from(req.token.get()).unwrap_or(i64::MAX);
        match &req.action {
            ForceAction::Release | ForceAction::Forget => {
                self.execute(Statement::ForceDelete, (scope, key, token))
            }
            ForceAction::Resolve { by, done } => {
                let expires_at = self.after(done.ttl);
                let fingerprint = done.fingerprint.as_ref().map(|fp| fp.as_bytes());
                self.execute(
                    Statement::ForceResolve,
                    (scope, key, token, by.as_bytes(), expires_at, fingerprint, &*done.value),
                )
            }
            ForceAction::Erase => {
                let tombstone = Tombstone::new();
                let value: &[u8] = tombstone.envelope();
                self.execute(Statement::ForceErase, (scope, key, token, value))
            }
        }
    }

    fn purge(&mut self, limit: usize) -> Result<usize> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.execute(Statement::Purge, (self.now, limit))
    }

    fn claim_purge(&mut self, at_most: Duration) -> Result<bool> {
        let length = self.after(at_most) - self.now;
        Ok(self.execute(Statement::ClaimPurge, (self.now, length))? == 1)
    }

    /// Issues a token that is larger than every earlier token in the database file (ACQ-10). The
    /// transaction holds the write lock, so no other process issues a token at the same time.
    fn draw(&mut self) -> Result<FencingToken> {
        let last = match self.last_token {
            Some(last) => last,
            None => self
                .prepared(Statement::Fence)
                .and_then(|statement| statement.query_row([], |row| row.get(0)))
                .map_err(counter_error)?,
        };
        let next = last.checked_add(1).ok_or_else(|| {
            Error::corrupt(
                "the fencing token counter is at its maximum, which normal use never reaches, so its row \
                 must be damaged; restore the database",
            )
        })?;
        let token = self.now.max(next);
        self.last_token = Some(token);
        Ok(FencingToken::new(u64::try_from(token).unwrap_or(0)))
    }

    fn read_record(&mut self, id: &Identity) -> Result<Option<Record>> {
        let now = self.now;
        read_record(self.prepared(Statement::Read).map_err(classify)?, id, || now)
            .map_err(Failure::into_error)
    }

    fn execute(&mut self, statement: Statement, params: impl rusqlite::Params) -> Result<usize> {
        self.prepared(statement).and_then(|statement| statement.execute(params)).map_err(classify)
    }

    fn prepared(
        &mut self,
        statement: Statement,
    ) -> Result<&mut CachedStatement<'a>, rusqlite::Error> {
        let slot = &mut self.prepared[statement as usize];
        match slot {
            Some(prepared) => Ok(prepared),
            None => Ok(slot.insert(self.conn.prepare_cached(self.statements.get(statement))?)),
        }
    }

    /// Returns the transaction's time plus `time`, in microseconds since 1970.
    fn after(&self, time: Duration) -> i64 {
        self.now.saturating_add(micros(time))
    }
}

/// Returns the error for a token counter that cannot be read. The counter's row is part of the
/// schema. Without that row, no token can be issued (ACQ-10).
fn counter_error(error: rusqlite::Error) -> Error {
    match error {
        rusqlite::Error::QueryReturnedNoRows => Error::new(
            ErrorKind::Schema,
            "the fencing token counter is missing; restore the database, or apply the \
             shipped SQL again",
        ),
        other => classify(other),
    }
}

/// Returns the error for a row that the transaction has read, but that its next statement no longer
/// finds.
fn row_changed() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the record was not changed, because its row changed although the store held the write \
         lock; this is a bug in retryproof-sqlite, or a trigger changes the table",
    )
}

/// Returns the error for a result of the wrong type. Each transition has one type of result, so
/// only a bug in this crate can cause this error.
pub(crate) fn unexpected_answer() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the writing thread returned the result of another transition; this is a bug in \
         retryproof-sqlite",
    )
}
