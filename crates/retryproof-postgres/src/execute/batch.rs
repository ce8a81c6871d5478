// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CompletionBatcher`] sends completions that arrive at the same time in one statement, so they
//! share a commit.
//!
//! Up to four completions run alone, each on its own connection. Further completions wait in a
//! queue. When one of the four ends, the next statement sends the completions that are queued by
//! then, up to a limit. The queue never waits for more completions to arrive. The higher the load,
//! the more completions share one commit. Each record is still changed in one step by its own owner
//! (CMP-1, CMP-2). If a shared statement fails, each of its completions is sent again alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::Completion;
use retryproof_core::{Error, Identity, OwnerId};
use retryproof_store_kit::CallPriority;
use sqlx_core::row::Row as _;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{Failure, classify};
use crate::execute::Executor;
use crate::statement::{OwnedCompletion, StatementTexts};

/// How many statements of the batcher run at the same time. Further completions are queued.
const SLOTS: usize = 4;
/// Limits for one statement: the number of records, and the bytes of their values.
const MAX_RECORDS: usize = 32;
const MAX_BYTES: usize = 256 * 1_024;
/// The largest value, in bytes, of a completion that can share a statement. A larger value would
/// delay the other completions.
const LARGE_VALUE: usize = 16 * 1_024;
/// How long a completion can be queued before it is sent alone. Locked rows of other records then
/// no longer delay the completion.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(250);

/// Sends the completions of one store.
#[derive(Clone)]
pub(crate) struct CompletionBatcher(Arc<Shared>);

struct Shared {
    executor: Arc<Executor>,
    statements: Arc<StatementTexts>,
    runtime: Handle,
    /// The time limit for a shared statement.
    batch_timeout: Duration,
    queue: Mutex<CompletionQueue>,
}

#[derive(Default)]
struct CompletionQueue {
    running: usize,
    /// The number of the next queued completion.
    next_number: u64,
    queued: VecDeque<QueuedCompletion>,
}

struct QueuedCompletion {
    number: u64,
    id: Identity,
    owner: OwnerId,
    done: Completion,
    /// Reports to the caller whether the completion took effect. If the outcome is unknown, the
    /// sender is dropped without a message.
    applied: oneshot::Sender<bool>,
}

impl QueuedCompletion {
    fn as_params(&self) -> OwnedCompletion<'_> {
        OwnedCompletion { id: &self.id, owner: &self.owner, done: &self.done }
    }
}

/// The outcome of a submitted completion.
pub(crate) enum BatchOutcome {
    /// The completion has to be sent alone. Keep the slot until the completion's statement has
    /// ended.
    Alone(Option<BatchSlot>),
    /// The completion took effect in a shared statement.
    Applied,
    /// The completion was sent in a shared statement, but changed no row.
    Refused,
}

/// A slot for one of the statements that can run at the same time. Dropping the slot sends the next
/// queued completions; if there are none, the slot becomes free.
pub(crate) struct BatchSlot {
    batcher: CompletionBatcher,
    /// Whether the slot was handed to a task that has not started yet.
    is_handed_over: bool,
}

impl CompletionBatcher {
    /// Creates a batcher. Call this inside the runtime that serves the store.
    pub(crate) fn new(
        executor: Arc<Executor>,
        statements: Arc<StatementTexts>,
        call_timeout: Duration,
    ) -> Self {
        let (runtime, queue) = (Handle::current(), Mutex::default());
        // If a batch times out, half of the call's time is left to send each completion alone.
        let batch_timeout = call_timeout / 2;
        Self(Arc::new(Shared { executor, statements, runtime, batch_timeout, queue }))
    }

