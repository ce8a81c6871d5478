// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Table`] finds slots by hash. Each bucket has a chain of slots, and buckets are added one at a
//! time (linear hashing).
//!
//! A table that doubles its size stalls the insert that triggers the growth, and is half empty
//! afterwards. Here each insert adds at most one bucket and splits at most one chain, which has
//! about one record. Inserts therefore never stall, and a record takes the same number of bytes in
//! a table of a thousand records as in a table of ten million. In return, each lookup has one more
//! dependent load than with open addressing. Freed slots are reused, and the table never shrinks.
//!
//! If a record is deleted before its timer is over, its slot stays in the wheel, because a slot
//! cannot be taken out of the middle of the wheel's lists. Such a slot is *parked*: it is reused
//! only after it has left the wheel. Otherwise, the wheel would return the slot's next record when
//! the deleted record's timer is over.

use crate::chunked::Chunked;
use crate::index::{NONE, UNFILED};
use crate::record::Done;

/// The record in a slot. The niche of `Done` keeps this enum at 16 bytes.
pub(crate) enum Body {
    Done(Done),
    /// An index in the slab of IN_PROGRESS records; [`NONE`] in a free slot.
    Busy(u32),
}

/// A slot: 32 bytes, aligned so that it never crosses a cache line.
#[repr(align(32))]
pub(crate) struct Slot {
    pub(crate) body: Body,
    pub(crate) hash: u32,
    pub(crate) scope: u32,
    /// The next slot of the bucket, or of the free list.
    pub(crate) chain: u32,
    /// The next slot in a list of the wheel, or [`UNFILED`]. The link stays with the slot when the
    /// slot's record changes.
    pub(crate) timer: u32,
}

const _: () = assert!(size_of::<Slot>() == 32);

/// The bytes that a record takes in the table: a slot and a bucket.
pub(crate) const SLOT_BYTES: u64 = 36;

/// The slots, in chunks of 2 KiB.
pub(crate) type Slots = Chunked<Slot, 64>;

impl Slot {
    fn free() -> Self {
        Self { body: Body::Busy(NONE), hash: 0, scope: 0, chain: NONE, timer: UNFILED }
    }
}

pub(crate) struct Table {
    pub(crate) slots: Slots,
    buckets: Chunked<u32, 128>,
    /// The smallest 2^n - 1 that covers all buckets.
    mask: u32,
    free: u32,
    len: u32,
    /// The number of parked slots.
    parked: u32,
}

impl Table {
    pub(crate) fn with_capacity(records: u32) -> Self {
        let mut table = Self {
            slots: Chunked::new(),
            buckets: Chunked::new(),
            mask: 0,
            free: NONE,
            len: 0,
            parked: 0,
        };
        table.buckets.push_with(|| NONE);
        while table.buckets.len() < records {
            table.add_bucket();
        }
        table
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of slots that are empty, but still in the wheel.
    #[inline]
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    /// Returns the first slot of the chain for this hash, or [`NONE`].
    #[inline(always)]
    pub(crate) fn chain(&self, hash: u32) -> u32 {
        self.buckets.get(self.bucket(hash)).copied().unwrap_or(NONE)
    }

    /// Whether all slot numbers are in use.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() >= UNFILED - 1 && self.free == NONE
    }

    /// Adds a slot to a table that is not [full](Self::is_full), and returns its index.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u32, scope: u32, body: Body) -> u32 {
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

    /// Empties a slot and returns its record. Drop the record after the lock is released. The slot
    /// becomes free, or parked if it is still in the wheel.
    pub(crate) fn remove(&mut self, at: u32) -> Body {
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
        if slot.timer == UNFILED {
            slot.chain = self.free;
            self.free = at;
        } else {
            self.parked += 1;
        }
        std::mem::replace(&mut slot.body, Body::Busy(NONE))
    }

    /// Frees a parked slot that has left the wheel.
    pub(crate) fn unpark(&mut self, at: u32) {
        self.slots[at].chain = self.free;
        self.free = at;
        self.parked -= 1;
    }

    #[inline]
    fn bucket(&self, hash: u32) -> u32 {
        let bucket = hash & self.mask;
        if bucket < self.buckets.len() { bucket } else { bucket & (self.mask >> 1) }
    }

    /// Adds a bucket, and moves the slots that now belong to it.
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

    /// Makes the same random inserts and removals in a table and in a `HashMap`, and compares them;
    /// `scope` serves as the value.
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
                // The mask leaves only a few distinct hashes, so the chains become long.
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
