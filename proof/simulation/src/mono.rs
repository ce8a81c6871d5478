// SPDX-License-Identifier: MIT OR Apache-2.0
//! The virtual clock, as nanoseconds since a run began.

use std::cell::Cell;

use retryproof::clock::{Clock as _, Instant, SystemClock};

thread_local! {
    /// When this thread's run began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets the start of the run to now. No other run uses this thread until this run ends.
pub(crate) fn begin() {
    BEGAN.set(Some(SystemClock.now()));
}

/// Returns the whole milliseconds since the run began.
pub(crate) fn elapsed_ms() -> u64 {
    now() / history::MS - 1_000
}

/// Returns the nanoseconds since the run began, plus a second, so that no event is at zero.
pub(crate) fn now() -> u64 {
    let since = BEGAN.get().map(|began| SystemClock.now().saturating_duration_since(began));
    let since = since.unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_add(history::MS * 1_000)
}
