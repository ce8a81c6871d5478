// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Backoff`]: how long a message that failed stays away.

use std::time::Duration;

/// The pause before a message that failed comes again: doubled with each failure, up to a bound.
/// Brokers that delay by themselves do not need it; with the others it is what keeps a failing
/// message from a hot loop (LST-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
}

impl Backoff {
    /// From `first`, after the first failure, to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// The pause after this many failures; none after none.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.first.saturating_mul(1 << (n - 1).min(31)).min(self.most),
        }
    }
}

/// 1 s, doubled up to 1 min.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_the_pause_doubles_up_to_its_bound() {
        let backoff = Backoff::default();
        let seconds =
            [0, 1, 2, 3, 6, 7, 40, u32::MAX].map(|failures| backoff.after(failures).as_secs());
        assert_eq!(seconds, [0, 1, 2, 4, 32, 60, 60, 60]);
        let longer = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(longer.after(9), Duration::MAX);
    }
}
