// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Turn`]: who of this process writes next to a file. SQLite's own lock knows no queue: a thread that writes transaction after transaction
//! leaves it free for moments that a polling one misses. So the store's writer and the application's joined transactions (CMP-7) stand in
//! one line. Other processes are met at the file's lock.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::pause::Patience;

type Line = tokio::sync::Mutex<()>;

/// The lines of this process, by file. A file that is written under two names has two, which costs fairness and nothing else.
static LINES: LazyLock<Mutex<HashMap<PathBuf, Weak<Line>>>> = LazyLock::new(Mutex::default);

/// A place to queue for one file.
#[derive(Clone)]
pub(crate) struct Turn(Arc<Line>);

/// One's turn; the next in line is called when it is dropped.
pub(crate) type Taken = OwnedMutexGuard<()>;

impl Turn {
    /// The line for a file that exists.
    pub(crate) fn at(file: &Path) -> Self {
        let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
        let mut lines = LINES.lock();
        if let Some(line) = lines.get(&file).and_then(Weak::upgrade) {
            return Self(line);
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Line::default());
        lines.insert(file, Arc::downgrade(&line));
        Self(line)
    }

    /// One's turn if nobody writes or waits.
    pub(crate) fn at_once(&self) -> Option<Taken> {
        Arc::clone(&self.0).try_lock_owned().ok()
    }

    /// Queues, asleep on the runtime.
    pub(crate) async fn wait(&self) -> Taken {
        Arc::clone(&self.0).lock_owned().await
    }

    /// Queues, asleep on this thread, and gives up after `most`.
    pub(crate) fn wait_in_place(&self, most: Duration) -> Option<Taken> {
        let mut waiting = pin!(self.wait());
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let patience = Patience::new(most);
        loop {
            if let Poll::Ready(taken) = waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(taken);
            }
            if patience.is_over() {
                return None;
            }
            std::thread::park_timeout(most);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
