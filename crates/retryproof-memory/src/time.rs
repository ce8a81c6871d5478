// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoreTime`]: the store's clock in nanoseconds, and [`Ahead`], which lets most lookups skip the
//! conversion to nanoseconds.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::clock::{Clock, Instant, SystemClock};

/// The store's clock, read once per operation (ACQ-7). The host's clock is read without a `dyn` call.
pub(crate) struct StoreTime {
    /// The instant from which nanoseconds are counted.
    epoch: Instant,
    injected: Option<Arc<dyn Clock>>,
}

impl StoreTime {
    pub(crate) fn new(injected: Option<Arc<dyn Clock>>) -> Self {
        let now = injected.as_ref().map_or_else(|| SystemClock.now(), |clock| clock.now());
        // The epoch is an hour before `now`, because a test can use the store in a runtime whose
        // paused clock stopped before `now`.
        let epoch = now.checked_sub(Duration::from_secs(3_600)).unwrap_or(now);
        Self { epoch, injected }
    }

    #[inline]
    pub(crate) fn read(&self) -> Instant {
        match &self.injected {
            None => SystemClock.now(),
            Some(clock) => clock.now(),
        }
    }

    #[inline]
    pub(crate) fn nanos(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.epoch))
    }

    /// Returns the current time as an instant and in nanoseconds.
    pub(crate) fn now(&self) -> Now {
        let at = self.read();
        Now { at, nanos: self.nanos(at) }
    }

    /// Returns the initial value of an [`Ahead`], which is in the past.
    pub(crate) fn ahead(&self) -> Ahead {
        Ahead { at: self.epoch, nanos: 0 }
    }
}

/// A time as an instant and in nanoseconds. The end of a lease is an instant, because an instant is
/// cheapest to compute. A result's expiry is in nanoseconds, because nanoseconds take the least
/// space in a record.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub(crate) at: Instant,
    pub(crate) nanos: u64,
}

/// A moment in the near future, as an instant and in nanoseconds. Until this moment, every record
/// that expires after it is live. A lookup therefore only compares times, which is much cheaper
/// than subtracting them.
pub(crate) struct Ahead {
    at: Instant,
    nanos: u64,
}

const STEP: Duration = Duration::from_secs(1);

impl Ahead {
    /// Whether a record that expires at `expires` is live at `now`.
    #[inline]
    pub(crate) fn is_live(&mut self, expires: u64, now: Instant, time: &StoreTime) -> bool {
        self.is_surely_live(expires, now) || self.is_live_exactly(expires, now, time)
    }

    /// Whether a record that expires at `expires` is certainly live at `now`. The check needs no
    /// subtraction. If the result is `false`, [`is_live_exactly`](Self::is_live_exactly) decides.
    #[inline(always)]
    pub(crate) fn is_surely_live(&self, expires: u64, now: Instant) -> bool {
        now <= self.at && expires > self.nanos
    }

    #[cold]
    pub(crate) fn is_live_exactly(&mut self, expires: u64, now: Instant, time: &StoreTime) -> bool {
        let exact = time.nanos(now);
        if now > self.at {
            let at = now + STEP;
            *self = Self { at, nanos: time.nanos(at) };
        }
        expires > exact
    }
}

/// Converts a duration to nanoseconds. The result is at most [`FAR`], so adding a time and a
/// duration cannot overflow.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    match duration.as_secs() {
        secs if secs < FAR / 1_000_000_000 => {
            secs * 1_000_000_000 + u64::from(duration.subsec_nanos())
        }
        _ => FAR,
    }
}

/// 18 years, longer than any lease or ttl that the contract allows.
pub(crate) const FAR: u64 = 1 << 59;

/// Returns the instant `duration` after `now`, or the instant 18 years after `now` if the sum would
/// overflow.
#[inline]
pub(crate) fn after(now: Instant, duration: Duration) -> Instant {
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_nanos(FAR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use retryproof_core::clock::ManualClock;

    #[test]
    fn durations_become_nanoseconds_without_overflow() {
        assert_eq!(nanos(Duration::new(3, 7)), 3_000_000_007);
        assert_eq!(nanos(Duration::from_secs(3_650 * 86_400)), 3_650 * 86_400_000_000_000);
        assert!(nanos(Duration::MAX).checked_add(nanos(Duration::MAX)).is_some());
    }

    #[test]
    fn cmp_6_the_short_cut_agrees_with_the_clock() {
        let clock = ManualClock::new();
        let time = StoreTime::new(Some(Arc::new(clock.clone())));
        let mut ahead = time.ahead();
        let start = time.nanos(time.read());
        for step in
            [0, 1, 999_999_999, 1_000_000_000, 1, 5_000_000_000, 1, 400_000_000, 599_999_999, 1]
        {
            clock.advance(Duration::from_nanos(step));
            let now = time.nanos(time.read());
            for expires in
                [start, now - 1, now, now + 1, now + 1_000_000_000, now + 1_000_000_001, u64::MAX]
            {
                assert_eq!(
                    ahead.is_live(expires, time.read(), &time),
                    expires > now,
                    "{expires} at {now}"
                );
            }
        }
    }
}
