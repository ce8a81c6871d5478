// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Backoff`]: how long to pause after one or more failures in a row.

use std::time::Duration;

/// The pause after a failure, which doubles with each further failure up to a limit.
///
/// A listener applies this pause to a failed message if the broker does not delay redelivery
/// itself. Without a pause, the message would be retried in a hot loop (LST-2).
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
    /// Creates a backoff whose first pause is `first` and whose longest pause is `limit`.
    #[must_use]
    pub const fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit }
    }

    /// Returns the pause after this many failures in a row; zero if there was no failure.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.first.saturating_mul(1 << (n - 1).min(31)).min(self.limit),
        }
    }
}

/// The first pause is 1 s, and the limit is 1 min.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(60))
    }
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
}
