// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Backoff`]: how long to wait after each failure in a row; [`jitter`]: how waiters fall out of
//! step.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The pause after a failure: doubled with each further failure, up to a limit.
///
/// A listener applies it to a message that failed, where the broker does not delay redelivery by
/// itself: without a pause, a failing message would be retried in a hot loop (LST-2).
///
/// ```
/// # use std::time::Duration;
/// # use retryproof_core::Backoff;
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// let pauses = [1, 2, 3, 4].map(|failures| backoff.after(failures).as_secs());
/// assert_eq!(pauses, [1, 2, 4, 5]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    limit: Duration,
}

impl Backoff {
    /// Pauses from `first`, after the first failure, up to `limit`.
    #[must_use]
    pub const fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit }
    }

    /// The pause after this many failures in a row; zero after none.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.first.saturating_mul(1 << (n - 1).min(31)).min(self.limit),
        }
    }
}

/// 1 s, doubled up to 1 min.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(60))
    }
}

/// A duration within 20 % of `pause`, so that callers that pause together do not retry together.
#[must_use]
pub fn jitter(pause: Duration) -> Duration {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    // A Weyl sequence: evenly spread, and it needs no source of random numbers.
    let step = STEPS.fetch_add(0x9e37_79b9, Ordering::Relaxed);
    pause * (80 + step.rotate_left(16) % 41) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_the_pause_doubles_up_to_its_limit() {
        let backoff = Backoff::default();
        let seconds =
            [0, 1, 2, 3, 6, 7, 40, u32::MAX].map(|failures| backoff.after(failures).as_secs());
        assert_eq!(seconds, [0, 1, 2, 4, 32, 60, 60, 60]);
        let longer = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(longer.after(9), Duration::MAX);
    }

    #[test]
    fn jitter_spreads_over_a_fifth_to_either_side() {
        let pause = Duration::from_millis(100);
        let pauses: Vec<_> = (0..1_000).map(|_| jitter(pause)).collect();
        let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert_eq!((least.as_millis(), most.as_millis()), (80, 120));
    }
}
