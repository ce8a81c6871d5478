// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Budget`] enforces the store's bounds (STO-1) without a counter that every call shares.
//!
//! One pool holds the free capacity. A shard draws a batch from the pool when its own capacity runs
//! out, and returns any excess. In between, the shard does not touch the pool. The bounds are still
//! exact, because the store collects the unused capacity of all shards before it refuses a new key.

use std::sync::atomic::Ordering;

use crate::sync::{AtomicI64, AtomicU64};

/// The largest batches that a shard draws from the pool. If the bounds are small, the batches are
/// smaller, down to a single record.
const RECORD_BATCH: i64 = 64;
const BYTE_BATCH: i64 = 64 * 1024;
/// The pause, in nanoseconds, after a search of all shards has found no free capacity. The next
/// search starts earlier if a record is known to have expired or been deleted. Without the pause, a
/// flood of new keys would keep locking one full shard after another.
const SEARCH_PAUSE: u64 = 10_000_000;

pub(crate) struct Budget {
    records: AtomicI64,
    /// The free bytes. The count is negative after completions have exceeded the bound, because the
    /// store never refuses a completion for lack of space.
    bytes: AtomicI64,
    record_batch: i64,
    byte_batch: i64,
    /// The time from which a search can find capacity again, in nanoseconds of the store's clock;
    /// zero if the store is not full.
    full_until: AtomicU64,
}

/// The capacity that a shard has drawn but not used.
#[derive(Default)]
pub(crate) struct Credit {
    records: i64,
    bytes: i64,
}

impl Budget {
    pub(crate) fn new(records: usize, bytes: u64, shards: usize) -> Self {
        let records = i64::try_from(records).unwrap_or(i64::MAX);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        // A shard holds at most two batches. The unused capacity of all shards is therefore at most
        // an eighth of each bound, or two records per shard if a batch is a single record.
        let parts = i64::try_from(shards).unwrap_or(i64::MAX).saturating_mul(16);
        Self {
            records: AtomicI64::new(records),
            bytes: AtomicI64::new(bytes),
            record_batch: (records / parts).clamp(1, RECORD_BATCH),
            byte_batch: (bytes / parts).clamp(0, BYTE_BATCH),
            full_until: AtomicU64::new(0),
        }
    }

    /// Takes capacity for one more record of `bytes` bytes, or returns `false` and takes nothing.
    #[inline]
    pub(crate) fn admit(&self, credit: &mut Credit, bytes: u64) -> bool {
        let bytes = bytes.cast_signed();
        if (credit.records < 1 || credit.bytes < bytes) && !self.draw(credit, bytes) {
            return false;
        }
        credit.records -= 1;
        credit.bytes -= bytes;
        true
    }

    #[cold]
    fn draw(&self, credit: &mut Credit, bytes: i64) -> bool {
        if credit.records < 1 {
            credit.records += up_to(&self.records, self.record_batch);
        }
        if credit.bytes < bytes {
            credit.bytes += up_to(&self.bytes, (bytes - credit.bytes).max(self.byte_batch));
        }
        credit.records >= 1 && credit.bytes >= bytes
    }

    /// Accounts for a change in the size of a record that expires at `expires` (`u64::MAX` if
    /// unknown). The change is never refused: the result of a granted lease must not be lost.
    #[inline(always)]
    pub(crate) fn resize(&self, credit: &mut Credit, before: u64, after: u64, expires: u64) {
        credit.bytes += before.cast_signed() - after.cast_signed();
        let until = self.full_until.load(Ordering::Relaxed);
        if credit.bytes < 0 || credit.bytes > 2 * self.byte_batch || until != 0 {
            // Let a full store search for capacity again as soon as this record has expired.
            if until > expires {
                self.full_until.fetch_min(expires.max(1), Ordering::Relaxed);
            }
            self.balance(credit);
        }
    }

    /// Gives the capacity of a deleted record of `bytes` bytes back to its shard.
    #[inline]
    pub(crate) fn free(&self, credit: &mut Credit, bytes: u64) {
        credit.records += 1;
        credit.bytes += bytes.cast_signed();
        let excess = credit.records > 2 * self.record_batch || credit.bytes > 2 * self.byte_batch;
        if excess || credit.bytes < 0 || self.full_until.load(Ordering::Relaxed) != 0 {
            self.balance(credit);
        }
    }

