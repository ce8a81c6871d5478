// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Time`]: the store's clock as nanoseconds, and [`Ahead`], which saves a look-up from computing
//! them.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Instant, SystemClock};

/// The store's clock, read once per operation (ACQ-7). The host's own is asked directly, without a
/// `dyn` call.
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

    /// The time in both forms.
    pub(super) fn now(&self) -> Now {
        let at = self.read();
        Now { at, nanos: self.nanos(at) }
    }

    /// Something to begin with: a moment that is over.
    pub(super) fn ahead(&self) -> Ahead {
        Ahead { at: self.epoch, nanos: 0 }
    }
}

/// A time in both forms. Leases are kept as instants, which cost least to make; retention as
/// nanoseconds, which take the least room in a record.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) at: Instant,
    pub(super) nanos: u64,
}

/// A moment of the near future in both forms. What expires after it is live for everybody who reads
/// a time before it, and comparing times is much cheaper than subtracting them.
pub(super) struct Ahead {
    at: Instant,
    nanos: u64,
}

const STEP: Duration = Duration::from_secs(1);

impl Ahead {
    /// Whether what expires at `expires` is still live.
    #[inline]
    pub(super) fn is_live(&mut self, expires: u64, now: Instant, time: &Time) -> bool {
        self.is_surely_live(expires, now) || self.is_live_exactly(expires, now, time)
    }

    /// The same where it is said without a subtraction. Not so: [`is_live`](Self::is_live) knows.
    #[inline(always)]
    pub(super) fn is_surely_live(&self, expires: u64, now: Instant) -> bool {
        now <= self.at && expires > self.nanos
    }

    #[cold]
    pub(super) fn is_live_exactly(&mut self, expires: u64, now: Instant, time: &Time) -> bool {
        let exact = time.nanos(now);
        if now > self.at {
            let at = now + STEP;
            *self = Self { at, nanos: time.nanos(at) };
        }
        expires > exact
    }
}

/// Nanoseconds, at most [`FAR`], so that a time and a duration can be added without care.
#[inline]
pub(super) fn nanos(duration: Duration) -> u64 {
    match duration.as_secs() {
        secs if secs < FAR / 1_000_000_000 => {
            secs * 1_000_000_000 + u64::from(duration.subsec_nanos())
        }
        _ => FAR,
    }
}

/// 18 years, beyond what the contract lets a lease or a ttl be.
pub(super) const FAR: u64 = 1 << 59;

/// The instant `duration` after `now`, or one that nobody will see.
#[inline]
pub(super) fn after(now: Instant, duration: Duration) -> Instant {
    now.checked_add(duration).unwrap_or_else(|| now + Duration::from_nanos(FAR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn durations_become_nanoseconds_without_overflow() {
        assert_eq!(nanos(Duration::new(3, 7)), 3_000_000_007);
        assert_eq!(nanos(Duration::from_secs(3_650 * 86_400)), 3_650 * 86_400_000_000_000);
        assert!(nanos(Duration::MAX).checked_add(nanos(Duration::MAX)).is_some());
    }

    #[test]
    fn cmp_6_the_short_cut_agrees_with_the_clock() {
        let clock = ManualClock::new();
        let time = Time::new(Some(Arc::new(clock.clone())));
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
