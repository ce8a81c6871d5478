// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reclaims records within one shard, in batches of a size that the caller sets. The shard's lock
//! is therefore never held for long (STO-4).

use retryproof_core::clock::Instant;

use crate::budget::Budget;
use crate::index::NONE;
use crate::shard::{Reclaimed, Shard, note};
use crate::table::Body;
use crate::time::StoreTime;
use crate::wheel::TICK;

/// How many slots can be parked (see `table.rs`) even if the shard has fewer records.
const MAX_PARKED: u32 = 32;

impl Shard {
    /// Whether a grant should reclaim some records. Every eighth grant does so, if a record may
    /// have expired at least a tick ago.
    #[inline]
    pub(crate) fn is_sweep_due(&mut self, now: Instant, time: &StoreTime) -> bool {
        if !self.last_token.is_multiple_of(8) {
            return false;
        }
        let over = self.wheel.due().saturating_add(TICK);
        !self.ahead.is_live(over, now, time)
    }

    /// Moves to the wheel's ready list the slots that were due before the current tick. Then checks
    /// at most `most` ready slots, and removes their COMPLETE records if they have expired.
    pub(crate) fn sweep_some(&mut self, now: u64, most: usize, budget: &Budget) -> Reclaimed {
        if self.wheel.due() != 0 {
            self.wheel.gather(&mut self.table.slots, now.saturating_sub(TICK));
        }
        let mut out = Reclaimed::new();
        self.sweep_ready(now, most, usize::MAX, budget, &mut out);
        out
    }

    /// Begins a full sweep: moves to the ready list every slot whose record may have expired by
    /// `now`.
    pub(crate) fn begin_sweep(&mut self, now: u64) {
        self.wheel.gather(&mut self.table.slots, now);
    }

    /// Moves every slot to the ready list, due or not, once the parked slots outnumber the records.
    /// The sweeps of the next grants then free the parked slots and file the others again. Each
    /// deleted record therefore costs about one more check. Apart from the slots that wait for
    /// these sweeps, at most as many slots are parked as there are records, or `MAX_PARKED` if that
    /// is more.
    pub(crate) fn collect_parked(&mut self) {
        if self.table.parked() > self.table.len().max(MAX_PARKED) {
            self.wheel.gather_all(&mut self.table.slots);
        }
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
                // The record was deleted before its ttl ended. Until now, the wheel still referred
                // to its slot, so no other record could use the slot.
                Body::Busy(NONE) => {
                    self.table.unpark(at);
                    continue;
                }
                // A grant has replaced the record. The slot is filed again when that grant is
                // completed.
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

    /// Checks at most `most` entries of the IN_PROGRESS slab, starting at `from`. Removes up to
    /// `limit` records whose lease and ttl are both over (STO-4). Returns the entry at which to
    /// continue, or [`NONE`] at the end. Lowers `due` to the earliest time at which a checked
    /// record that remains can be removed.
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

    /// Returns a time before which no record of this shard can be reclaimed.
    pub(crate) fn due(&self, time: &StoreTime) -> u64 {
        self.wheel.due().min(self.busy_due.map_or(u64::MAX, |due| time.nanos(due)))
    }
}
