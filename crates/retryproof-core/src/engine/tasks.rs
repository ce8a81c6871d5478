// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tasks`] hands out the permits of tracked actions (`max-running`), runs lease endings in the
//! background, and notifies `shutdown` when all actions and endings are over (RUN-5). The callers
//! run the actions themselves.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;

#[derive(Debug)]
pub(super) struct Tasks {
    /// The number of permits that are taken.
    running: AtomicUsize,
    /// The number of completions and releases that continue in the background.
    endings: AtomicUsize,
    max_running: usize,
    closing: AtomicBool,
    /// Notified when a permit is given back or a background task has ended its lease.
    freed: Notify,
    /// Notifies one waiter when a permit is given back, and all waiters when the engine closes.
    permits: Notify,
    /// How many tasks listen to `freed` or `permits`. Usually the number is zero, so a replay,
    /// which takes a permit and gives it back, can skip the notifications.
    watchers: AtomicUsize,
}

/// Permission for one tracked action to run. The permit is given back when the action ends, and is
/// not held while the caller waits.
#[derive(Debug)]
pub struct Permit(Arc<Tasks>);

/// A permit that a call gives back unused if no action has to run. The permit borrows the `Tasks`,
/// so a replay changes no reference count.
#[derive(Debug)]
pub(super) struct BorrowedPermit<'a>(&'a Arc<Tasks>);

impl BorrowedPermit<'_> {
    /// Converts this permit into one that the call keeps, because an action will run.
    pub(super) fn keep(self) -> Permit {
        let permit = Permit(Arc::clone(self.0));
        // The new permit replaces the borrowed permit in the count. Forget the borrowed permit,
        // because dropping it would lower the count.
        std::mem::forget(self);
        permit
    }
}

impl Drop for BorrowedPermit<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Tasks {
    pub(super) fn new(max_running: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            running: AtomicUsize::new(0),
            endings: AtomicUsize::new(0),
            max_running: max_running.unwrap_or(usize::MAX),
            closing: AtomicBool::new(false),
            freed: Notify::new(),
            permits: Notify::new(),
            watchers: AtomicUsize::new(0),
        })
    }

    /// Hands out a permit, unless `max-running` permits are taken or the engine is closing.
    ///
    /// This method first counts the action, then checks whether the engine is closing. `shutdown`
    /// first closes the engine, then reads the count. Therefore either `shutdown` sees the new
    /// action, or this method refuses it. These four steps must have a single order, so they use
    /// `SeqCst`.
    pub(super) fn try_permit(self: &Arc<Self>) -> Result<BorrowedPermit<'_>, ErrorKind> {
        if self.is_closing() {
            return Err(ErrorKind::ShuttingDown);
        }
        let counted = self.running.fetch_update(Ordering::SeqCst, Ordering::Acquire, |running| {
            (running < self.max_running).then_some(running + 1)
        });
        let permit = counted.is_ok().then(|| BorrowedPermit(self));
        if self.is_closing() {
            return Err(ErrorKind::ShuttingDown);
        }
        permit.ok_or(ErrorKind::TooBusy)
    }

    /// Hands out a permit as soon as one is free. Waiters are woken one by one, in order. A call
    /// that finds a free permit can take it ahead of the waiters.
    pub(super) async fn permit(self: &Arc<Self>) -> Result<BorrowedPermit<'_>, ErrorKind> {
        let _watching = self.watch();
        loop {
            let freed = self.permits.notified();
            match self.try_permit() {
                Err(ErrorKind::TooBusy) => freed.await,
                answer => return answer,
            }
        }
    }

    /// Lowers the count, then checks for watchers. Watchers register, then check the count. At
    /// least one side therefore sees the other.
    fn give_back(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
            self.permits.notify_one();
        }
    }

    /// Returns how many tracked actions are running.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Returns the number of tracked actions and background lease endings that have not ended
    /// (CMP-3). A shutdown waits for both.
    pub(super) fn left(&self) -> usize {
        self.running() + self.endings.load(Ordering::SeqCst)
    }

    /// Resolves when no tracked action and no lease ending is left.
    pub(super) async fn idle(&self) {
        let _watching = self.watch();
        loop {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            if self.left() == 0 {
                return;
            }
            freed.await;
        }
    }

    /// Stops handing out permits.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.permits.notify_waiters();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Ends a lease in a task on `runtime`. A shutdown waits for the task. If the runtime has shut
    /// down, it drops the task, and the lease runs out instead.
    pub(super) fn end_in_background<F>(self: &Arc<Self>, runtime: &Handle, ending: F)
    where
        F: Future + Send + 'static,
    {
        self.endings.fetch_add(1, Ordering::SeqCst);
        let counted = BackgroundEnding(Arc::clone(self));
        drop(runtime.spawn(async move {
            drop(ending.await);
            drop(counted);
        }));
    }

    fn watch(&self) -> Watching<'_> {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        Watching(self)
    }
}

