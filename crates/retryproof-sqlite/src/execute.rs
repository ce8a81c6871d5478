// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`WriteQueue`]: commits transitions in groups. Callers queue their transitions. One thread runs
//! up to [`MAX_BATCH`] of them in one transaction, and replies after the commit. Many callers
//! therefore share one wait for the disk.

pub(crate) mod leases;
pub(crate) mod transaction;
pub(crate) mod transition;
pub(crate) mod write_lock;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use retryproof_core::{Backoff, Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::connection::retry::{RetryDeadline, pause};
use crate::error::classify;

use transaction::{BatchResult, WriteConnection, copy};
use transition::{Transition, TransitionResult};
use write_lock::FileWriteLock;

/// The largest number of transitions in one transaction.
const MAX_BATCH: usize = 256;
/// The backoff between attempts to get the write lock while another process holds it.
const RETRY: Backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(2));
/// How long the thread waits for this process's write lock before it checks the callers' deadlines
/// again.
const TICKET_WAIT: Duration = Duration::from_millis(20);
/// How long a closing store keeps trying to write to a locked file.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The queue, its thread, and the connection that writes.
pub(crate) struct WriteQueue {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    connection: Mutex<WriteConnection>,
    queue: Mutex<Queue>,
    wake_thread: Condvar,
    write_lock: FileWriteLock,
    busy_timeout: Duration,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<QueuedTransition>,
    /// Whether the thread has taken transitions that are not committed yet. No write on a calling
    /// thread may overtake these transitions.
    has_uncommitted: bool,
    /// Whether the thread sleeps until `wake_thread` is notified.
    is_asleep: bool,
    closing: Option<RetryDeadline>,
}

struct QueuedTransition {
    transition: Transition,
    deadline: RetryDeadline,
    reply: oneshot::Sender<Result<TransitionResult>>,
}

impl WriteQueue {
    pub(crate) fn start(
        connection: WriteConnection,
        write_lock: FileWriteLock,
        busy_timeout: Duration,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            connection: Mutex::new(connection),
            queue: Mutex::default(),
            wake_thread: Condvar::new(),
            write_lock,
            busy_timeout,
        });
        let thread = std::thread::Builder::new()
            .name("retryproof-sqlite".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run()
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unexpected,
                    "the operating system could not start the store's writing thread",
                )
                .because(error)
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Queues a transition and waits for the commit that contains it. If the future is dropped
    /// before the thread has the write lock, the thread skips an acquire, but still runs any other
    /// transition. If the future is dropped later, the transition may or may not happen (ACQ-11).
    pub(crate) async fn run(&self, transition: Transition) -> Result<TransitionResult> {
        let (reply, answer) = oneshot::channel();
        {
            let mut queue = self.shared.queue.lock();
            if queue.closing.is_some() {
                return Err(thread_ended());
            }
            queue.waiting.push_back(QueuedTransition {
                transition,
                deadline: RetryDeadline::new(self.shared.busy_timeout),
                reply,
            });
            if std::mem::take(&mut queue.is_asleep) {
                self.shared.wake_thread.notify_one();
            }
        }
        answer.await.unwrap_or_else(|_| Err(thread_ended()))
    }

    /// Runs a transition on this thread. Returns `None` if other writes are queued or running, if
    /// the store is closing, or if the file is locked.
    pub(crate) fn run_in_place(&self, transition: &Transition) -> Option<Result<TransitionResult>> {
        {
            let queue = self.shared.queue.lock();
            if queue.has_uncommitted || queue.closing.is_some() || !queue.waiting.is_empty() {
                return None;
            }
        }
        let _guard = self.shared.write_lock.try_lock()?;
        match self.shared.connection.try_lock()?.run(std::iter::once(transition)) {
            BatchResult::Committed(mut results) => {
                self.shared.write_lock.leases().note(std::iter::once(transition).zip(&results));
                results.pop()
            }
            // Leave the transition to the writing thread, which waits for the lock without blocking
            // the caller.
            BatchResult::Locked(_) => None,
        }
    }

    /// Runs a pragma on the writing connection, for tests that simulate a full disk.
    #[cfg(test)]
    pub(crate) fn pragma(&self, sql: &str) {
        self.shared
            .connection
            .lock()
            .connection()
            .execute_batch(sql)
            .expect("the pragma should run");
    }

    /// Reads a number over the writing connection, for tests that check its settings.
    #[cfg(test)]
    pub(crate) fn read_number(&self, sql: &str) -> i64 {
        let connection = self.shared.connection.lock();
        connection
            .connection()
            .query_row(sql, [], |row| row.get(0))
            .expect("the query should return a number")
    }

    /// Notifies waiters if another connection, for example in another process, has committed. Does
    /// nothing while a thread writes, because each write makes the same check.
    pub(crate) fn check_foreign_commits(&self) {
        if let Some(mut connection) = self.shared.connection.try_lock() {
            // Ignore the error: if the file is locked or gone, a later read of the record reports
            // the problem.
            let _ = connection.check_foreign_commits();
        }
    }
}