    /// Takes a slot if one is free. Otherwise, queues the completion for up to `QUEUE_TIMEOUT`. If
    /// a shared statement takes the completion, waits for that statement's result until `deadline`.
    /// If the future is dropped while the completion is queued, the completion is not sent. If the
    /// future is dropped later, the completion can still take effect.
    pub(crate) async fn submit(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
        deadline: Instant,
    ) -> BatchOutcome {
        if done.value.len() > LARGE_VALUE || !self.0.executor.can_share() {
            return BatchOutcome::Alone(None);
        }
        let (number, mut applied) = {
            let mut queue = self.0.queue.lock();
            if queue.running < SLOTS {
                queue.running += 1;
                let slot = BatchSlot { batcher: self.clone(), is_handed_over: false };
                return BatchOutcome::Alone(Some(slot));
            }
            let (sender, receiver) = oneshot::channel();
            let number = queue.next_number;
            queue.next_number += 1;
            queue.queued.push_back(QueuedCompletion {
                number,
                id: id.clone(),
                owner,
                done: done.clone(),
                applied: sender,
            });
            (number, receiver)
        };
        let applied = match timeout(QUEUE_TIMEOUT, &mut applied).await {
            Ok(applied) => applied.ok(),
            Err(_) if self.remove(number) => None,
            // A shared statement already contains the completion, so wait for the result of that
            // statement.
            Err(_) => timeout_at(deadline, applied).await.ok().and_then(Result::ok),
        };
        match applied {
            Some(true) => BatchOutcome::Applied,
            Some(false) => BatchOutcome::Refused,
            None => BatchOutcome::Alone(None),
        }
    }

    /// Removes a completion from the queue. Returns `false` if the completion is no longer queued.
    fn remove(&self, number: u64) -> bool {
        let mut queue = self.0.queue.lock();
        let position = queue.queued.iter().position(|queued| queued.number == number);
        position.is_some_and(|position| queue.queued.remove(position).is_some())
    }

    /// Takes the completions for the next statement from the queue. If there are none, the slot
    /// becomes free.
    fn next_batch(&self) -> Vec<QueuedCompletion> {
        let mut queue = self.0.queue.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        // No queued value has more than `LARGE_VALUE` bytes, so one more value fits.
        while batch.len() < MAX_RECORDS
            && bytes + LARGE_VALUE <= MAX_BYTES
            && let Some(next) = queue.queued.pop_front()
        {
            if !next.applied.is_closed() {
                bytes += next.done.value.len();
                batch.push(next);
            }
        }
        if batch.is_empty() {
            queue.running -= 1;
        }
        batch
    }

    async fn send(&self, mut batch: Vec<QueuedCompletion>) {
        // Every statement changes its records in the same order, so that two statements cannot
        // deadlock.
        batch.sort_by(|one, other| {
            let keys = one.id.key().expose().cmp(other.id.key().expose());
            keys.then_with(|| one.id.scope().as_str().cmp(other.id.scope().as_str()))
        });
        let shared = &*self.0;
        let sent = async {
            let completions = batch.iter().map(QueuedCompletion::as_params);
            let statement = shared.statements.complete_many(completions);
            let result = shared.executor.run(CallPriority::Holder, &statement).await;
            let row = result
                .map_err(Failure::into_error)?
                .row
                .ok_or_else(|| Error::unavailable("the server returned no row"))?;
            row.try_get::<Vec<i64>, _>(0).map_err(|error| classify(&error))
        };
        let late = |_| Err(Error::unavailable("the server did not answer in time"));
        match timeout(shared.batch_timeout, sent).await.unwrap_or_else(late) {
            Ok(applied) => {
                for (position, queued) in (1..).zip(batch) {
                    // Ignore any error: sending fails only if the caller has dropped its future.
                    let _ = queued.applied.send(applied.contains(&position));
                }
            }
            // The senders are dropped here, so each caller sends its completion alone and gets its
            // own error.
            Err(error) => {
                tracing::debug!(%error, completions = batch.len(), "a batch of completions failed; \
                     each completion is now sent on its own");
            }
        }
    }
}

impl Drop for BatchSlot {
    fn drop(&mut self) {
        if self.is_handed_over {
            // The runtime ended before the task started. Free the slot, and drop the senders, so
            // that each queued completion is sent alone.
            let queued = {
                let mut queue = self.batcher.0.queue.lock();
                queue.running -= 1;
                std::mem::take(&mut queue.queued)
            };
            drop(queued);
            return;
        }
        let batch = self.batcher.next_batch();
        if !batch.is_empty() {
            let mut slot = Self { batcher: self.batcher.clone(), is_handed_over: true };
            self.batcher.0.runtime.spawn(async move {
                slot.is_handed_over = false;
                slot.batcher.send(batch).await;
            });
        }
    }
}
