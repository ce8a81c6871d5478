// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ReadPool`]: connections for peeks and replays on the calling thread. A cached SELECT of one
//! row takes microseconds, which is less than it takes to hand the call to another thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use rusqlite::Connection;

use crate::config::SqliteConfig;
use crate::connection;

/// The reading connections. Each of them runs one read at a time. In WAL mode, readers and the
/// writer do not block each other.
pub(crate) struct ReadPool(Box<[Mutex<Connection>]>);

impl ReadPool {
    pub(crate) fn open(config: &SqliteConfig) -> Result<Self> {
        (0..config.readers)
            .map(|_| connection::open_reader(config).map(Mutex::new))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Runs `read` on a free connection, preferably on the one assigned to this thread, because its
    /// page cache is warm.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        let connections = &self.0;
        let preferred = thread_number() % connections.len();
        let mut order = (preferred..connections.len()).chain(0..preferred);
        let free = order.find_map(|at| connections[at].try_lock());
        // If every connection is in use, wait for the preferred one. The wait is short, because a
        // read takes only microseconds.
        read(&free.unwrap_or_else(|| connections[preferred].lock()))
    }
}

/// Returns a small number that identifies this thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
