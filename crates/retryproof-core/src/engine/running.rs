// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracked actions: `max-running`, and what `shutdown` waits for (RUN-5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::error::ErrorKind;

#[derive(Debug)]
pub(crate) struct Running {
    count: AtomicUsize,
    /// Completions and releases that go on in the background.
    endings: AtomicUsize,
    max: usize,
    closing: AtomicBool,
    /// Told when a permit comes back, or an end is over.
    freed: Notify,
    /// Tells one of those that wait for a permit that one came back, or all that none is given any
    /// more.
    permits: Notify,
    /// How many want to be told: a replay takes a permit and gives it back, and seldom is there
    /// anybody.
    watchers: AtomicUsize,
}

/// Leave for one tracked action to run; given back at its end, or while its caller waits.
#[derive(Debug)]
pub struct Permit(Arc<Running>);

/// A permit of a call that may turn out to need none.
#[derive(Debug)]
pub(crate) struct Leave<'a>(&'a Arc<Running>);

impl Leave<'_> {
    /// The action runs.
    pub(crate) fn keep(self) -> Permit {
        let permit = Permit(Arc::clone(self.0));
        // It stands for the same count.
        std::mem::forget(self);
        permit
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Running {
    pub(crate) fn new(max: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            endings: AtomicUsize::new(0),
            max: max.unwrap_or(usize::MAX),
            closing: AtomicBool::new(false),
            freed: Notify::new(),
            permits: Notify::new(),
            watchers: AtomicUsize::new(0),
        })
    }

    /// A permit, unless `max-running` are out or no more are given.
    ///
    /// It counts, then looks whether it is closed; `shutdown` closes, then counts. So one sees the
    /// other, and no action begins behind the back of a shutdown that found none; that takes one
    /// order of all four (`SeqCst`).
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Leave<'_>, ErrorKind> {
        if self.is_closing() {
            return Err(ErrorKind::ShuttingDown);
        }
        let counted = self.count.fetch_update(Ordering::SeqCst, Ordering::Acquire, |count| {
            (count < self.max).then_some(count + 1)
        });
        let leave = counted.is_ok().then(|| Leave(self));
        if self.is_closing() {
            return Err(ErrorKind::ShuttingDown);
        }
        leave.ok_or(ErrorKind::TooBusy)
    }

    /// Counts, then looks for watchers; they count themselves, then look at the count. So one sees
    /// the other.
    fn give_back(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
            self.permits.notify_one();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// What a shutdown waits for: tracked actions, and the ends of any that have outlived their
    /// callers (CMP-3).
    pub(crate) fn left(&self) -> usize {
        self.count() + self.endings.load(Ordering::SeqCst)
    }

    /// Counts an end that goes on in the background; it takes no permit.
    pub(crate) fn ending(self: &Arc<Self>) -> Ending {
        self.endings.fetch_add(1, Ordering::SeqCst);
        Ending(Arc::clone(self))
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.permits.notify_waiters();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A permit, as soon as there is one. Those that wait are woken one by one, in their order; a
    /// call that finds one free may take it before them.
    pub(crate) async fn permit(self: &Arc<Self>) -> Result<Leave<'_>, ErrorKind> {
        let _watching = self.watch();
        loop {
            let freed = self.permits.notified();
            match self.admit() {
                Err(ErrorKind::TooBusy) => freed.await,
                answer => return answer,
            }
        }
    }

    fn watch(&self) -> Watching<'_> {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        Watching(self)
    }

    /// Resolves when nothing is left.
    pub(crate) async fn idle(&self) {
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
}

struct Watching<'a>(&'a Running);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An end that goes on in the background.
#[derive(Debug)]
pub(crate) struct Ending(Arc<Running>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.endings.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_waiters();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_5_no_permit_is_given_behind_a_shutdown_that_found_nothing_running() {
        let rounds: Vec<_> = (0..20_000).map(|_| Running::new(None)).collect();
        let ready = AtomicUsize::new(0);
        let together = |round: usize| {
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 * (round + 1) {
                std::thread::yield_now();
            }
        };
        let (found, permits) = std::thread::scope(|scope| {
            let closer = scope.spawn(|| {
                let close = |(round, running): (usize, &Arc<Running>)| {
                    together(round);
                    running.close();
                    running.count()
                };
                rounds.iter().enumerate().map(close).collect::<Vec<_>>()
            });
            let admit = |(round, running): (usize, &Arc<Running>)| {
                together(round);
                running.admit().ok().map(Leave::keep)
            };
            let permits: Vec<_> = rounds.iter().enumerate().map(admit).collect();
            (closer.join().unwrap(), permits)
        });
        for (found, permit) in found.iter().zip(&permits) {
            assert!(
                permit.is_none() || *found == 1,
                "an action runs, and the shutdown found {found}"
            );
        }
    }
}
