// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transitions of a record, each run inside a write transaction that somebody else begins and
//! commits.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Completion, FencedWrite, Grant};
use retryproof_core::{Error, ErrorKind, FencingToken, Identity, OwnerId, Result};
use rusqlite::{CachedStatement, Connection};

use crate::error::classify;
use crate::record::{Phase, ReadError, Record, find};
use crate::schema::{Sql, Statement, fence_missing};

/// What a caller wants written.
#[derive(Debug)]
pub(crate) enum Step {
    Acquire(Identity, AcquireRequest),
    Extend(Identity, OwnerId, Duration),
    Complete(Identity, OwnerId, Completion),
    Release(Identity, OwnerId),
    /// At most this many rows.
    Purge(usize),
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Answer {
    Acquired(Acquired),
    Fenced(FencedWrite),
    Purged(usize),
}

impl Step {
    /// The record whose waiters must hear of the step, if it did something.
    pub(crate) fn wakes(&self, answer: &Answer) -> Option<&Identity> {
        match (self, answer) {
            (Self::Acquire(id, _), Answer::Acquired(Acquired::Granted(_)))
            | (
                Self::Complete(id, ..) | Self::Release(id, _),
                Answer::Fenced(FencedWrite::Applied),
            ) => Some(id),
            _ => None,
        }
    }
}

/// One write transaction: its statements, its instant, its tokens.
pub(crate) struct Tx<'a> {
    conn: &'a Connection,
    sql: &'a Sql,
    /// Read after the lock was taken (ACQ-7), and the same for all steps.
    now: i64,
    /// The last token drawn, once one was; it is written before the commit (ACQ-10).
    fence: Option<i64>,
    /// Taken from the connection's cache once for a whole batch: a look-up there costs as much as a
    /// small statement.
    prepared: [Option<CachedStatement<'a>>; Statement::COUNT],
}

impl<'a> Tx<'a> {
    pub(crate) fn new(conn: &'a Connection, sql: &'a Sql, now: i64) -> Self {
        Self { conn, sql, now, fence: None, prepared: Default::default() }
    }

    pub(crate) fn run(&mut self, step: &Step) -> Result<Answer> {
        match step {
            Step::Acquire(id, req) => self.acquire(id, req).map(Answer::Acquired),
            Step::Extend(id, owner, lease) => self.extend(id, *owner, *lease).map(Answer::Fenced),
            Step::Complete(id, owner, done) => self.complete(id, *owner, done).map(Answer::Fenced),
            Step::Release(id, owner) => self.release(id, *owner).map(Answer::Fenced),
            Step::Purge(limit) => self.purge(*limit).map(Answer::Purged),
        }
    }

    /// Writes the counter for all grants of the transaction at once.
    pub(crate) fn seal(mut self) -> Result<(), rusqlite::Error> {
        if let Some(last) = self.fence {
            self.prepared(Statement::SetFence)?.execute([last])?;
        }
        Ok(())
    }

    fn acquire(&mut self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        // Looked at again under the lock: the reader that missed it saw an older snapshot.
        let (token, took_over) = match self.record(id)? {
            None => (self.draw()?, false),
            Some(Record { phase: Phase::Done(Some(stored)), .. }) => {
                return Ok(Acquired::Complete(stored));
            }
            Some(Record { phase: Phase::Done(None), .. }) => (self.draw()?, false),
            Some(Record { owner, token, phase: Phase::Running(_) }) if owner == req.owner => {
                (token, self.taken(id)?)
            }
            Some(Record { token, phase: Phase::Running(Some(remaining)), .. }) => {
                return Ok(Acquired::Busy { remaining, token });
            }
            Some(Record { phase: Phase::Running(None), .. }) => (self.draw()?, true),
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
                took_over,
            ),
        )?;
        if granted == 1 {
            Ok(Acquired::Granted(Grant::new(token, req.lease, took_over)))
        } else {
            Err(Error::new(
                ErrorKind::Unexpected,
                "the row of the record changed under the write lock",
            ))
        }
    }

    /// How the lease of an owner that asks again was granted (ACQ-9, ACQ-12).
    fn taken(&mut self, id: &Identity) -> Result<bool> {
        let names = (id.scope().as_str().as_bytes(), id.key().expose().as_bytes());
        let taken =
            self.prepared(Statement::Taken).and_then(|sql| sql.query_row(names, |row| row.get(0)));
        taken.map_err(classify)
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
        Ok(match self.record(id)? {
            Some(Record { owner: by, phase: Phase::Done(_), .. }) if by == owner => {
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
        Ok(if self.record(id)?.is_none() {
            FencedWrite::AlreadyApplied
        } else {
            FencedWrite::NotOwner
        })
    }

    fn purge(&mut self, limit: usize) -> Result<usize> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.execute(Statement::Purge, (self.now, limit))
    }

    /// ACQ-10: under the write lock, larger than every token that this file ever gave.
    fn draw(&mut self) -> Result<FencingToken> {
        let last = match self.fence {
            Some(last) => last,
            None => self
                .prepared(Statement::Fence)
                .and_then(|statement| statement.query_row([], |row| row.get(0)))
                .map_err(fence_missing)?,
        };
        let next = last.checked_add(1).ok_or_else(|| {
            Error::corrupt(
                "the counter of fencing tokens is at its end, where no clock brings it; restore the database",
            )
        })?;
        let token = self.now.max(next);
        self.fence = Some(token);
        Ok(FencingToken::new(u64::try_from(token).unwrap_or(0)))
    }

    fn record(&mut self, id: &Identity) -> Result<Option<Record>> {
        let now = self.now;
        find(self.prepared(Statement::Find).map_err(classify)?, id, || now)
            .map_err(ReadError::into_error)
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
            None => Ok(slot.insert(self.conn.prepare_cached(self.sql.of(statement))?)),
        }
    }

    /// An instant in the future, in the file's unit.
    fn after(&self, time: Duration) -> i64 {
        self.now.saturating_add(i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
    }
}

/// Steps and answers go in pairs; this is for the compiler.
pub(crate) fn mixed_up() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the writer answered another step; this is a bug in retryproof-sqlite",
    )
}
