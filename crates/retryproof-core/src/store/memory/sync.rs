// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store synchronises with: the real thing, or under `--cfg loom` a model whose every
//! interleaving is run.
//!
//! The model's `Notify` has the promises that tokio's documents and no more: a `Notified` hears
//! every `notify_waiters` after its creation. Its sleep has no time limit, so a lost wake-up is a
//! deadlock that loom reports.

#[cfg(not(loom))]
mod real {
    use std::future::Future;
    use std::time::Duration;

    pub(in crate::store::memory) use crate::lock::{Mutex, MutexGuard};
    pub(in crate::store::memory) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
    pub(in crate::store::memory) use tokio::sync::Notify;

    /// Awaits `event` for at most `limit`.
    pub(in crate::store::memory) async fn within(limit: Duration, event: impl Future<Output = ()>) {
        let _ = tokio::time::timeout(limit, event).await;
    }
}

#[cfg(loom)]
mod model {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    pub(in crate::store::memory) use loom::sync::MutexGuard;
    pub(in crate::store::memory) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

    /// the face of `crate::lock` on loom's mutex: nothing is ever poisoned.
    pub(in crate::store::memory) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in crate::store::memory) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(in crate::store::memory) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("loom ends at the first panic")
        }
    }

    pub(in crate::store::memory) struct Notify(Mutex<Waiting>);

    struct Waiting {
        round: u64,
        wakers: Vec<Waker>,
    }

    impl Notify {
        pub(in crate::store::memory) fn new() -> Self {
            Self(Mutex::new(Waiting { round: 0, wakers: Vec::new() }))
        }

        pub(in crate::store::memory) fn notified(&self) -> Notified<'_> {
            Notified { notify: self, since: self.0.lock().round }
        }

        pub(in crate::store::memory) fn notify_waiters(&self) {
            let wakers = {
                let mut waiting = self.0.lock();
                waiting.round += 1;
                std::mem::take(&mut waiting.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    pub(in crate::store::memory) struct Notified<'a> {
        notify: &'a Notify,
        since: u64,
    }

    impl Notified<'_> {
        /// Whether it has been notified; the model's `Notified` is enabled from its creation on.
        pub(in crate::store::memory) fn enable(self: Pin<&mut Self>) -> bool {
            self.notify.0.lock().round != self.since
        }
    }

    impl Future for Notified<'_> {
        type Output = ();

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            let mut waiting = self.notify.0.lock();
            if waiting.round != self.since {
                return Poll::Ready(());
            }
            waiting.wakers.push(context.waker().clone());
            Poll::Pending
        }
    }

    pub(in crate::store::memory) async fn within(
        _limit: Duration,
        event: impl Future<Output = ()>,
    ) {
        event.await;
    }
}

#[cfg(loom)]
pub(super) use model::{AtomicBool, AtomicI64, AtomicU64, Mutex, MutexGuard, Notify, within};
#[cfg(not(loom))]
pub(super) use real::{AtomicBool, AtomicI64, AtomicU64, Mutex, MutexGuard, Notify, within};
