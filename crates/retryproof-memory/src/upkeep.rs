// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reclaims records across all shards, for [`Purge`] and for a new key that does not fit.

use retryproof_core::Result;
use retryproof_core::store::Purge;

use crate::index::NONE;
use crate::shard::{Reclaimed, Shard, note};
use crate::store::{MemoryStore, PaddedShard};
use crate::sync::Mutex;
use crate::time::Now;

/// How many records are checked or removed each time a shard's lock is held.
const BATCH: usize = 256;

impl MemoryStore {
    /// Collects unused credit and reclaims expired records, shard by shard, until the pool has
    /// capacity for several records. Returns whether the pool has capacity for one record of
    /// `bytes` bytes.
    #[cold]
    pub(crate) fn make_room(&self, now: Now, bytes: u64) -> bool {
        // End the search early only if it has found room for several records. If room for one
        // record were enough, every grant in a nearly full store would have to search.
        const SOME: u32 = 64;

        if !self.budget.worth_a_search(now.nanos) {
            return false;
        }
        let mut due = u64::MAX;
        for PaddedShard(shard) in &self.shards {
            let mut locked = shard.lock();
            if locked.due(&self.time) <= now.nanos {
                drop(locked);
                self.purge_shard(shard, now, BATCH);
                locked = shard.lock();
            }
            self.budget.collect(&mut locked.credit);
            due = due.min(locked.due(&self.time));
            drop(locked);
            if self.budget.has_room(SOME, bytes) {
                return true;
            }
        }
        let room = self.budget.has_room(1, bytes);
        if !room {
            self.budget.found_none(now.nanos, due);
        }
        room
    }

    /// Reclaims up to `limit` expired records of one shard and returns how many it reclaimed.
    fn purge_shard(&self, shard: &Mutex<Shard>, now: Now, limit: usize) -> usize {
        let mut gone = 0;
        shard.lock().begin_sweep(now.nanos);
        loop {
            let mut out = Reclaimed::new();
            let more =
                shard.lock().sweep_ready(now.nanos, BATCH, limit - gone, &self.budget, &mut out);
            gone += settle(out);
            if gone >= limit {
                return gone;
            }
            if !more {
                break;
            }
        }
        let (mut at, mut due) = (0, None);
        // Clear `busy_due` before the pass over the records in progress. During the pass, each new
        // grant notes when its own record is due. At the end of the pass, this function notes the
        // earliest time at which a checked record is due.
        shard.lock().busy_due = None;
        while at != NONE {
            let mut out = Reclaimed::new();
            let mut locked = shard.lock();
            let most = (BATCH, limit - gone);
            at = locked.sweep_busy(now.at, at, &mut due, most, &self.budget, &mut out);
            let enough = gone + out.len() >= limit;
            if at == NONE || enough {
                // If the pass ends early, treat the remaining records as due now, because the pass
                // has not checked them.
                let due = if at == NONE { due } else { Some(now.at) };
                if let Some(due) = due {
                    note(&mut locked.busy_due, due);
                }
            }
            drop(locked);
            gone += settle(out);
            if enough {
                break;
            }
        }
        gone
    }
}

/// Wakes the waiters of the reclaimed records, drops the records outside the lock, and returns how
/// many there were.
fn settle(reclaimed: Reclaimed) -> usize {
    let count = reclaimed.len();
    reclaimed.into_iter().for_each(|left| left.settle());
    count
}

impl Purge for MemoryStore {
    async fn purge(&self, limit: usize) -> Result<usize> {
        let now = self.time.now();
        let mut gone = 0;
        for PaddedShard(shard) in &self.shards {
            if gone >= limit {
                break;
            }
            gone += self.purge_shard(shard, now, limit - gone);
        }
        Ok(gone)
    }
}
