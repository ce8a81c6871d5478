// SPDX-License-Identifier: MIT OR Apache-2.0
//! The acquire: one statement, and what is done when it meets another caller or the lock of an open
//! transaction.

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, Grant, Peeked};
use retryproof_core::{Error, FencingToken, Identity, Result};
use tokio::time::{Instant, timeout};

use crate::error::{classify, is_locked, refuses_writes};
use crate::execute::record_limit::Knock;
use crate::pool::{Failed, Lane};
use crate::record::{Answer, Phase, Record};
use crate::statement::Statement;
use crate::statement::bound::Reply;
use crate::store::PostgresStore;
use crate::waiters as wake;

/// How often an acquire is repeated that neither granted nor saw a live record; before each further
/// one a look decides.
const BLIND: u32 = 3;
const BLIND_AT_MOST: u32 = 20;
/// How long an acquire waits for a row that an open transaction has locked (CMP-7): at first on a
/// connection, later on the one connection that a locked record has, or without.
const PATIENCE: Duration = Duration::from_millis(250);
const AT_FIRST: Duration = Duration::from_millis(50);
/// How long one without a connection then waits for what another finds, before it looks itself.
const GRACE: Duration = Duration::from_millis(100);

/// What came of an acquire's statement.
enum Sent {
    Reply(Reply),
    /// It could not write; this is what stands there.
    Held(Acquired),
}

impl PostgresStore {
    pub(crate) async fn try_acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> Result<Acquired> {
        if self.known.has(id) {
            match self.seen(id, self.record(Statement::Find, id).await?) {
                Peeked::Complete(stored) => return Ok(Acquired::Complete(stored)),
                // A wrong guess is made once: the record was deleted, or is another one by now.
                Peeked::Busy { .. } | Peeked::Absent => self.known.forget(id),
            }
        }
        let began = Instant::now();
        for blind in 0..BLIND_AT_MOST {
            if blind >= BLIND {
                match self.record(Statement::Find, id).await? {
                    Some(Record { token, phase: Phase::Running(remaining), .. }) => {
                        return Ok(Acquired::Busy {
                            remaining: remaining.unwrap_or_default(),
                            token,
                        });
                    }
                    record => {
                        if let Peeked::Complete(stored) = self.seen(id, record) {
                            return Ok(Acquired::Complete(stored));
                        }
                    }
                }
                // Acquired and released again and again: once more, out of step with the others.
                tokio::time::sleep(self.wake.jitter(Duration::from_millis(1))).await;
            }
            let reply = match self.send(id, req, began).await? {
                Sent::Reply(reply) => reply,
                Sent::Held(answer) => return Ok(answer),
            };
            let Some(row) = &reply.row else { continue };
            match Answer::read(row)? {
                Answer::Granted { token, took_over } => {
                    self.wake.granted(id);
                    return Ok(Acquired::Granted(Grant::new(token, req.lease, took_over)));
                }
                Answer::Found(record) => match self.seen(id, record) {
                    Peeked::Complete(stored) => return Ok(Acquired::Complete(stored)),
                    Peeked::Busy { remaining, token } => {
                        return Ok(Acquired::Busy { remaining, token });
                    }
                    Peeked::Absent => {}
                },
                Answer::Lost => {}
            }
        }
        Err(Error::unavailable("the record changed faster than it could be read; try again"))
    }

    /// Sends the statement. Where an open transaction has locked the row it is sent again until its
    /// patience is over, by one caller of the record at a time; the others wait without a
    /// connection.
    async fn send(&self, id: &Identity, req: &AcquireRequest, began: Instant) -> Result<Sent> {
        let hash = wake::of(id);
        loop {
            let waited = began.elapsed();
            if waited >= PATIENCE && self.doors.is_locked(hash) {
                let since = Instant::now();
                let answer = self.held_back(id, true).await?;
                if let Some(Acquired::Busy { remaining: Duration::ZERO, token }) = answer {
                    self.doors.tell(hash, since, token);
                }
                if let Some(answer) = answer {
                    return Ok(Sent::Held(answer));
                }
            }
            if waited >= self.config.timeout {
                return Err(Error::unavailable(
                    "other callers of the record are in the way: an open transaction has locked \
                     its row, or they are too many at once",
                ));
            }
            let rest = PATIENCE.saturating_sub(waited).max(AT_FIRST);
            let pass = match self.doors.knock(hash) {
                Knock::In(pass) => pass,
                Knock::Out(mut queue) => {
                    let _ = timeout(rest + GRACE, queue.bell.as_mut()).await;
                    if let Some(token) = queue.verdict(began) {
                        return Ok(Sent::Held(locked_by(token)));
                    }
                    continue;
                }
            };
            let patience = if pass.is_probe { rest } else { AT_FIRST };
            match self.pool.run(Lane::Calls, &self.sql().acquire(id, req, patience)).await {
                Ok(reply) => {
                    pass.answered();
                    return Ok(Sent::Reply(reply));
                }
                Err(Failed::Driver(error)) if is_locked(&error) => pass.locked(),
                Err(Failed::Driver(error)) if refuses_writes(&error) => {
                    drop(pass);
                    let answer = self.held_back(id, false).await?;
                    return answer.map(Sent::Held).ok_or_else(|| classify(&error));
                }
                Err(failed) => return Err(failed.into_error()),
            }
        }
    }

    /// An open transaction, most likely a joined completion (CMP-7), holds the row, which
    /// `is_locked`; or the server takes no writes. What is live can be told all the same. `None`:
    /// nothing live is there.
    async fn held_back(&self, id: &Identity, is_locked: bool) -> Result<Option<Acquired>> {
        Ok(match self.record(Statement::Find, id).await? {
            Some(Record { token, phase: Phase::Running(None), .. }) if is_locked => {
                Some(locked_by(token))
            }
            record => match self.seen(id, record) {
                Peeked::Complete(stored) => Some(Acquired::Complete(stored)),
                Peeked::Busy { remaining, token } => Some(Acquired::Busy { remaining, token }),
                Peeked::Absent => None,
            },
        })
    }
}

/// Its lease is over, and nobody can have it yet.
fn locked_by(token: FencingToken) -> Acquired {
    Acquired::Busy { remaining: Duration::ZERO, token }
}