    #[cold]
    fn balance(&self, credit: &mut Credit) {
        if credit.bytes < 0 {
            // Charge the overdraft to the pool, then draw up to one batch from the bytes that the
            // pool has left.
            self.bytes.fetch_add(credit.bytes, Ordering::Relaxed);
            credit.bytes = up_to(&self.bytes, self.byte_batch);
        } else {
            self.collect(credit);
        }
    }

    /// Returns a shard's unused capacity to the pool.
    pub(crate) fn collect(&self, credit: &mut Credit) {
        if credit.records == 0 && credit.bytes == 0 {
            return;
        }
        self.records.fetch_add(std::mem::take(&mut credit.records), Ordering::Relaxed);
        self.bytes.fetch_add(std::mem::take(&mut credit.bytes), Ordering::Relaxed);
        self.full_until.store(0, Ordering::Relaxed);
    }

    /// Whether the pool alone has capacity for `records` records of `bytes` bytes each.
    pub(crate) fn has_room(&self, records: u32, bytes: u64) -> bool {
        self.records.load(Ordering::Relaxed) >= i64::from(records)
            && self.bytes.load(Ordering::Relaxed)
                >= bytes.cast_signed().saturating_mul(i64::from(records))
    }

    /// Whether a search at `now` might find free capacity.
    pub(crate) fn worth_a_search(&self, now: u64) -> bool {
        now >= self.full_until.load(Ordering::Relaxed)
    }

    /// Remembers that a search found no capacity, and that no record expires before `due`.
    pub(crate) fn found_none(&self, now: u64, due: u64) {
        self.full_until.store(due.min(now.saturating_add(SEARCH_PAUSE)).max(1), Ordering::Relaxed);
    }
}

/// Takes up to `want` from the pool, and returns the amount taken.
fn up_to(pool: &AtomicI64, want: i64) -> i64 {
    let mut have = pool.load(Ordering::Relaxed);
    loop {
        let take = have.min(want).max(0);
        if take == 0 {
            return 0;
        }
        match pool.compare_exchange_weak(have, have - take, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return take,
            Err(now) => have = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_1_the_bounds_are_exact_however_they_are_spread() {
        let budget = Budget::new(100_000, 10_000_000, 4);
        let mut credits: [Credit; 4] = Default::default();
        let mut admitted = 0;
        while (0..4).any(|at| budget.admit(&mut credits[at], 50)) {
            admitted += 1;
        }
        assert_eq!(admitted, 100_000);
        budget.free(&mut credits[2], 50);
        assert!(!budget.admit(&mut credits[1], 50), "the free bytes belong to another shard");
        budget.collect(&mut credits[2]);
        assert!(budget.admit(&mut credits[1], 50));
    }

    #[test]
    fn sto_1_bytes_over_the_bound_are_owed() {
        let budget = Budget::new(1_000, 1_000, 1);
        let mut credit = Credit::default();
        assert!(budget.admit(&mut credit, 100));
        budget.resize(&mut credit, 100, 5_000, u64::MAX);
        budget.collect(&mut credit);
        assert!(!budget.admit(&mut credit, 1));
        budget.free(&mut credit, 5_000);
        budget.collect(&mut credit);
        assert!(!budget.admit(&mut credit, 1_001));
        assert!(budget.admit(&mut credit, 1_000));
    }

    #[test]
    fn sto_1_a_search_is_not_repeated_until_something_may_have_gone() {
        let budget = Budget::new(1, 1_000, 1);
        let mut credit = Credit::default();
        assert!(budget.admit(&mut credit, 10));
        budget.collect(&mut credit);
        budget.found_none(50, u64::MAX);
        assert!(!budget.worth_a_search(51) && budget.worth_a_search(50 + SEARCH_PAUSE));
        budget.resize(&mut credit, 10, 10, 60);
        assert!(!budget.worth_a_search(59) && budget.worth_a_search(60));
        budget.found_none(60, u64::MAX);
        budget.free(&mut credit, 10);
        assert!(budget.worth_a_search(61), "a record has gone");
    }
}
