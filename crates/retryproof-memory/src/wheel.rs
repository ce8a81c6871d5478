// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Wheel`]: a timer wheel. The wheel finds the COMPLETE records that may have expired, without
//! looking at the other records (STO-4).
//!
//! The wheel has five levels of 64 buckets and a tick of 2^30 ns. A bucket is a list linked through
//! the slots' `timer` fields, so filing a record costs no memory. When a bucket is due, its list is
//! appended to `ready`. The caller takes slots from `ready`, in batches of any size, and reclaims
//! each slot or files it again, depending on when its record expires. This one rule covers records
//! that move down a level, records that were replaced, and records that come up early.

use crate::index::{NONE, UNFILED};
use crate::table::{Slot, Slots};

const LEVELS: usize = 5;
const TOP: u32 = 4;
const BITS: u32 = 6;
const BUCKETS: usize = 1 << BITS;
const TICK_BITS: u32 = 30;
/// One tick in nanoseconds: about a second.
pub(crate) const TICK: u64 = 1 << TICK_BITS;
/// The wheel's horizon is 36 years from the clock's epoch. The longest duration, `FAR`, must be at
/// most half of that. A record that expires after the horizon comes up early and is filed again.
const _: () = assert!(crate::time::FAR >> TICK_BITS <= 1 << (BITS * TOP + BITS - 1));

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE };

    #[inline]
    fn push(&mut self, slot: &mut Slot, at: u32) {
        if self.head == NONE {
            self.tail = at;
        }
        slot.timer = self.head;
        self.head = at;
    }

    #[inline]
    fn pop(&mut self, slots: &mut Slots) -> Option<u32> {
        let at = self.head;
        if at == NONE {
            return None;
        }
        self.head = std::mem::replace(&mut slots[at].timer, UNFILED);
        Some(at)
    }

    fn append(&mut self, slots: &mut Slots, other: Self) {
        if self.head == NONE {
            *self = other;
        } else if other.head != NONE {
            slots[self.tail].timer = other.head;
            self.tail = other.tail;
        }
    }
}

pub(crate) struct Wheel {
    /// The tick up to which all buckets have been gathered. A record that expired before this tick
    /// goes into the tick's bucket.
    cursor: u64,
    ready: List,
    /// No record in a bucket expires before this time.
    due: u64,
    /// For each level, one bit per bucket, set if the bucket is not empty.
    occupied: [u64; LEVELS],
    /// The buckets are allocated when the first record is filed, so an unused shard stays small.
    buckets: Option<Box<[[List; BUCKETS]; LEVELS]>>,
}

impl Wheel {
    pub(crate) const fn new() -> Self {
        Self { cursor: 0, ready: List::EMPTY, due: u64::MAX, occupied: [0; LEVELS], buckets: None }
    }

    /// Returns a time before which [`take`](Self::take) finds no expired record.
    #[inline]
    pub(crate) fn due(&self) -> u64 {
        if self.ready.head == NONE { self.due } else { 0 }
    }

    /// Files the slot `at`, which must not be in a list.
    #[inline]
    pub(crate) fn file(&mut self, slot: &mut Slot, at: u32, expires: u64) {
        self.due = self.due.min(expires);
        let tick = (expires >> TICK_BITS).max(self.cursor);
        // The level is the position of the highest digit in which the tick and the cursor differ.
        let level = ((63 - ((tick ^ self.cursor) | 1).leading_zeros()) / BITS).min(TOP);
        let bucket = digit(tick, level);
        let level = level as usize;
        self.occupied[level] |= 1 << bucket;
        let buckets =
            self.buckets.get_or_insert_with(|| Box::new([[List::EMPTY; BUCKETS]; LEVELS]));
        buckets[level][bucket].push(slot, at);
    }

    /// Moves to `ready` every slot whose record may have expired by `now`. This includes all slots
    /// of the current tick.
    pub(crate) fn gather(&mut self, slots: &mut Slots, now: u64) {
        let upto = now >> TICK_BITS;
        let mut next = u64::MAX;
        while let Some((level, bucket, start)) = self.earliest() {
            if start > upto {
                next = start << TICK_BITS;
                break;
            }
            self.occupied[level] &= !(1 << bucket);
            if let Some(buckets) = &mut self.buckets {
                let list = std::mem::replace(&mut buckets[level][bucket], List::EMPTY);
                self.ready.append(slots, list);
            }
            self.cursor = self.cursor.max(start);
        }
        self.cursor = self.cursor.max(upto);
        self.due = next;
    }

