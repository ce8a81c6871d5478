// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine's monotonic clock, and a sleep.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// Returns the nanoseconds of a clock that all processes of the machine share. The clock is read
/// from the kernel, so a preloaded library that changes a process's time does not affect it.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Puts this thread to sleep.
#[expect(
    clippy::disallowed_methods,
    reason = "the nemesis follows a schedule and waits for other processes"
)]
pub(crate) fn rest(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
