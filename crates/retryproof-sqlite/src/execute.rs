// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Writer`]: group commit. Callers queue their steps; one thread drains up to [`BATCH`] of them
//! into one transaction and answers after its commit, so that many callers share one wait for the
//! disk.

pub(crate) mod leases;
pub(crate) mod transaction;
pub(crate) mod transition;
pub(crate) mod write_lock;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use retryproof_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::connection::retry::{Patience, pause};
use crate::error::classify;
use crate::execute::transaction::{Desk, Ran, copy};
use crate::execute::transition::{Answer, Step};
use crate::execute::write_lock::Turn;

/// Most steps of one transaction.
const BATCH: usize = 256;
/// Between two attempts to get the write lock from another process: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(2));
/// How long to wait for a joined transaction of this process, before looking whether anybody still
/// waits for us.
const IN_LINE: Duration = Duration::from_millis(20);
/// How long a closing store still asks for a locked file, on behalf of callers that are gone.
const CLOSING: Duration = Duration::from_secs(1);

/// The queue, its thread, and the connection that writes.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    desk: Mutex<Desk>,
    queue: Mutex<Queue>,
    bell: Condvar,
    turn: Turn,
    busy_timeout: Duration,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Request>,
    /// The thread has drained steps that are not committed yet: nobody may overtake them in place.
    in_hand: bool,
    /// The thread sleeps and wants the bell.
    asleep: bool,
    closing: Option<Patience>,
}

struct Request {
    step: Step,
    patience: Patience,
    reply: oneshot::Sender<Result<Answer>>,
}

