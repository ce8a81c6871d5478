// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoreClock`]: what the clock that decides expiry shows while faults move it (ACQ-7).
//!
//! A lease or a ttl ends by this clock. So a rule that compares an end with an instant compares two
//! readings of this clock. The order of calls still follows the machine's monotonic clock.

use super::{Fault, NEVER, Op};

/// The readings of the store's clock, in nanoseconds. A clock that no fault moves shows the
/// machine's monotonic time.
#[derive(Debug, Clone)]
pub struct StoreClock {
    steps: Vec<Step>,
}

/// A time between two moves. A move happens at an unknown instant of its fault's window, so the
/// steps before and after it overlap there.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: u64,
    to: u64,
    /// How far the clock is ahead of the machine's clock. The smallest distance in a run counts as
    /// 0.
    ahead: u64,
}

impl Default for StoreClock {
    fn default() -> Self {
        Self { steps: vec![Step { from: 0, to: u64::MAX, ahead: 0 }] }
    }
}

impl StoreClock {
    /// Returns the clock that the faults of a run have moved.
    #[must_use]
    pub fn of(faults: &[Fault]) -> Self {
        let mut moves: Vec<&Fault> = faults.iter().filter(|fault| fault.moved_ns != 0).collect();
        moves.sort_by_key(|fault| fault.from);
        let (mut ahead, mut least) = (0_i64, 0);
        for fault in &moves {
            ahead += fault.moved_ns;
            least = ahead.min(least);
        }
        let mut ahead = least.unsigned_abs();
        let mut from = 0;
        let mut steps = Vec::new();
        for fault in moves {
            steps.push(Step { from, to: fault.to.unwrap_or(u64::MAX), ahead });
            from = fault.from;
            ahead = ahead.saturating_add_signed(fault.moved_ns);
        }
        steps.push(Step { from, to: u64::MAX, ahead });
        Self { steps }
    }

    fn readings(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let met = self.steps.iter().filter(move |step| step.from <= to && from <= step.to);
        met.map(move |step| (from.max(step.from) + step.ahead, to.min(step.to) + step.ahead))
    }

    /// Returns the earliest time that the clock shows between the two instants.
    #[must_use]
    pub fn earliest(&self, from: u64, to: u64) -> u64 {
        self.readings(from, to.min(NEVER)).map(|(first, _)| first).min().unwrap_or(from)
    }

    /// Returns the latest time that the clock shows between the two instants.
    #[must_use]
    pub fn latest(&self, from: u64, to: u64) -> u64 {
        self.readings(from, to.min(NEVER)).map(|(_, last)| last).max().unwrap_or(to)
    }

    /// Returns how much of a lease or a ttl that the call began is certainly left at each instant
    /// up to `by`.
    #[must_use]
    pub fn left_of(&self, op: &Op, duration: u64, by: u64) -> u64 {
        let ends = self.earliest(op.invoke, op.end()).saturating_add(duration);
        ends.saturating_sub(self.latest(op.invoke, by))
    }

    /// Returns whether a fault moved the clock between the two instants.
    #[must_use]
    pub fn is_moved(&self, from: u64, to: u64) -> bool {
        self.readings(from, to).count() > 1
    }

    /// Returns whether a fault set the clock back between the two instants.
    #[must_use]
    pub fn is_set_back(&self, from: u64, to: u64) -> bool {
        let met: Vec<&Step> =
            self.steps.iter().filter(|step| step.from <= to && from <= step.to).collect();
        met.windows(2).any(|pair| pair[1].ahead < pair[0].ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(from: u64, to: u64, moved_ns: i64) -> Fault {
        let (name, to) = ("jump".to_owned(), Some(to));
        Fault { name, from, to, victim: None, lossy: false, real: None, moved_ns }
    }

    #[test]
    fn a_clock_that_no_fault_moves_shows_the_machines_time() {
        let clock = StoreClock::of(&[fault(3, 4, 0)]);
        assert_eq!((clock.earliest(5, 9), clock.latest(5, 9)), (5, 9));
        assert!(!clock.is_moved(0, 100));
    }

    #[test]
    fn acq_7_a_move_takes_effect_at_an_unknown_instant_of_its_window() {
        let clock = StoreClock::of(&[fault(100, 110, 1_000), fault(200, 210, -3_000)]);
        // The least of the three offsets, 0, +1000 and -2000, counts as 0.
        assert_eq!((clock.earliest(50, 60), clock.latest(50, 60)), (2_050, 2_060));
        assert_eq!((clock.earliest(105, 150), clock.latest(105, 150)), (2_105, 3_150));
        assert_eq!((clock.earliest(150, 180), clock.latest(150, 180)), (3_150, 3_180));
        assert_eq!((clock.earliest(220, 230), clock.latest(220, 230)), (220, 230));
        assert_eq!((clock.earliest(50, 250), clock.latest(50, 250)), (200, 3_210));
        assert!(clock.is_moved(50, 100) && !clock.is_moved(111, 199));
        assert!(!clock.is_set_back(50, 199) && clock.is_set_back(150, 205));
    }
}
