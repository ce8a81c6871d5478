// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reclaiming within one shard, in batches that the caller sizes, so that no hold of its lock is
//! long (STO-4).

use super::NONE;
use super::budget::Budget;
use super::shard::{Reclaimed, Shard, note};
use super::table::Body;
use super::time::Time;
use super::wheel::TICK;
use crate::clock::Instant;

impl Shard {
    /// Whether a record expired a tick ago or more: then a grant is a good moment to reclaim some.
    /// Every eighth one asks.
    #[inline]
    pub(super) fn has_litter(&mut self, now: Instant, time: &Time) -> bool {
        if !self.last_token.is_multiple_of(8) {
            return false;
        }
        let over = self.wheel.due().saturating_add(TICK);
        !self.ahead.is_live(over, now, time)
    }

    /// Takes COMPLETE records past their ttl out of whole ticks that are over, looking at `most`
    /// slots.
    pub(super) fn sweep_some(&mut self, now: u64, most: usize, budget: &Budget) -> Reclaimed {
        if self.wheel.due() != 0 {
            self.wheel.gather(&mut self.table.slots, now.saturating_sub(TICK));
        }
        let mut out = Reclaimed::new();
        self.sweep_ready(now, most, usize::MAX, budget, &mut out);
        out
    }

    /// Begins a full sweep of the wheel: what has expired by `now` is ready.
    pub(super) fn begin_sweep(&mut self, now: u64) {
        self.wheel.gather(&mut self.table.slots, now);
    }

    /// Looks at `most` slots that are ready, takes up to `limit` records out, and says whether
    /// there are more to look at.
    pub(super) fn sweep_ready(
        &mut self,
        now: u64,
        most: usize,
        limit: usize,
        budget: &Budget,
        out: &mut Reclaimed,
    ) -> bool {
        for _ in 0..most {
            if out.len() >= limit {
                return true;
            }
            let Some(at) = self.wheel.take(&mut self.table.slots) else { return false };
            let expires = match &self.table.slots[at].body {
                Body::Done(done) => done.expires(),
                // Free, or replaced by a grant: it is filed again when that is completed.
                Body::Busy(_) => continue,
            };
            if expires <= now {
                out.push(self.delete(at, budget));
            } else {
                self.wheel.file(&mut self.table.slots[at], at, expires);
            }
        }
        true
    }

    /// Looks at `most` places of IN_PROGRESS records from `from` on and takes out up to `limit` of
    /// those whose lease and ttl are both over (STO-4). Says where to go on, [`NONE`] at the end,
    /// and lowers `due` to when the next of those that stay may go.
    pub(super) fn sweep_busy(
        &mut self,
        now: Instant,
        from: u32,
        due: &mut Option<Instant>,
        (most, limit): (usize, usize),
        budget: &Budget,
        out: &mut Reclaimed,
    ) -> u32 {
        let end = self.busy.places();
        let mut at = from;
        for _ in 0..most {
            if at >= end || out.len() >= limit {
                break;
            }
            let busy = &self.busy[at];
            if busy.key.is_some() {
                if busy.due() <= now {
                    out.push(self.delete(busy.slot, budget));
                } else {
                    note(due, busy.due());
                }
            }
            at += 1;
        }
        if at >= end { NONE } else { at }
    }

    /// A time before which no record of this shard can be reclaimed.
    pub(super) fn due(&self, time: &Time) -> u64 {
        self.wheel.due().min(self.busy_due.map_or(u64::MAX, |due| time.nanos(due)))
    }
}