impl Writer {
    pub(crate) fn start(desk: Desk, turn: Turn, busy_timeout: Duration) -> Result<Self> {
        let shared = Arc::new(Shared {
            desk: Mutex::new(desk),
            queue: Mutex::default(),
            bell: Condvar::new(),
            turn,
            busy_timeout,
        });
        let thread = std::thread::Builder::new()
            .name("retryproof-sqlite".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.serve()
            })
            .map_err(|error| {
                Error::new(ErrorKind::Unexpected, "the thread that writes could not be started")
                    .because(error)
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Queues a step and waits for the commit that contains it. Dropped before the thread drained
    /// it, an acquire never happens and any other step still does; dropped later, the step is done
    /// or not done (ACQ-11).
    pub(crate) async fn call(&self, step: Step) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        {
            let mut queue = self.shared.queue.lock();
            if queue.closing.is_some() {
                return Err(ended());
            }
            queue.waiting.push_back(Request {
                step,
                patience: Patience::new(self.shared.busy_timeout),
                reply,
            });
            if std::mem::take(&mut queue.asleep) {
                self.shared.bell.notify_one();
            }
        }
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Runs a step on this thread, unless somebody else writes or the file is locked.
    pub(crate) fn call_in_place(&self, step: &Step) -> Option<Result<Answer>> {
        {
            let queue = self.shared.queue.lock();
            if queue.in_hand || queue.closing.is_some() || !queue.waiting.is_empty() {
                return None;
            }
        }
        let _turn = self.shared.turn.at_once()?;
        match self.shared.desk.try_lock()?.run(std::iter::once(step)) {
            Ran::Done(mut answers) => {
                self.shared.turn.leases().note(std::iter::once(step).zip(&answers));
                answers.pop()
            }
            // The thread waits for the lock better than we do.
            Ran::Busy(_) => None,
        }
    }

    /// Runs a pragma on the writing connection: what a full disk does cannot be had from outside.
    #[cfg(test)]
    pub(crate) fn pragma(&self, sql: &str) {
        self.shared.desk.lock().connection().execute_batch(sql).expect("a pragma");
    }

    /// Lets waiters know of commits by other processes. Does nothing while somebody writes: that
    /// looks by itself.
    pub(crate) fn note_foreign_commits(&self) {
        if let Some(mut desk) = self.shared.desk.try_lock() {
            // A file that is locked or gone now shows at the waiter's next look.
            let _ = desk.note_foreign_commits();
        }
    }
}

impl Drop for Writer {
    /// Ends the thread after it has finished what is queued.
    fn drop(&mut self) {
        self.shared.queue.lock().closing = Some(Patience::new(CLOSING));
        self.shared.bell.notify_one();
        if let Some(thread) = self.thread.take() {
            // It ends by a panic only if SQLite's wrapper panics; its callers have been told.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let _leaving = Leaving(self);
        let mut batch = Vec::new();
        while self.take(&mut batch) {
            self.write(&mut batch);
        }
    }

    /// Waits for steps and drains them; false when the store closes and none is left.
    fn take(&self, batch: &mut Vec<Request>) -> bool {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() {
            if queue.closing.is_some() {
                return false;
            }
            queue.asleep = true;
            self.bell.wait(&mut queue);
        }
        queue.asleep = false;
        queue.in_hand = true;
        top_up(batch, &mut queue);
        true
    }

    /// Commits the batch and answers it. A file locked by another process is asked for again and
    /// again, outside of SQLite, until each caller's patience is over (STO-5).
    fn write(&self, batch: &mut Vec<Request>) {
        let (mut delay, longest) = AGAIN;
        let mut place = None;
        loop {
            // Nobody waits for the grant any more, so it is not made (ACQ-11).
            batch.retain(|request| {
                !matches!(request.step, Step::Acquire(..)) || !request.reply.is_closed()
            });
            if batch.is_empty() {
                self.queue.lock().in_hand = false;
                return;
            }
            // Once in the line it stays there, whoever of the batch gives up meanwhile.
            let turn = if place.is_none() { self.turn.at_once() } else { None };
            let turn =
                turn.or_else(|| place.get_or_insert_with(|| self.turn.queue()).wait(IN_LINE));
            let Some(turn) = turn else {
                // A joined transaction of this process has been open for that long (CMP-7).
                self.give_up(batch, &locked());
                top_up(batch, &mut self.queue.lock());
                continue;
            };
            place = None;
            top_up(batch, &mut self.queue.lock());
            let ran = self.desk.lock().run(batch.iter().map(|request| &request.step));
            if let Ran::Done(answers) = &ran {
                self.turn.leases().note(batch.iter().map(|request| &request.step).zip(answers));
            }
            drop(turn);
            match ran {
                Ran::Done(answers) => {
                    // Before the answers: whoever gets one may write in place at once.
                    self.queue.lock().in_hand = false;
                    for (request, answer) in batch.drain(..).zip(answers) {
                        // A caller that is gone has no use for it.
                        let _ = request.reply.send(answer);
                    }
                    return;
                }
                Ran::Busy(error) => {
                    self.give_up(batch, &error);
                    pause(delay);
                    delay = (delay * 2).min(longest);
                    top_up(batch, &mut self.queue.lock());
                }
            }
        }
    }

    /// Answers those whose patience is over.
    fn give_up(&self, batch: &mut Vec<Request>, error: &rusqlite::Error) {
        let closing = self.queue.lock().closing.is_some_and(|patience| patience.is_over());
        let mut at = 0;
        while at < batch.len() {
            if closing || batch[at].patience.is_over() {
                let _ = batch.remove(at).reply.send(Err(classify(copy(error))));
            } else {
                at += 1;
            }
        }
    }
}

fn top_up(batch: &mut Vec<Request>, queue: &mut Queue) {
    let room = BATCH.saturating_sub(batch.len()).min(queue.waiting.len());
    batch.extend(queue.waiting.drain(..room));
}

/// When the thread ends, however it ends, nobody may wait for it.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.closing.get_or_insert(Patience::new(Duration::ZERO));
        queue.waiting.clear();
    }
}

fn locked() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
    rusqlite::Error::SqliteFailure(code, Some("a joined transaction is open".to_owned()))
}

fn ended() -> Error {
    Error::unavailable("the store's writer has ended; open the store anew")
}
