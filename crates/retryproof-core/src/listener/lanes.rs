// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Lanes`] and [`batch`]: messages side by side, up to a bound, each answered by itself.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Reason, Verdict};
use crate::panics::{catch_panic, catch_panic_of};

/// A bounded number of messages in work at once, each on a task of its own: one that is slow, put
/// off or broken holds up no other. For consumers whose messages come one after the other; for
/// those that fetch, see [`batch`].
///
/// Dropped, it drops the work in the middle: leases run out and the messages come again (RUN-5).
/// Call [`finish`](Self::finish) first.
#[derive(Debug)]
pub struct Lanes {
    free: Arc<Semaphore>,
    running: JoinSet<()>,
}

/// A free lane; see [`Lanes::free`].
#[derive(Debug)]
pub struct Lane {
    /// Given back when the work is over.
    _permit: OwnedSemaphorePermit,
}

impl Lanes {
    /// At most `at_once` messages side by side; zero counts as one.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        let places = at_once.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(places)), running: JoinSet::new() }
    }

    /// Waits for a free lane. Take the next message only then: one that is taken and waits keeps
    /// others from getting it.
    ///
    /// # Cancel safety
    /// A drop leaves nothing behind.
    pub async fn free(&mut self) -> Lane {
        while self.running.try_join_next().is_some() {}
        loop {
            // The semaphore is never closed.
            if let Ok(_permit) = Arc::clone(&self.free).acquire_owned().await {
                return Lane { _permit };
            }
        }
    }

    /// Starts the work on one message, its answer included.
    pub fn run(&mut self, lane: Lane, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.running.spawn(async move {
            work.await;
            drop(lane);
        }));
    }

    /// How many are in work.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Waits for what is in work, for `at_most`; whatever is left then is dropped, and this says
    /// how many that were.
    ///
    /// # Cancel safety
    /// Dropped, the work goes on.
    pub async fn finish(&mut self, at_most: Duration) -> usize {
        let all = async { while self.running.join_next().await.is_some() {} };
        let _ = timeout(at_most, all).await;
        let left = self.running.len();
        self.running.shutdown().await;
        left
    }
}

/// Works on all `messages` with at most `at_once` of them side by side, and answers each by itself
/// as soon as its verdict is there (LST-2): the slow one in the middle keeps none of the others
/// from being answered. A panic of `work`, or of its future, is a verdict too.
///
/// # Cancel safety
/// Dropped, the work in the middle is dropped: leases run out (RUN-5), and messages not answered
/// come again.
pub async fn batch<M, W, Working, A, Answering>(
    messages: impl IntoIterator<Item = M>,
    at_once: usize,
    work: W,
    answer: A,
) where
    M: Send + 'static,
    W: Fn(&M) -> Working,
    Working: Future<Output = Verdict> + Send + 'static,
    A: Fn(M, Verdict) -> Answering + Clone + Send + 'static,
    Answering: Future<Output = ()> + Send,
{
    let mut lanes = Lanes::new(at_once);
    for message in messages {
        let lane = lanes.free().await;
        let answer = answer.clone();
        // It may panic before there is a future to poll. Then the other messages still have their
        // turn.
        let working = catch_panic(|| work(&message));
        lanes.run(lane, async move {
            let verdict = match working {
                Ok(working) => caught(working).await,
                Err(_) => Verdict::nack(Reason::Panicked),
            };
            answer(message, verdict).await;
        });
    }
    while lanes.running.join_next().await.is_some() {}
}

/// The work's verdict; of work that panics, a nack with the reason [`Reason::Panicked`], so that
/// the message is answered all the same. The engine has freed the key by then (RUN-4).
pub async fn caught(work: impl Future<Output = Verdict>) -> Verdict {
    catch_panic_of(pin!(work)).await.unwrap_or_else(|_| Verdict::nack(Reason::Panicked))
}
