// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`]: tracks which calls in this process wait for which record, and whether another
//! connection has written to the file (ACQ-4). That connection usually belongs to another process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::{Backoff, Identity};
use retryproof_store_kit::WaiterRegistry;
use tokio::time::Instant;

/// How long a waiter pauses between two checks for writes by other connections (ACQ-4).
pub(crate) const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(20));
/// The shortest time between two checks for writes by other connections, across all waiters.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Waiters {
    pub(crate) registry: WaiterRegistry<Identity>,
    foreign_commits: AtomicU64,
    last_check: Mutex<Option<Instant>>,
}

impl Waiters {
    /// Counts a check that has found writes by another connection.
    pub(crate) fn on_foreign_commit(&self) {
        self.foreign_commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether the next check for writes by other connections is due. If so, the caller
    /// must make the check, and its result serves all waiters.
    pub(crate) fn is_check_due(&self) -> bool {
        let now = Instant::now();
        let mut last_check = self.last_check.lock();
        let due =
            last_check.is_none_or(|at| now.saturating_duration_since(at) >= MIN_CHECK_INTERVAL);
        if due {
            *last_check = Some(now);
        }
        due
    }

    /// Returns how many checks have found writes by other connections.
    pub(crate) fn foreign_commits(&self) -> u64 {
        self.foreign_commits.load(Ordering::Acquire)
    }
}
