// SPDX-License-Identifier: MIT OR Apache-2.0
//! At which times of the record a call may have taken effect, as far as the store's clock shows.

use model::{Done, Held, Record, Slot, Tick};

use super::{GONE, LONG, OVER, Puzzle, State};
use crate::when::slop;

impl Puzzle<'_> {
    /// Returns whether the call that was under way between the two instants may have found the
    /// record in this state at the time `now`.
    pub(super) fn may_be(&self, state: &State, now: Tick, from: u64, to: u64) -> bool {
        let (least, most) = state.ends;
        let earliest = self.clock.earliest(from, to);
        let reaches =
            |from: u64, end: u64| self.clock.latest(from, to).saturating_add(slop(LONG)) >= end;
        // A record that was over at any instant since its end was set may have been purged.
        let since = state.since.min(from);
        match state.slot.record {
            Record::Absent => now == 0,
            Record::InProgress(held) => {
                let silent = self.stretched.get(usize::from(held.owner.0));
                let silent = silent.filter(|(at, _)| *at <= to);
                let (began, ttl) = state.granted;
                let began = began.min(from);
                // After the clock was set back, an extension may have shortened the lease, and what
                // is left of the ttl.
                let silent_end = |span: u64| {
                    let silent = silent.filter(|_| self.clock.is_set_back(began, to));
                    silent.map(|(at, _)| self.clock.earliest(*at, to).saturating_add(span))
                };
                let shortened = silent_end(silent.map_or(0, |(_, lease)| *lease));
                let shortened = shortened.is_some_and(|end| reaches(from, end));
                let gone = reaches(began, state.kept)
                    || silent_end(ttl).is_some_and(|end| reaches(from, end));
                match now {
                    0 => silent.is_some() || earliest <= most.saturating_add(slop(LONG)),
                    OVER => shortened || reaches(from, least),
                    _ => (shortened || reaches(since, least)) && gone,
                }
            }
            Record::Complete(_) => match now {
                0 => earliest <= most.saturating_add(slop(LONG)),
                GONE => reaches(since, least),
                _ => false,
            },
        }
    }
}

/// Moves the record back to time 0 of its artificial clock.
pub(super) fn put_back(slot: Slot) -> Slot {
    let record = match slot.record {
        Record::InProgress(held) => {
            Record::InProgress(Held { expires: OVER, keep_until: GONE, ..held })
        }
        Record::Complete(done) => Record::Complete(Done { expires: GONE, ..done }),
        Record::Absent => Record::Absent,
    };
    Slot { record, ..slot }
}
