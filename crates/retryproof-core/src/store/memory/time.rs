// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Time`]: the store's clock as nanoseconds, and [`Ahead`], which saves a look-up from computing them.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Instant, SystemClock};

/// The store's clock, read once per operation (ACQ-7). The host's own is asked directly, without a `dyn` call.
pub(super) struct Time {
    /// Where the nanoseconds count from.
    epoch: Instant,
    injected: Option<Arc<dyn Clock>>,
}

impl Time {
    pub(super) fn new(injected: Option<Arc<dyn Clock>>) -> Self {
        let now = injected.as_ref().map_or_else(|| SystemClock.now(), |clock| clock.now());
        // Some slack for a clock that a test has stopped before this moment.
        let epoch = now.checked_sub(Duration::from_secs(3_600)).unwrap_or(now);
        Self { epoch, injected }
    }

    #[inline]
    pub(super) fn read(&self) -> Instant {
        match &self.injected {
            None => SystemClock.now(),
            Some(clock) => clock.now(),
        }
    }

    #[inline]
    pub(super) fn nanos(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.epoch))
    }

    /// Something to begin with: a moment that is over.
    pub(super) fn ahead(&self) -> Ahead {
        Ahead { at: self.epoch, nanos: 0 }
    }
}

/// A moment of the near future in both forms. What expires after it is live for everybody who reads a time before it,
/// and comparing times is much cheaper than subtracting them.
pub(super) struct Ahead {
    at: Instant,
    nanos: u64,
}

const STEP: Duration = Duration::from_secs(1);

impl Ahead {
    /// Whether what expires at `expires` is still live.
    #[inline]
    pub(super) fn is_live(&mut self, expires: u64, now: Instant, time: &Time) -> bool {
        (now <= self.at && expires > self.nanos) || self.is_live_exactly(expires, now, time)
    }

    #[cold]
    fn is_live_exactly(&mut self, expires: u64, now: Instant, time: &Time) -> bool {
        let exact = time.nanos(now);
        if now > self.at {
            let at = now + STEP;
            *self = Self { at, nanos: time.nanos(at) };
        }
        expires > exact
    }
}

#[inline]
pub(super) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

pub(super) fn until(expires: u64, now: u64) -> Duration {
    Duration::from_nanos(expires.saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn cmp_6_the_short_cut_agrees_with_the_clock() {
        let clock = ManualClock::new();
        let time = Time::new(Some(Arc::new(clock.clone())));
        let mut ahead = time.ahead();
        let start = time.nanos(time.read());
        for step in [0, 1, 999_999_999, 1_000_000_000, 1, 5_000_000_000, 1, 400_000_000, 599_999_999, 1] {
            clock.advance(Duration::from_nanos(step));
            let now = time.nanos(time.read());
            for expires in [start, now - 1, now, now + 1, now + 1_000_000_000, now + 1_000_000_001, u64::MAX]
            {
                assert_eq!(ahead.is_live(expires, time.read(), &time), expires > now, "{expires} at {now}");
            }
        }
    }
}
