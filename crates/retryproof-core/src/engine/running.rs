// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracked actions: `max-running`, and what `shutdown` waits for (RUN-5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Running {
    count: AtomicUsize,
    max: usize,
    closing: AtomicBool,
    /// Told when a permit comes back.
    freed: Notify,
}

/// Leave for one tracked action to run; given back at its end, or while its caller waits.
#[derive(Debug)]
pub struct Permit(Arc<Running>);

impl Running {
    pub(crate) fn new(max: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            max: max.unwrap_or(usize::MAX),
            closing: AtomicBool::new(false),
            freed: Notify::new(),
        })
    }

    /// A permit, unless `max-running` are out.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Permit> {
        self.count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count < self.max).then_some(count + 1)
            })
            .ok()
            .map(|_| Permit(Arc::clone(self)))
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Resolves when a permit comes back after this call.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Resolves when no tracked action runs.
    pub(crate) async fn idle(&self) {
        loop {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_waiters();
    }
}