    /// Moves every slot to `ready`, whether or not its record has expired. Does nothing if slots
    /// are ready already.
    #[cold]
    pub(crate) fn gather_all(&mut self, slots: &mut Slots) {
        if self.ready.head != NONE {
            return;
        }
        for list in self.buckets.iter_mut().flat_map(|buckets| buckets.as_flattened_mut()) {
            self.ready.append(slots, std::mem::replace(list, List::EMPTY));
        }
        (self.occupied, self.due) = ([0; LEVELS], u64::MAX);
    }

    /// Takes a ready slot. The caller reclaims the slot, files it again or leaves it unfiled.
    #[inline]
    pub(crate) fn take(&mut self, slots: &mut Slots) -> Option<u32> {
        self.ready.pop(slots)
    }

    /// Returns the level, the bucket and the first tick of the earliest bucket that is not empty.
    /// Every record on a lower level is due before all records on higher levels, because its tick
    /// differs from the cursor only in the lower digits.
    fn earliest(&self) -> Option<(usize, usize, u64)> {
        let (level, occupied) =
            (0..=TOP).zip(self.occupied).find(|(_, occupied)| *occupied != 0)?;
        let bucket = occupied.trailing_zeros();
        let shift = BITS * level;
        let block = self.cursor >> (shift + BITS) << (shift + BITS);
        Some((level as usize, bucket as usize, block | u64::from(bucket) << shift))
    }
}

/// Returns the tick's base-64 digit at this level. The digit is the number of the tick's bucket.
#[expect(clippy::cast_possible_truncation, reason = "below 64")]
fn digit(tick: u64, level: u32) -> usize {
    (tick >> (BITS * level)) as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Body, Table};

    struct Filed {
        table: Table,
        wheel: Wheel,
        expiry: Vec<u64>,
    }

    impl Filed {
        fn new(expiry: Vec<u64>) -> Self {
            let mut filed = Self { table: Table::with_capacity(0), wheel: Wheel::new(), expiry };
            for (n, expires) in (0..).zip(&filed.expiry) {
                let at = filed.table.insert(n, 0, Body::Busy(0));
                filed.wheel.file(&mut filed.table.slots[at], at, *expires);
            }
            filed
        }

        /// Returns what a full purge at `now` reclaims.
        fn purge(&mut self, now: u64) -> Vec<u64> {
            let mut gone = Vec::new();
            self.wheel.gather(&mut self.table.slots, now);
            while let Some(at) = self.wheel.take(&mut self.table.slots) {
                let expires = self.expiry[at as usize];
                if expires <= now {
                    gone.push(expires);
                } else {
                    self.wheel.file(&mut self.table.slots[at], at, expires);
                }
            }
            gone.sort_unstable();
            gone
        }
    }

    #[test]
    fn sto_4_the_wheel_gives_up_each_record_when_it_expires_and_not_before() {
        let mut random = 3_u64;
        let expiry: Vec<u64> = (0..3_000)
            .map(|n| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // The times range from nanoseconds to almost twenty years.
                (random >> 5) >> (n % 50)
            })
            .collect();
        let mut sorted = expiry.clone();
        sorted.sort_unstable();
        let mut filed = Filed::new(expiry);
        let mut now = 0;
        for step in [
            1,
            1_000,
            TICK - 1,
            TICK,
            63 * TICK,
            64 * TICK,
            65 * TICK,
            4_095 * TICK,
            4_097 * TICK,
            1 << 50,
            1 << 55,
            1 << 58,
        ] {
            now += step;
            assert!(
                filed.wheel.due() <= sorted.first().copied().unwrap_or(u64::MAX),
                "`due` should be a lower bound"
            );
            let expected: Vec<u64> =
                sorted.iter().copied().take_while(|expires| *expires <= now).collect();
            sorted.drain(..expected.len());
            assert_eq!(filed.purge(now), expected, "at {now}");
            assert_eq!(filed.purge(now), Vec::<u64>::new());
        }
    }

    #[test]
    fn sto_4_after_a_purge_the_wheel_knows_when_to_look_again() {
        let mut filed = Filed::new(vec![10, 20, 5 * TICK + 7]);
        assert_eq!(filed.wheel.due(), 10);
        assert_eq!(filed.purge(15), [10]);
        assert_eq!(filed.wheel.due(), 20);
        assert_eq!(filed.purge(20), [20]);
        assert!((21..=5 * TICK + 7).contains(&filed.wheel.due()));
        assert_eq!(filed.purge(5 * TICK + 7), [5 * TICK + 7]);
        assert_eq!(filed.wheel.due(), u64::MAX);
    }
}
