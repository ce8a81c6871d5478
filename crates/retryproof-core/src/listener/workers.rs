// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WorkerPool`] and [`batch`]: handle messages concurrently, up to a limit.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Reason, Verdict};
use crate::panics::{catch_panic, catch_panic_of};

/// Handles a bounded number of messages concurrently. Each message has its own task, so a slow
/// message does not delay the others. Use a pool in consumers that receive messages one by one, and
/// [`batch`] in consumers that fetch several at a time.
///
/// Dropping the pool drops the running work, so its leases run out and the messages are redelivered
/// (RUN-5). Call [`drain`](Self::drain) first.
#[derive(Debug)]
pub struct WorkerPool {
    slots: Arc<Semaphore>,
    running: JoinSet<()>,
}

/// The permission to handle one message, from [`WorkerPool::slot`].
#[derive(Debug)]
pub struct WorkerSlot {
    _permit: OwnedSemaphorePermit,
}

impl WorkerPool {
    /// Creates a pool that handles at most `concurrency` messages concurrently; zero counts as one.
    #[must_use]
    pub fn new(concurrency: usize) -> Self {
        let slots = concurrency.clamp(1, Semaphore::MAX_PERMITS);
        Self { slots: Arc::new(Semaphore::new(slots)), running: JoinSet::new() }
    }

    /// Waits for a free slot. Receive the next message only after you have a slot. A message that
    /// you have received before you have a slot cannot go to another consumer.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn slot(&mut self) -> WorkerSlot {
        while self.running.try_join_next().is_some() {}
        loop {
            // `acquire_owned` fails only if the semaphore is closed, which never happens.
            if let Ok(_permit) = Arc::clone(&self.slots).acquire_owned().await {
                return WorkerSlot { _permit };
            }
        }
    }

    /// Starts `work`, which handles one message and then answers the broker.
    pub fn spawn(&mut self, slot: WorkerSlot, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.running.spawn(async move {
            work.await;
            drop(slot);
        }));
    }

    /// Returns how many messages are being handled.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Waits until all work has finished, but no longer than `limit`. Then drops the work that is
    /// still running, and returns the number of dropped messages.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work continues.
    pub async fn drain(&mut self, limit: Duration) -> usize {
        drain(&mut self.running, limit).await
    }
}

/// Waits until all tasks have finished, but no longer than `limit`. Then drops the tasks that are
/// still running, and returns their number. Use this function in a listener that limits its tasks
/// without a [`WorkerPool`].
///
/// # Cancel safety
/// If the future is dropped, the tasks continue.
pub async fn drain(running: &mut JoinSet<()>, limit: Duration) -> usize {
    let all = async { while running.join_next().await.is_some() {} };
    let _ = timeout(limit, all).await;
    let left = running.len();
    running.shutdown().await;
    left
}

/// Handles all `messages`, at most `concurrency` at a time. Answers each message as soon as its
/// work has ended (LST-2), without waiting for slower messages. If `work` or its future panics, the
/// message gets a nack with [`Reason::Panicked`].
///
/// # Cancel safety
/// Dropping the future drops the running work, so its leases run out (RUN-5) and unanswered
/// messages are redelivered.
pub async fn batch<M, W, Working, A, Answering>(
    messages: impl IntoIterator<Item = M>,
    concurrency: usize,
    work: W,
    answer: A,
) where
    M: Send + 'static,
    W: Fn(&M) -> Working,
    Working: Future<Output = Verdict> + Send + 'static,
    A: Fn(M, Verdict) -> Answering + Clone + Send + 'static,
    Answering: Future<Output = ()> + Send,
{
    let mut workers = WorkerPool::new(concurrency);
    for message in messages {
        let slot = workers.slot().await;
        let answer = answer.clone();
        // Catch a panic in the call that creates the future, so that the other messages are still
        // handled.
        let working = catch_panic(|| work(&message));
        workers.spawn(slot, async move {
            let verdict = match working {
                Ok(working) => verdict_of(working).await,
                Err(_) => Verdict::nack(Reason::Panicked),
            };
            answer(message, verdict).await;
        });
    }
    while workers.running.join_next().await.is_some() {}
}

/// Awaits the work's verdict. If the work panics, the verdict is a nack with [`Reason::Panicked`],
/// so that the message is still answered. If an engine ran the work, that engine has already freed
/// or held the key (RUN-4).
pub async fn verdict_of(work: impl Future<Output = Verdict>) -> Verdict {
    catch_panic_of(pin!(work)).await.unwrap_or_else(|_| Verdict::nack(Reason::Panicked))
}
