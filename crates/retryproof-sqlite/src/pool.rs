// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ReadPool`]: connections for peeks and replays on the calling thread. A cached point SELECT
//! takes microseconds, less than handing the call to another thread would.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use rusqlite::Connection;

use crate::config::SqliteConfig;
use crate::connection;

/// Each simultaneous read uses one connection. Readers and the writer do not block each other in
/// WAL mode.
pub(crate) struct ReadPool(Box<[Mutex<Connection>]>);

impl ReadPool {
    pub(crate) fn open(config: &SqliteConfig) -> Result<Self> {
        (0..config.readers)
            .map(|_| connection::open_reader(config).map(Mutex::new))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Runs `read` on a free connection, preferably the one that this thread used last, because its
    /// page cache is warm.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        let connections = &self.0;
        let preferred = thread_number() % connections.len();
        let mut order = (preferred..connections.len()).chain(0..preferred);
        let free = order.find_map(|at| connections[at].try_lock());
        // If all connections are in use, wait for the preferred one. Reads take microseconds.
        read(&free.unwrap_or_else(|| connections[preferred].lock()))
    }
}

/// Returns a small number that identifies this thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
