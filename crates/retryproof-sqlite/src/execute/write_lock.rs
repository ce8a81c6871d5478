// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Turn`]: who of this process writes next to a file. SQLite's own lock knows no queue: a thread
//! that writes transaction after transaction leaves it free for moments that a polling one misses.
//! So the store's writer and the application's joined transactions (CMP-7) stand in one line. Other
//! processes are met at the file's lock.

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

use crate::connection::retry::Patience;
use crate::execute::leases::Leases;

/// Who writes, and what is to be lost by those who wait.
#[derive(Default)]
struct Line {
    turn: Arc<tokio::sync::Mutex<()>>,
    leases: Leases,
}

/// The lines of this process, by file. A file that is written under two names has two, which costs
/// fairness and nothing else.
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
        Arc::clone(&self.0.turn).try_lock_owned().ok()
    }

    /// Queues, asleep on the runtime.
    pub(crate) async fn wait(&self) -> Taken {
        Arc::clone(&self.0.turn).lock_owned().await
    }

    /// The leases that this process holds in the file.
    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    /// Queues, for this thread.
    pub(crate) fn queue(&self) -> Place {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let turn = self.clone();
        Place { waiting: Box::pin(async move { turn.wait().await }), waker }
    }
}

/// A place in the line, kept for as long as it lives. Whoever gives it up to look after something,
/// and then queues anew, may be overtaken for ever.
pub(crate) struct Place {
    waiting: Pin<Box<dyn Future<Output = Taken>>>,
    waker: Waker,
}

impl Place {
    /// Sleeps on the thread that queued until it is its turn, and for no longer than `most`; keeps
    /// the place if that was not enough.
    pub(crate) fn wait(&mut self, most: Duration) -> Option<Taken> {
        let patience = Patience::new(most);
        loop {
            if let Poll::Ready(taken) =
                self.waiting.as_mut().poll(&mut Context::from_waker(&self.waker))
            {
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
