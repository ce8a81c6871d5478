// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FileWriteLock`]: decides which of this process's writers writes to a file next.
//!
//! SQLite's file lock is not fair. If one thread writes in a loop, a thread that polls for the lock
//! might never get it. The store's writer and the application's joined transactions (CMP-7)
//! therefore share one queue. Other processes are not in this queue, and compete for SQLite's lock.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::leases::Leases;
use crate::connection::retry::RetryDeadline;

/// The queue of writers for one file, and the leases that a long transaction would endanger.
#[derive(Default)]
struct FileWriters {
    queue: Arc<tokio::sync::Mutex<()>>,
    /// Held by the joined transaction that is open or in the queue. So at most one transaction is
    /// ahead of a beat, however many sources the application has.
    transaction: Arc<tokio::sync::Mutex<()>>,
    leases: Leases,
}

/// This process's queues, by file. A file that is opened under two names has two queues. Access to
/// such a file is less fair, and the time limit of a joined transaction ignores the leases that are
/// held under the other name.
static FILES: LazyLock<Mutex<HashMap<PathBuf, Weak<FileWriters>>>> = LazyLock::new(Mutex::default);

/// The write lock of one file in this process.
#[derive(Clone)]
pub(crate) struct FileWriteLock(Arc<FileWriters>);

/// Allows the guard's owner to write until the guard is dropped.
pub(crate) type FileWriteGuard = OwnedMutexGuard<()>;

/// Like [`FileWriteGuard`], for a joined transaction.
pub(crate) struct TransactionGuard {
    /// Declared first, so that a waiting beat comes before the next transaction.
    _write: FileWriteGuard,
    _turn: OwnedMutexGuard<()>,
}

impl FileWriteLock {
    /// Returns the lock of an existing file.
    pub(crate) fn of(file: &Path) -> Self {
        let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
        let mut files = FILES.lock();
        if let Some(writers) = files.get(&file).and_then(Weak::upgrade) {
            return Self(writers);
        }
        files.retain(|_, writers| writers.strong_count() > 0);
        let writers = Arc::new(FileWriters::default());
        files.insert(file, Arc::downgrade(&writers));
        Self(writers)
    }

    /// Takes the lock if no writer holds it or waits for it.
    pub(crate) fn try_lock(&self) -> Option<FileWriteGuard> {
        Arc::clone(&self.0.queue).try_lock_owned().ok()
    }

    /// Waits in the queue for the lock without blocking the thread.
    pub(crate) async fn lock(&self) -> FileWriteGuard {
        Arc::clone(&self.0.queue).lock_owned().await
    }

    /// Like [`lock`](Self::lock), for a joined transaction.
    pub(crate) async fn lock_transaction(&self) -> TransactionGuard {
        let turn = Arc::clone(&self.0.transaction).lock_owned().await;
        TransactionGuard { _write: self.lock().await, _turn: turn }
    }

    /// Returns the leases that this process holds in the file.
    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    /// Returns a ticket for this thread. The ticket takes its place in the queue at the first
    /// `wait`.
    pub(crate) fn queue(&self) -> LockTicket {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let lock = self.clone();
        LockTicket { waiting: Box::pin(async move { lock.lock().await }), waker }
    }
}

/// A position in the queue. Keep the ticket while waiting. A caller that drops its ticket and
/// queues again can starve.
pub(crate) struct LockTicket {
    waiting: Pin<Box<dyn Future<Output = FileWriteGuard>>>,
    waker: Waker,
}

impl LockTicket {
    /// Blocks the queued thread until it gets the lock. Returns `None` after `timeout`; the ticket
    /// stays valid.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<FileWriteGuard> {
        let deadline = RetryDeadline::new(timeout);
        loop {
            if let Poll::Ready(guard) =
                self.waiting.as_mut().poll(&mut Context::from_waker(&self.waker))
            {
                return Some(guard);
            }
            if deadline.has_passed() {
                return None;
            }
            std::thread::park_timeout(deadline.remaining());
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_1_a_file_has_one_queue_for_as_long_as_it_is_used() {
        let [one, other, third] = ["one", "other", "third"]
            .map(|name| PathBuf::from(format!("no such folder/{}/{name}", std::process::id())));
        let first = FileWriteLock::of(&one);
        let other_lock = FileWriteLock::of(&other);
        assert!(Arc::ptr_eq(&first.0, &FileWriteLock::of(&one).0));
        assert!(!Arc::ptr_eq(&first.0, &other_lock.0));
        drop(other_lock);
        let _third = FileWriteLock::of(&third);
        let known = |file| FILES.lock().contains_key(file);
        assert!(known(&one) && known(&third) && !known(&other), "unused files are forgotten");
    }

    #[test]
    fn acq_8_a_queued_thread_wakes_up_as_soon_as_the_lock_is_free() {
        let lock = FileWriteLock::of(Path::new("no such folder/wakes up"));
        let held = lock.try_lock().expect("a free lock");
        let (queued, waits) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let lock = lock.clone();
            move || {
                let mut ticket = lock.queue();
                assert!(ticket.wait(Duration::ZERO).is_none(), "the lock is taken");
                queued.send(()).unwrap();
                let deadline = RetryDeadline::new(Duration::from_secs(30));
                let got = ticket.wait(Duration::from_secs(60)).is_some();
                got && !deadline.has_passed()
            }
        });
        waits.recv().unwrap();
        drop(held);
        assert!(thread.join().unwrap(), "the thread waited for its whole time limit");
    }
}