struct Watching<'a>(&'a Tasks);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts a background task that ends a lease and has no permit.
struct BackgroundEnding(Arc<Tasks>);

impl Drop for BackgroundEnding {
    fn drop(&mut self) {
        self.0.endings.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_waiters();
    }
}

/// Returns the caller's runtime.
pub(super) fn current_runtime() -> Result<Handle> {
    Handle::try_current().map_err(|error| {
        Error::new(
            ErrorKind::Unsupported,
            "the engine was used outside a tokio runtime; use the engine inside a runtime, or use \
             `blocking::Engine`",
        )
        .because(error)
    })
}

/// A future that continues on the runtime when its caller drops it, so that no store call is
/// dropped halfway (ACQ-11, RUN-5). A shutdown then waits for the future.
pub(super) struct DetachOnDrop<F: Future + Send + 'static> {
    future: Option<Pin<Box<F>>>,
    runtime: Handle,
    tasks: Arc<Tasks>,
}

impl<F: Future + Send + 'static> DetachOnDrop<F> {
    pub(super) fn new(runtime: Handle, tasks: Arc<Tasks>, future: F) -> Self {
        Self { future: Some(Box::pin(future)), runtime, tasks }
    }

    /// Awaits the future for at most `limit`. After that, the future continues in the background,
    /// and this method returns an error with the kind `Unavailable`.
    pub(super) async fn within(
        self,
        limit: Duration,
        operation: &'static str,
        identity: &Identity,
    ) -> Result<F::Output> {
        timeout(limit, self).await.map_err(|_| {
            Error::unavailable(
                "the store did not confirm the call in time; the call continues in the background",
            )
            .with("after", format_args!("{limit:?}"))
            .during(operation)
            .for_identity(identity)
        })
    }
}

impl<F: Future + Send + 'static> Future for DetachOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Take the future out while it is polled, so that a future that panics is not polled again
        // in the background.
        let Some(mut future) = self.future.take() else { return Poll::Pending };
        let answer = future.as_mut().poll(cx);
        if answer.is_pending() {
            self.future = Some(future);
        }
        answer
    }
}

impl<F: Future + Send + 'static> Drop for DetachOnDrop<F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.tasks.end_in_background(&self.runtime, future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_5_no_permit_is_given_behind_a_shutdown_that_found_nothing_running() {
        let rounds: Vec<_> = (0..20_000).map(|_| Tasks::new(None)).collect();
        let ready = AtomicUsize::new(0);
        let together = |round: usize| {
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 * (round + 1) {
                std::thread::yield_now();
            }
        };
        let (found, permits) = std::thread::scope(|scope| {
            let closer = scope.spawn(|| {
                let close = |(round, tasks): (usize, &Arc<Tasks>)| {
                    together(round);
                    tasks.close();
                    tasks.running()
                };
                rounds.iter().enumerate().map(close).collect::<Vec<_>>()
            });
            let permit = |(round, tasks): (usize, &Arc<Tasks>)| {
                together(round);
                tasks.try_permit().ok().map(BorrowedPermit::keep)
            };
            let permits: Vec<_> = rounds.iter().enumerate().map(permit).collect();
            (closer.join().unwrap(), permits)
        });
        for (found, permit) in found.iter().zip(&permits) {
            assert!(
                permit.is_none() || *found == 1,
                "an action runs, but the shutdown counted {found} actions"
            );
        }
    }
}
