// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Pulse`]: a coarse time limit for many calls, without a timer for each.

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

/// How late a call may be ended.
const BEAT: Duration = Duration::from_millis(100);

/// A coarse time limit for a store's calls to its server, without a timer for each call. Setting a
/// timer may wake the runtime's timer thread, which costs a tenth of a replay.
///
/// One task wakes all waiting calls ten times a second. It sleeps while no call waits.
pub struct Pulse {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    beat: Notify,
    /// Whether a call has waited since the last beat.
    waited: AtomicBool,
    /// Whether the task sleeps until `rouse`.
    asleep: AtomicBool,
    rouse: Notify,
}

impl Pulse {
    /// Starts the task on the current runtime. If that runtime ends before the store, each call sets
    /// its own timer.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(run(Arc::clone(&shared)));
        Self { shared, task }
    }

    /// The output of `future`, or `None` at most a tenth of a second after the deadline.
    ///
    /// # Cancel safety
    /// Dropping the call drops `future`.
    pub async fn until<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        // The runtime of the task is gone.
        if self.task.is_finished() {
            return timeout_at(deadline, future).await.ok();
        }
        let mut beat = pin!(self.shared.beat.notified());
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            self.shared.wait();
            while beat.as_mut().poll(cx).is_ready() {
                if Instant::now() >= deadline {
                    return Poll::Ready(None);
                }
                beat.set(self.shared.beat.notified());
            }
            Poll::Pending
        })
        .await
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").finish_non_exhaustive()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn wait(&self) {
        self.waited.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.rouse.notify_one();
        }
    }
}

async fn run(shared: Arc<Shared>) {
    loop {
        if !shared.waited.swap(false, Ordering::SeqCst) {
            shared.asleep.store(true, Ordering::SeqCst);
            // A call that began to wait just before that store did not see it.
            if !shared.waited.load(Ordering::SeqCst) {
                shared.rouse.notified().await;
            }
            shared.asleep.store(false, Ordering::SeqCst);
        }
        sleep(BEAT).await;
        shared.beat.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sto_5_what_hangs_is_ended_and_what_does_not_is_not() {
        let pulse = Pulse::start();
        for _ in 0..3 {
            let started = Instant::now();
            let deadline = started + Duration::from_millis(30);
            assert_eq!(pulse.until(deadline, std::future::pending::<()>()).await, None);
            let took = started.elapsed();
            assert!(took >= Duration::from_millis(30) && took < Duration::from_secs(5), "{took:?}");
            assert_eq!(pulse.until(Instant::now(), std::future::ready(7)).await, Some(7));
            // The task falls asleep in between.
            sleep(3 * BEAT).await;
        }
    }

    #[test]
    fn sto_5_a_store_that_outlives_its_runtime_still_ends_its_statements() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
        };
        let first = runtime();
        let pulse = first.block_on(async { Pulse::start() });
        drop(first);
        let ended = runtime().block_on(async {
            pulse
                .until(Instant::now() + Duration::from_millis(30), std::future::pending::<()>())
                .await
        });
        assert_eq!(ended, None);
    }
}