impl Drop for WriteQueue {
    /// Waits until the thread has run all queued transitions and has ended. If the file stays
    /// locked, the thread gives up after `CLOSE_TIMEOUT`.
    fn drop(&mut self) {
        self.shared.queue.lock().closing = Some(RetryDeadline::new(CLOSE_TIMEOUT));
        self.shared.wake_thread.notify_one();
        if let Some(thread) = self.thread.take() {
            // Ignore a panic. Only the driver can cause one, and the calls that were waiting for
            // the thread have already failed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let _close = CloseOnExit(self);
        let mut batch = Vec::new();
        while self.take(&mut batch) {
            self.write(&mut batch);
        }
    }

    /// Waits for queued transitions and moves them to `batch`. Returns `false` if the store is
    /// closing and the queue is empty.
    fn take(&self, batch: &mut Vec<QueuedTransition>) -> bool {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() {
            if queue.closing.is_some() {
                return false;
            }
            queue.is_asleep = true;
            self.wake_thread.wait(&mut queue);
        }
        queue.is_asleep = false;
        queue.has_uncommitted = true;
        top_up(batch, &mut queue);
        true
    }

    /// Commits the batch and replies to its callers. While another process has the file locked, the
    /// thread retries until each caller's deadline. It sleeps outside of SQLite (STO-5).
    fn write(&self, batch: &mut Vec<QueuedTransition>) {
        let mut failures = 0;
        let mut ticket = None;
        loop {
            if batch.is_empty() {
                self.queue.lock().has_uncommitted = false;
                return;
            }
            // While the lock is taken, keep the batch's place in the queue for the lock, even if
            // some callers in the batch reach their deadlines.
            let guard = if ticket.is_none() { self.write_lock.try_lock() } else { None };
            let guard = guard.or_else(|| {
                ticket.get_or_insert_with(|| self.write_lock.queue()).wait(TICKET_WAIT)
            });
            let Some(guard) = guard else {
                // Another writer of this process holds the lock, usually a joined transaction
                // (CMP-7).
                self.answer_expired(batch, &locked_by_joined_transaction());
                top_up(batch, &mut self.queue.lock());
                continue;
            };
            ticket = None;
            top_up(batch, &mut self.queue.lock());
            // An acquire whose caller has dropped its future is not granted (ACQ-11). Check this
            // last, because a caller can drop its future while the batch waits for the lock.
            batch.retain(|queued| {
                !matches!(queued.transition, Transition::Acquire(..)) || !queued.reply.is_closed()
            });
            if batch.is_empty() {
                continue;
            }
            let ran = self.connection.lock().run(batch.iter().map(|queued| &queued.transition));
            if let BatchResult::Committed(results) = &ran {
                let transitions = batch.iter().map(|queued| &queued.transition);
                self.write_lock.leases().note(transitions.zip(results));
            }
            drop(guard);
            match ran {
                BatchResult::Committed(results) => {
                    // Clear the flag before sending results, because a caller that has its result
                    // can write in place immediately.
                    self.queue.lock().has_uncommitted = false;
                    for (queued, result) in batch.drain(..).zip(results) {
                        // Sending fails only if the caller has dropped its future.
                        let _ = queued.reply.send(result);
                    }
                    return;
                }
                BatchResult::Locked(error) => {
                    self.answer_expired(batch, &error);
                    failures += 1;
                    pause(RETRY.after(failures));
                    top_up(batch, &mut self.queue.lock());
                }
            }
        }
    }

    /// Returns `error` to the callers whose deadlines have passed, or to all callers if a closing
    /// store has used up its time.
    fn answer_expired(&self, batch: &mut Vec<QueuedTransition>, error: &rusqlite::Error) {
        let closing = self.queue.lock().closing.is_some_and(|deadline| deadline.has_passed());
        let mut at = 0;
        while at < batch.len() {
            if closing || batch[at].deadline.has_passed() {
                let _ = batch.remove(at).reply.send(Err(classify(copy(error))));
            } else {
                at += 1;
            }
        }
    }
}

fn top_up(batch: &mut Vec<QueuedTransition>, queue: &mut Queue) {
    let room = MAX_BATCH.saturating_sub(batch.len()).min(queue.waiting.len());
    batch.extend(queue.waiting.drain(..room));
}

/// Closes the queue when the thread ends, even after a panic, so that no caller waits forever.
struct CloseOnExit<'a>(&'a Shared);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.closing.get_or_insert(RetryDeadline::new(Duration::ZERO));
        queue.waiting.clear();
    }
}

fn locked_by_joined_transaction() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
    rusqlite::Error::SqliteFailure(code, Some("a joined transaction is open".to_owned()))
}

fn thread_ended() -> Error {
    Error::unavailable("the store's writing thread has ended; open the store again")
}
