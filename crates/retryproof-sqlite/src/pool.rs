// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Readers`]: connections that serve looks and replays on the calling thread (a cached point
//! SELECT takes microseconds, less than handing it to another thread).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use retryproof_core::Result;
use rusqlite::Connection;

use crate::config::SqliteConfig;
use crate::connection;

/// As many as may read at once. WAL readers and the writer do not block each other.
pub(crate) struct Readers(Box<[Mutex<Connection>]>);

impl Readers {
    pub(crate) fn open(config: &SqliteConfig) -> Result<Self> {
        (0..config.readers)
            .map(|_| connection::open_reader(config).map(Mutex::new))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Runs `read` on a free connection, the one that this thread used last if possible: its page
    /// cache is warm.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        let seats = &self.0;
        let own = seat() % seats.len();
        let free = (own..seats.len()).chain(0..own).find_map(|at| seats[at].try_lock());
        // All are in use for some microseconds: wait for the own one.
        read(&free.unwrap_or_else(|| seats[own].lock()))
    }
}

/// A small number for each thread.
fn seat() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SEAT: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    SEAT.with(|seat| *seat)
}
