// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Table`]: slots found by hash, in chains over buckets that grow one at a time (linear hashing).
//!
//! A table that doubles stalls whoever inserts the record too many, and stands half empty after it.
//! Here each insert adds one bucket and splits one chain of about one record: no stall at any size,
//! and the same bytes per record at a thousand and at ten million. The price is one more dependent
//! load per look-up than an open table has. Nothing shrinks: freed slots are used again, so the
//! table stays as large as the store has been full.

use super::chunked::Chunked;
use super::record::Done;
use super::{NONE, UNFILED};

/// What stands in a slot. One word of niche keeps it at 16 bytes.
pub(super) enum Body {
    Done(Done),
    /// A place in the slab of IN_PROGRESS records; [`NONE`] in a free slot.
    Busy(u32),
}

/// 32 bytes, aligned so that one never lies across two cache lines.
#[repr(align(32))]
pub(super) struct Slot {
    pub(super) body: Body,
    pub(super) hash: u32,
    pub(super) scope: u32,
    /// The next slot of the bucket, or of the free list.
    pub(super) chain: u32,
    /// The next slot in a list of the wheel, or [`UNFILED`]. Belongs to the slot, not to what
    /// stands in it.
    pub(super) timer: u32,
}

const _: () = assert!(size_of::<Slot>() == 32);

/// What a record takes besides its body: a slot and a bucket.
pub(super) const SLOT_BYTES: u64 = 36;

/// The slots, in chunks of 2 KiB.
pub(super) type Slots = Chunked<Slot, 64>;

impl Slot {
    fn free() -> Self {
        Self { body: Body::Busy(NONE), hash: 0, scope: 0, chain: NONE, timer: UNFILED }
    }
}

pub(super) struct Table {
    pub(super) slots: Slots,
    buckets: Chunked<u32, 128>,
    /// The smallest 2^n - 1 that covers all buckets.
    mask: u32,
    free: u32,
    len: u32,
}

impl Table {
    pub(super) fn with_capacity(records: u32) -> Self {
        let mut table =
            Self { slots: Chunked::new(), buckets: Chunked::new(), mask: 0, free: NONE, len: 0 };
        table.buckets.push_with(|| NONE);
        while table.buckets.len() < records {
            table.add_bucket();
        }
        table
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The first slot of the chain in which records with this hash are; [`NONE`] for none.
    #[inline(always)]
    pub(super) fn chain(&self, hash: u32) -> u32 {
        self.buckets.get(self.bucket(hash)).copied().unwrap_or(NONE)
    }

    /// Whether it has as many slots as it can number.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len >= UNFILED - 1
    }

    /// Adds a slot, if the table is not [full](Self::is_full), and says where.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, scope: u32, body: Body) -> u32 {
        if self.len >= self.buckets.len() {
            self.add_bucket();
        }
        let mut at = self.free;
        if at == NONE {
            at = self.slots.push_with(Slot::free);
        }
        let bucket = self.bucket(hash);
        let head = &mut self.buckets[bucket];
        let slot = &mut self.slots[at];
        self.free = std::mem::replace(&mut slot.chain, std::mem::replace(head, at));
        (slot.body, slot.hash, slot.scope) = (body, hash, scope);
        self.len += 1;
        at
    }

    /// Frees a slot and hands out what stood in it, to be dropped after the lock.
    pub(super) fn remove(&mut self, at: u32) -> Body {
        let (hash, next) = (self.slots[at].hash, self.slots[at].chain);
        let bucket = self.bucket(hash);
        let mut before = self.buckets[bucket];
        if before == at {
            self.buckets[bucket] = next;
        } else {
            while self.slots[before].chain != at {
                before = self.slots[before].chain;
            }
            self.slots[before].chain = next;
        }
        self.len -= 1;
        let slot = &mut self.slots[at];
        slot.chain = self.free;
        self.free = at;
        std::mem::replace(&mut slot.body, Body::Busy(NONE))
    }

    #[inline]
    fn bucket(&self, hash: u32) -> u32 {
        let bucket = hash & self.mask;
        if bucket < self.buckets.len() { bucket } else { bucket & (self.mask >> 1) }
    }

    /// Adds bucket n and moves into it what belongs there from the one bucket that held it so far.
    #[inline]
    fn add_bucket(&mut self) {
        let new = self.buckets.len();
        if new > self.mask {
            self.mask = self.mask << 1 | 1;
        }
        let old = &mut self.buckets[new & (self.mask >> 1)];
        let (mut stay, mut go) = (NONE, NONE);
        let mut at = *old;
        while at != NONE {
            let slot = &mut self.slots[at];
            let list = if slot.hash & self.mask == new { &mut go } else { &mut stay };
            let next = std::mem::replace(&mut slot.chain, *list);
            *list = at;
            at = next;
        }
        *old = stay;
        let new = self.buckets.push_with(|| NONE);
        self.buckets[new] = go;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn find(table: &Table, hash: u32, value: u32) -> Option<u32> {
        let mut at = table.chain(hash);
        while at != NONE && (table.slots[at].hash, table.slots[at].scope) != (hash, value) {
            at = table.slots[at].chain;
        }
        (at != NONE).then_some(at)
    }

    /// A random walk of inserts and removals beside a `HashMap`; `scope` stands for the value.
    #[test]
    fn the_table_agrees_with_a_hash_map() {
        let mut random = 7_u64;
        let mut next = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(random >> 40).unwrap()
        };
        for mask in [0x3, 0xff, u32::MAX] {
            let mut table = Table::with_capacity(3);
            let mut map: HashMap<u32, u32> = HashMap::new();
            for step in 0..20_000 {
                // Few distinct hashes under a narrow mask: long chains.
                let value = next() % 3_000;
                let hash = value.wrapping_mul(2_654_435_769) & mask;
                let found = find(&table, hash, value);
                assert_eq!(found.is_some(), map.contains_key(&value), "step {step}");
                match found {
                    Some(at) if next() % 3 == 0 => {
                        assert!(
                            matches!(table.remove(at), Body::Busy(n) if map.remove(&value) == Some(n))
                        );
                    }
                    Some(_) => {}
                    None => {
                        table.insert(hash, value, Body::Busy(step));
                        map.insert(value, step);
                    }
                }
                assert_eq!(table.len() as usize, map.len());
            }
            for (value, body) in &map {
                let at = find(&table, value.wrapping_mul(2_654_435_769) & mask, *value).unwrap();
                assert!(matches!(table.slots[at].body, Body::Busy(n) if n == *body));
            }
            assert!(table.buckets.len() >= table.len());
        }
    }
}
