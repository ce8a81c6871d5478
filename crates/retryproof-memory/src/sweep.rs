// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reclaims records within one shard, in batches of the caller's size, so that the shard's lock is
//! never held for long (STO-4).

use retryproof_core::clock::Instant;

use crate::budget::Budget;
use crate::index::NONE;
use crate::shard::{Reclaimed, Shard, note};
use crate::table::Body;
use crate::time::StoreTime;
use crate::wheel::TICK;

impl Shard {
    /// Whether a grant should reclaim some records: every eighth grant does, if a record expired at
    /// least a tick ago.
    #[inline]
    pub(crate) fn is_sweep_due(&mut self, now: Instant, time: &StoreTime) -> bool {
        if !self.last_token.is_multiple_of(8) {
            return false;
        }
        let over = self.wheel.due().saturating_add(TICK);
        !self.ahead.is_live(over, now, time)
    }

    /// Removes COMPLETE records that expired before the current tick, checking at most `most` slots.
    pub(crate) fn sweep_some(&mut self, now: u64, most: usize, budget: &Budget) -> Reclaimed {
        if self.wheel.due() != 0 {
            self.wheel.gather(&mut self.table.slots, now.saturating_sub(TICK));
        }
        let mut out = Reclaimed::new();
        self.sweep_ready(now, most, usize::MAX, budget, &mut out);
        out
    }

    /// Begins a full sweep: moves every slot whose record may have expired by `now` to the ready
    /// list.
    pub(crate) fn begin_sweep(&mut self, now: u64) {
        self.wheel.gather(&mut self.table.slots, now);
    }

    /// Checks at most `most` ready slots, removes up to `limit` expired records, and returns
    /// whether more slots may be ready.
    pub(crate) fn sweep_ready(
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
                // Either the slot is free, or a grant has replaced its record; the completion of
                // that grant files the slot again.
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

    /// Checks at most `most` entries of the IN_PROGRESS slab, starting at `from`, and removes up to
    /// `limit` records whose lease and ttl are both over (STO-4). Returns where to continue, or
    /// [`NONE`] at the end, and lowers `due` to the earliest time at which another record may be
    /// removed.
    pub(crate) fn sweep_busy(
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

    /// The time before which no record of this shard can be reclaimed.
    pub(crate) fn due(&self, time: &StoreTime) -> u64 {
        self.wheel.due().min(self.busy_due.map_or(u64::MAX, |due| time.nanos(due)))
    }
}
