// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Random`]: random choices that are the same for the same seed.

use std::ops::Range;

/// SplitMix64. It is not fit for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates one of the streams of a seed.
    pub(crate) fn of(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number in the range. If the range is empty, returns its start.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        range.start + self.next() % width
    }

    /// Returns a random number in the range. Every magnitude (power of two) is about equally
    /// likely, so small numbers are as frequent as large ones.
    pub(crate) fn spread(&mut self, range: Range<u64>) -> u64 {
        let (low, high) = (range.start.max(1).ilog2(), range.end.max(2).ilog2());
        let bits = self.within(u64::from(low)..u64::from(high) + 1);
        self.within(1 << bits..1 << (bits + 1)).clamp(range.start, range.end.max(range.start))
    }

    /// Returns true with a probability of `percent` %.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }
}
