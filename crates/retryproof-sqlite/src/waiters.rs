// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`]: tracks which calls of this process wait for which record, and whether another
//! process has written to the file (ACQ-4).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::{Backoff, Identity};
use retryproof_store_kit::WaiterRegistry;
use tokio::time::Instant;

/// The pauses between a waiter's checks for writes by other processes (ACQ-4).
pub(crate) const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(20));
/// The shortest time between two checks for writes by other processes, across all waiters.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The waiters of one store in this process.
#[derive(Default)]
pub(crate) struct Waiters {
    pub(crate) registry: WaiterRegistry<Identity>,
    foreign_commits: AtomicU64,
    last_check: Mutex<Option<Instant>>,
}

impl Waiters {
    /// Counts a check that has found writes by another process.
    pub(crate) fn on_foreign_commit(&self) {
        self.foreign_commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the next check for writes by other processes is due. If the result is `true`, the
    /// caller makes the check, which serves all waiters.
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

    /// How many checks have found writes by other processes.
    pub(crate) fn foreign_commits(&self) -> u64 {
        self.foreign_commits.load(Ordering::Acquire)
    }
}
