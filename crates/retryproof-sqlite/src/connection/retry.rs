// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long to go on asking for a lock that another process holds. It cannot tell us when it lets
//! go, so these are the real sleeps and the real clock of this crate; nothing here judges a lease.
#![expect(
    clippy::disallowed_methods,
    reason = "waits for another process, which has no other sign for us"
)]

use std::time::{Duration, Instant};

/// A bound on repeated attempts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    since: Instant,
    most: Duration,
}

impl Patience {
    /// Counts from now.
    pub(crate) fn new(most: Duration) -> Self {
        Self { since: Instant::now(), most }
    }

    /// Whether the bound has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.most
    }
}

/// The instant, to count leases of this process by.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps on this thread.
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
