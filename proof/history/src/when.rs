// SPDX-License-Identifier: MIT OR Apache-2.0
//! How exactly times are known.

/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;

/// The limit on the pause between two reads by a waiter that its store cannot notify (ACQ-4), in
/// nanoseconds.
pub const LONGEST_POLL_NS: u64 = 50 * MS;

/// Returns how much a duration on the store's clock may differ from one on the machine's monotonic
/// clock: stores round to milliseconds, and a wall clock is slewed by up to half a thousandth.
#[must_use]
pub fn slop(duration_ns: u64) -> u64 {
    2 * MS + duration_ns / 1_000
}
