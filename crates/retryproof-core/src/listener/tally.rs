// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tally`]: counts verdicts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Poison, Reason, Verdict};

/// Counts what a consumer answered, by reason: a metric without a metrics library, as
/// [`Counters`](crate::observe::Counters) is.
#[derive(Debug, Default)]
pub struct Tally {
    acks: AtomicU64,
    nacks: AtomicU64,
    dead_letters: AtomicU64,
    reasons: [AtomicU64; REASONS.len()],
}

/// What a [`Tally`] read at one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tallied {
    /// Messages acknowledged.
    pub acks: u64,
    /// Messages given back, to come again.
    pub nacks: u64,
    /// Messages sent to the dead letters.
    pub dead_letters: u64,
}

const REASONS: [Reason; 15] = [
    Reason::Executed,
    Reason::Replayed,
    Reason::NotReplayable,
    Reason::InFlight,
    Reason::Mismatch,
    Reason::Poison(Poison::NoKey),
    Reason::Poison(Poison::BadKey),
    Reason::Poison(Poison::Unreadable),
    Reason::Unreadable,
    Reason::LeaseLost,
    Reason::Store,
    Reason::NotRecorded,
    Reason::Failed,
    Reason::Held,
    Reason::Panicked,
];

impl Tally {
    /// One message more.
    pub fn count(&self, verdict: &Verdict) {
        let answer = match verdict {
            Verdict::Ack { .. } => &self.acks,
            Verdict::Nack { .. } => &self.nacks,
            Verdict::DeadLetter { .. } => &self.dead_letters,
        };
        answer.fetch_add(1, Ordering::Relaxed);
        if let Some(reason) = self.of(verdict.why()) {
            reason.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// By answer.
    #[must_use]
    pub fn read(&self) -> Tallied {
        Tallied {
            acks: self.acks.load(Ordering::Relaxed),
            nacks: self.nacks.load(Ordering::Relaxed),
            dead_letters: self.dead_letters.load(Ordering::Relaxed),
        }
    }

    /// How many for this reason.
    #[must_use]
    pub fn because(&self, why: Reason) -> u64 {
        self.of(why).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// All reasons with their counts, for a metrics library.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        REASONS.iter().zip(&self.reasons).map(|(why, count)| (*why, count.load(Ordering::Relaxed)))
    }

    fn of(&self, why: Reason) -> Option<&AtomicU64> {
        REASONS.iter().position(|known| *known == why).map(|at| &self.reasons[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_verdicts_are_counted_by_answer_and_by_reason() {
        let tally = Tally::default();
        REASONS.iter().for_each(|why| tally.count(&Verdict::Ack { why: *why }));
        tally.count(&Verdict::failed());
        tally.count(&Verdict::poison(Poison::NoKey));
        assert_eq!(tally.read(), Tallied { acks: 15, nacks: 1, dead_letters: 1 });
        let twice = |why| why == Reason::Failed || why == Reason::Poison(Poison::NoKey);
        assert!(tally.iter().all(|(why, count)| count == if twice(why) { 2 } else { 1 }));
        assert_eq!(tally.because(Reason::Panicked), 1);
    }
}
