// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long to retry while another process holds a lock. That process cannot notify this one, so
//! this file sleeps and reads the real clock. No lease is judged by it.
#![expect(
    clippy::disallowed_methods,
    reason = "waits for another process, which cannot notify this one"
)]

use std::time::{Duration, Instant};

/// A time limit on repeated attempts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryDeadline {
    since: Instant,
    timeout: Duration,
}

impl RetryDeadline {
    /// A limit that begins now.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { since: Instant::now(), timeout }
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.since.elapsed() >= self.timeout
    }
}

/// The instant by which leases of this process are counted.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Puts this thread to sleep.
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
