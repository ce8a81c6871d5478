// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Group`]: what many callers complete at once goes in one statement, with one commit for all of
//! them.
//!
//! A few completions run alone, each on its connection. Whoever comes while they are under way
//! waits in line, and the first that ends sends off all who wait by then; so nobody waits for
//! company, and the busier the server is, the more commits are shared. Each record is still changed
//! in one step by its own owner (CMP-1, CMP-2). Whoever a shared statement that failed carried goes
//! alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::Completion;
use retryproof_core::{Error, Identity, OwnerId};
use sqlx_core::row::Row as _;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::classify;
use crate::pool::{Failed, Lane, Pool};
use crate::statement::Sql;

/// Completions under way, alone or together, before the next ones wait in line.
const SLOTS: usize = 4;
/// Records of one statement, and bytes of their values.
const MOST: usize = 32;
const MOST_BYTES: usize = 256 * 1_024;
/// A larger value goes alone: it would keep the others waiting.
const LARGE: usize = 16 * 1_024;
/// Who has waited in line for so long goes alone: rows that somebody has locked hold up others for
/// no longer.
const PATIENCE: Duration = Duration::from_millis(250);

/// The completions of one store.
#[derive(Clone)]
pub(crate) struct Group(Arc<Shared>);

struct Shared {
    pool: Arc<Pool>,
    sql: Arc<Sql>,
    runtime: Handle,
    patience: Duration,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    under_way: usize,
    /// Names who waits.
    next: u64,
    waiting: VecDeque<Waiting>,
}

/// One completion in line.
pub(crate) struct Waiting {
    number: u64,
    pub(crate) id: Identity,
    pub(crate) owner: OwnerId,
    pub(crate) done: Completion,
    /// Whether it took effect; nothing, when that is not known.
    tell: oneshot::Sender<bool>,
}

#[cfg(test)]
impl Waiting {
    pub(crate) fn of(id: &Identity, owner: OwnerId, done: &Completion) -> Self {
        Self { number: 0, id: id.clone(), owner, done: done.clone(), tell: oneshot::channel().0 }
    }
}

/// How a completion goes on.
pub(crate) enum Turn {
    /// Alone. The place is kept until it has ended.
    Alone(Option<Slot>),
    /// It was done, with others.
    Done,
    /// It was sent with others, and found no lease of its owner's.
    Refused,
}

/// A place among those under way. Given up, it sends off all who wait.
pub(crate) struct Slot {
    group: Group,
    /// It was handed to a task that has not begun.
    is_waiting: bool,
}

impl Group {
    /// To be called inside the runtime that serves the store, whose calls may take `most`.
    pub(crate) fn new(pool: Arc<Pool>, sql: Arc<Sql>, most: Duration) -> Self {
        let (runtime, line) = (Handle::current(), Mutex::default());
        Self(Arc::new(Shared { pool, sql, runtime, patience: most / 2, line }))
    }

    /// Waits for a turn, until `deadline` at most. Dropped in line, the completion is not sent;
    /// dropped later, it may take effect, as any that was sent.
    pub(crate) async fn turn(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
        deadline: Instant,
    ) -> Turn {
        // Behind a pooler each statement is a text of its own.
        if done.value.len() > LARGE || !self.0.pool.is_direct() {
            return Turn::Alone(None);
        }
        let (number, mut told) = {
            let mut line = self.0.line.lock();
            if line.under_way < SLOTS {
                line.under_way += 1;
                return Turn::Alone(Some(Slot { group: self.clone(), is_waiting: false }));
            }
            let (tell, told) = oneshot::channel();
            let number = line.next;
            line.next += 1;
            line.waiting.push_back(Waiting {
                number,
                id: id.clone(),
                owner,
                done: done.clone(),
                tell,
            });
            (number, told)
        };
        let is_done = match timeout(PATIENCE, &mut told).await {
            Ok(told) => told.ok(),
            Err(_) if self.leaves(number) => None,
            // It was sent meanwhile.
            Err(_) => timeout_at(deadline, told).await.ok().and_then(Result::ok),
        };
        match is_done {
            Some(true) => Turn::Done,
            Some(false) => Turn::Refused,
            None => Turn::Alone(None),
        }
    }

    /// Whether it was still in line, and no longer is.
    fn leaves(&self, number: u64) -> bool {
        let mut line = self.0.line.lock();
        let place = line.waiting.iter().position(|waiting| waiting.number == number);
        place.is_some_and(|place| line.waiting.remove(place).is_some())
    }

    /// Those who go next, together; nobody keeps the place when nobody waits.
    fn next(&self) -> Vec<Waiting> {
        let mut line = self.0.line.lock();
        let (mut all, mut bytes) = (Vec::new(), 0);
        while let Some(first) = line.waiting.front() {
            bytes += first.done.value.len();
            if all.len() == MOST || (bytes > MOST_BYTES && !all.is_empty()) {
                break;
            }
            all.extend(line.waiting.pop_front().filter(|waiting| !waiting.tell.is_closed()));
        }
        if all.is_empty() {
            line.under_way -= 1;
        }
        all
    }

    async fn send(&self, mut all: Vec<Waiting>) {
        // In one order everywhere: two statements do not wait for each other.
        all.sort_by(|one, other| {
            let keys = one.id.key().expose().cmp(other.id.key().expose());
            keys.then_with(|| one.id.scope().as_str().cmp(other.id.scope().as_str()))
        });
        let sent = async {
            let reply = self.0.pool.run(Lane::Beats, &self.0.sql.complete_many(&all)).await;
            let row = reply
                .map_err(Failed::into_error)?
                .row
                .ok_or_else(|| Error::unavailable("no answer"))?;
            row.try_get::<Vec<i64>, _>(0).map_err(|error| classify(&error))
        };
        // Half of what a call may take: the other half is for those who then go alone.
        let late = |_| Err(Error::unavailable("the server did not answer in time"));
        match timeout(self.0.patience, sent).await.unwrap_or_else(late) {
            Ok(done) => {
                for (place, waiting) in (1..).zip(all) {
                    // Gone, if nobody hears it.
                    let _ = waiting.tell.send(done.contains(&place));
                }
            }
            // They hear of nothing, and each learns by itself what is wrong.
            Err(error) => {
                tracing::debug!(%error, completions = all.len(), "a statement for many \
                     completions failed; each goes alone");
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_waiting {
            // The runtime is gone. Whoever is in line goes alone, and nobody keeps the place.
            let line = {
                let mut line = self.group.0.line.lock();
                line.under_way -= 1;
                std::mem::take(&mut line.waiting)
            };
            drop(line);
            return;
        }
        let all = self.group.next();
        if !all.is_empty() {
            // The place goes with them.
            let mut slot = Self { group: self.group.clone(), is_waiting: true };
            self.group.0.runtime.spawn(async move {
                slot.is_waiting = false;
                slot.group.send(all).await;
            });
        }
    }
}
