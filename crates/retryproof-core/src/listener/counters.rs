// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`VerdictCounters`]: counts verdicts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Poison, Reason, Verdict};

/// Counts the verdicts of a consumer by reason. Like [`Counters`](crate::observe::Counters),
/// `VerdictCounters` works without a metrics library.
#[derive(Debug, Default)]
pub struct VerdictCounters {
    acks: AtomicU64,
    nacks: AtomicU64,
    dead_letters: AtomicU64,
    reasons: [AtomicU64; REASONS.len()],
}

/// The counts that [`VerdictCounters::read`] returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerdictCounts {
    /// Messages that were acknowledged.
    pub acks: u64,
    /// Messages that were returned to the broker for redelivery.
    pub nacks: u64,
    /// Messages that became dead letters.
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

impl VerdictCounters {
    /// Counts one verdict.
    pub fn count(&self, verdict: &Verdict) {
        let answer = match verdict {
            Verdict::Ack { .. } => &self.acks,
            Verdict::Nack { .. } => &self.nacks,
            Verdict::DeadLetter { .. } => &self.dead_letters,
        };
        answer.fetch_add(1, Ordering::Relaxed);
        if let Some(reason) = self.of(verdict.reason()) {
            reason.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the numbers of acks, nacks and dead letters.
    #[must_use]
    pub fn read(&self) -> VerdictCounts {
        VerdictCounts {
            acks: self.acks.load(Ordering::Relaxed),
            nacks: self.nacks.load(Ordering::Relaxed),
            dead_letters: self.dead_letters.load(Ordering::Relaxed),
        }
    }

    /// Returns how many verdicts had this reason.
    #[must_use]
    pub fn count_of(&self, reason: Reason) -> u64 {
        self.of(reason).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns all reasons with their counts, for a metrics library.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        REASONS
            .iter()
            .zip(&self.reasons)
            .map(|(reason, count)| (*reason, count.load(Ordering::Relaxed)))
    }

    fn of(&self, reason: Reason) -> Option<&AtomicU64> {
        REASONS.iter().position(|known| *known == reason).map(|at| &self.reasons[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_verdicts_are_counted_by_answer_and_by_reason() {
        let counters = VerdictCounters::default();
        REASONS.iter().for_each(|reason| counters.count(&Verdict::Ack { reason: *reason }));
        counters.count(&Verdict::failed());
        counters.count(&Verdict::poison(Poison::NoKey));
        assert_eq!(counters.read(), VerdictCounts { acks: 15, nacks: 1, dead_letters: 1 });
        let twice = |reason| reason == Reason::Failed || reason == Reason::Poison(Poison::NoKey);
        assert!(counters.iter().all(|(reason, count)| count == if twice(reason) { 2 } else { 1 }));
        assert_eq!(counters.count_of(Reason::Panicked), 1);
    }
}
