// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Clock`]: the only place that asks what time it is.
//!
//! Instants are tokio's, for the memory store too, so paused time drives everything in tests. The
//! clock of a database never appears here: a store judges expiry by its own (ACQ-7).
#![expect(clippy::disallowed_methods, reason = "this is the module that may ask for the time")]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lock::Mutex;
pub use tokio::time::Instant;

/// Tells the monotonic time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a clock",
    label = "a clock is wanted here",
    note = "give `SystemClock`, or in tests `ManualClock`; one of your own implements `Clock`"
)]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now. Never runs backwards.
    fn now(&self) -> Instant;
}

/// The host's monotonic clock; tokio's paused one under `tokio::time::pause`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that runs beside the host's with an offset that a test moves: for skew between a client
/// and a store.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Reading>>);

#[derive(Debug)]
struct Reading {
    now: Instant,
}

impl ManualClock {
    /// A clock that stands still until it is moved.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Reading { now: Instant::now() })))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let mut reading = self.0.lock();
        reading.now += by;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.0.lock().now
    }
}

/// Microseconds since 1970, at least 1. It only seeds counters and stamps rows of stores whose
/// clock is the host's.
#[must_use]
pub fn wall_clock_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
}
