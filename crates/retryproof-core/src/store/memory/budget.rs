// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Budget`]: the store's bounds (STO-1), shared by the shards without a shared counter on every
//! call.
//!
//! What is free lies in one pool. A shard draws a batch from it when it runs out and gives back
//! what it has too much of; in between it counts for itself. The bounds are exact all the same:
//! before a new key is refused, what lies unused in the shards is collected.

use std::sync::atomic::Ordering;

use super::sync::{AtomicI64, AtomicU64};

/// Batches for bounds that are large; a smaller bound has smaller ones, down to single records.
const RECORD_BATCH: i64 = 64;
const BYTE_BATCH: i64 = 64 * 1024;
/// Once a search through all shards has found no room, the next is made after this many
/// nanoseconds, or when a record is known to expire or to have gone. It keeps a flood of new keys
/// from locking shards that have no room to give.
const SEARCH_PAUSE: u64 = 10_000_000;

pub(super) struct Budget {
    records: AtomicI64,
    /// Below zero after completions that went over the bound: a result is never refused for it.
    bytes: AtomicI64,
    record_batch: i64,
    byte_batch: i64,
    /// No room before this, as far as is known; zero when the store is not full.
    full_until: AtomicU64,
}

/// What a shard has drawn and not used.
#[derive(Default)]
pub(super) struct Credit {
    records: i64,
    bytes: i64,
}

impl Budget {
    pub(super) fn new(records: usize, bytes: u64, shards: usize) -> Self {
        let records = i64::try_from(records).unwrap_or(i64::MAX);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        // All shards together hold back at most an eighth.
        let parts = i64::try_from(shards).unwrap_or(i64::MAX).saturating_mul(16);
        Self {
            records: AtomicI64::new(records),
            bytes: AtomicI64::new(bytes),
            record_batch: (records / parts).clamp(1, RECORD_BATCH),
            byte_batch: (bytes / parts).clamp(0, BYTE_BATCH),
            full_until: AtomicU64::new(0),
        }
    }

    /// Takes room for one more record of `bytes`. `false` takes nothing.
    #[inline]
    pub(super) fn admit(&self, credit: &mut Credit, bytes: u64) -> bool {
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

    /// A record that stays changes its size, and expires at `expires` if that is known. Never
    /// refused: the result of a lease that was granted must not be lost.
    #[inline]
    pub(super) fn resize(&self, credit: &mut Credit, before: u64, after: u64, expires: u64) {
        credit.bytes += before.cast_signed() - after.cast_signed();
        let until = self.full_until.load(Ordering::Relaxed);
        if credit.bytes < 0 || credit.bytes > 2 * self.byte_batch || until != 0 {
            // A store that is full looks again when it can expect room.
            if until > expires {
                self.full_until.fetch_min(expires.max(1), Ordering::Relaxed);
            }
            self.balance(credit);
        }
    }

    /// A record of `bytes` is gone.
    #[inline]
    pub(super) fn free(&self, credit: &mut Credit, bytes: u64) {
        credit.records += 1;
        credit.bytes += bytes.cast_signed();
        let much = credit.records > 2 * self.record_batch || credit.bytes > 2 * self.byte_batch;
        if much || credit.bytes < 0 || self.full_until.load(Ordering::Relaxed) != 0 {
            self.balance(credit);
        }
    }

    #[cold]
    fn balance(&self, credit: &mut Credit) {
        if credit.bytes < 0 {
            // An overdraft; what more it takes, the pool has.
            self.bytes.fetch_add(credit.bytes, Ordering::Relaxed);
            credit.bytes = up_to(&self.bytes, self.byte_batch);
        } else {
            self.collect(credit);
        }
    }

    /// Puts all credit of a shard back into the pool.
    pub(super) fn collect(&self, credit: &mut Credit) {
        if credit.records == 0 && credit.bytes == 0 {
            return;
        }
        self.records.fetch_add(std::mem::take(&mut credit.records), Ordering::Relaxed);
        self.bytes.fetch_add(std::mem::take(&mut credit.bytes), Ordering::Relaxed);
        self.full_until.store(0, Ordering::Relaxed);
    }

    /// Whether the pool alone has room for so many records of `bytes` each.
    pub(super) fn has_room(&self, records: u32, bytes: u64) -> bool {
        self.records.load(Ordering::Relaxed) >= i64::from(records)
            && self.bytes.load(Ordering::Relaxed)
                >= bytes.cast_signed().saturating_mul(i64::from(records))
    }

    /// Whether a search for room may find some.
    pub(super) fn worth_a_search(&self, now: u64) -> bool {
        now >= self.full_until.load(Ordering::Relaxed)
    }

    /// A search has found nothing; the next record expires at `due`, as far as is known.
    pub(super) fn found_none(&self, now: u64, due: u64) {
        self.full_until.store(due.min(now.saturating_add(SEARCH_PAUSE)).max(1), Ordering::Relaxed);
    }
}

/// Takes what the pool has, at most `want`.
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
        assert!(!budget.admit(&mut credits[1], 50), "the room lies in another shard");
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
