// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Clock`], a source of monotonic time. No other module of this crate reads the time.
//!
//! Instants come from tokio, so a test that pauses tokio's clock controls all of them. A database
//! store decides expiry by the database's clock (ACQ-7), which this module never reads.
#![expect(clippy::disallowed_methods, reason = "only this module may read the time")]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::Mutex;
pub use tokio::time::Instant;

/// A source of monotonic time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a clock",
    label = "expected a clock",
    note = "use `SystemClock`, use `ManualClock` in tests, or implement `Clock` for your type"
)]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time, which never goes backwards.
    fn now(&self) -> Instant;
}

/// The host's monotonic clock, or tokio's paused clock under `tokio::time::pause`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that moves only when a test advances it. All clones show the same time.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use retryproof_memory::MemoryStore;
/// use retryproof_core::clock::ManualClock;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::with_clock(Arc::new(clock.clone()));
/// clock.advance(Duration::from_secs(86_400)); // for the store, a day has passed
/// # drop(store);
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Instant>>);

impl ManualClock {
    /// Creates a clock that starts at the current time and then stands still.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock()
    }
}

/// Returns the host's wall-clock time in microseconds since 1970, but at least 1. Stores seed their
/// token counters with this value. Stores that use the host's clock also stamp rows with it.
#[must_use]
pub fn wall_clock_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
}
