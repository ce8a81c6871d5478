// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CoarseTimeout`]: a coarse time limit for many calls, without a timer for each.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

/// The longest time by which a call can overrun its deadline.
const TICK: Duration = Duration::from_millis(100);

/// A coarse time limit for a store's calls to its server, without a timer for each call. Such a
/// timer could wake the runtime's timer thread, which costs a tenth of the time that a replay
/// takes.
///
/// One task wakes all waiting calls ten times a second. The task sleeps while no call waits.
pub struct CoarseTimeout {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    tick: Notify,
    /// Whether a call has waited since the last tick.
    has_waited: AtomicBool,
    /// Whether the task sleeps until `first_wait` is notified.
    is_asleep: AtomicBool,
    first_wait: Notify,
}

impl CoarseTimeout {
    /// Starts the task on the current runtime. If that runtime ends before the store, each call sets
    /// its own timer.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(run(Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Returns the output of `future`. If `future` has not ended by the deadline, returns `None` at
    /// most a tenth of a second later.
    ///
    /// # Cancel safety
    /// Dropping the call drops `future`.
    pub async fn until<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        // If the task has ended together with its runtime, set a timer for this call alone.
        if self.task.is_finished() {
            return timeout_at(deadline, future).await.ok();
        }
        let mut tick = pin!(self.shared.tick.notified());
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            self.shared.wait();
            while tick.as_mut().poll(cx).is_ready() {
                if Instant::now() >= deadline {
                    return Poll::Ready(None);
                }
                tick.set(self.shared.tick.notified());
            }
            Poll::Pending
        })
        .await
    }
}

impl fmt::Debug for CoarseTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoarseTimeout").finish_non_exhaustive()
    }
}

impl Drop for CoarseTimeout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn wait(&self) {
        self.has_waited.store(true, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            self.first_wait.notify_one();
        }
    }
}

async fn run(shared: Arc<Shared>) {
    loop {
        if !shared.has_waited.swap(false, Ordering::SeqCst) {
            shared.is_asleep.store(true, Ordering::SeqCst);
            // Check once more: a call that began to wait just before `is_asleep` was set does not
            // wake the task.
            if !shared.has_waited.load(Ordering::SeqCst) {
                shared.first_wait.notified().await;
            }
            shared.is_asleep.store(false, Ordering::SeqCst);
        }
        sleep(TICK).await;
        shared.tick.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sto_5_what_hangs_is_ended_and_what_does_not_is_not() {
        let timer = CoarseTimeout::start();
        for _ in 0..3 {
            let started = Instant::now();
            let deadline = started + Duration::from_millis(30);
            assert_eq!(timer.until(deadline, std::future::pending::<()>()).await, None);
            let took = started.elapsed();
            assert!(took >= Duration::from_millis(30) && took < Duration::from_secs(5), "{took:?}");
            assert_eq!(timer.until(Instant::now(), std::future::ready(7)).await, Some(7));
            // Let the task fall asleep before the next round.
            sleep(3 * TICK).await;
        }
    }

    #[test]
    fn sto_5_a_store_that_outlives_its_runtime_still_ends_its_statements() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
        };
        let first = runtime();
        let timer = first.block_on(async { CoarseTimeout::start() });
        drop(first);
        let ended = runtime().block_on(async {
            timer
                .until(Instant::now() + Duration::from_millis(30), std::future::pending::<()>())
                .await
        });
        assert_eq!(ended, None);
    }
}
