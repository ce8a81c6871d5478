// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits retries while another process holds a lock, and pauses between them. The other process
//! cannot notify this one, so this module sleeps and reads the real clock. Leases do not expire by
//! this clock.
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
    /// Starts a time limit now.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { since: Instant::now(), timeout }
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the time that is left, or zero after the deadline.
    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.since.elapsed())
    }
}

/// Returns the current time, for tracking this process's leases.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Puts this thread to sleep.
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
