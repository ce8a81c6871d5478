// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's synchronisation primitives: types of std and tokio or, under `--cfg loom`, a model
//! in which loom tries every interleaving.
//!
//! The model's `Notify` promises exactly what tokio documents: a `Notified` receives every
//! `notify_waiters` call made after its creation. Waits have no time limit in the model, so a lost
//! wake-up becomes a deadlock, which loom reports.

#[cfg(not(loom))]
mod real {
    use std::future::Future;
    use std::sync::PoisonError;
    use std::time::Duration;

    pub(crate) use std::sync::MutexGuard;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
    pub(crate) use tokio::sync::Notify;

    /// A mutex that ignores poisoning, because a panic under the lock never leaves a shard half
    /// changed.
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Awaits `event` for at most `limit`.
    pub(crate) async fn within(limit: Duration, event: impl Future<Output = ()>) {
        let _ = tokio::time::timeout(limit, event).await;
    }
}

#[cfg(loom)]
mod model {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

    /// Gives loom's mutex the interface of the real mutex.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("loom should have stopped at the first panic")
        }
    }

    pub(crate) struct Notify(Mutex<Waiting>);

    struct Waiting {
        round: u64,
        wakers: Vec<Waker>,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self(Mutex::new(Waiting { round: 0, wakers: Vec::new() }))
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            Notified { notify: self, since: self.0.lock().round }
        }

        pub(crate) fn notify_waiters(&self) {
            let wakers = {
                let mut waiting = self.0.lock();
                waiting.round += 1;
                std::mem::take(&mut waiting.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) struct Notified<'a> {
        notify: &'a Notify,
        since: u64,
    }

    impl Notified<'_> {
        /// Returns whether a notification has arrived. The call changes nothing, because the
        /// model's `Notified` is enabled when it is created.
        pub(crate) fn enable(self: Pin<&mut Self>) -> bool {
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

    pub(crate) async fn within(_limit: Duration, event: impl Future<Output = ()>) {
        event.await;
    }
}

#[cfg(loom)]
pub(crate) use model::{AtomicBool, AtomicI64, AtomicU64, Mutex, MutexGuard, Notify, within};
#[cfg(not(loom))]
pub(crate) use real::{AtomicBool, AtomicI64, AtomicU64, Mutex, MutexGuard, Notify, within};
