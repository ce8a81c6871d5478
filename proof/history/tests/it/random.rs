// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Random`]: random choices that are the same for the same seed.

use model::Tick;

/// SplitMix64, which is good enough to derive a random story from its number.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = self.0;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        drawn ^ (drawn >> 31)
    }

    pub(crate) fn within(&mut self, from: Tick, to: Tick) -> Tick {
        from + Tick::try_from(self.next() % u64::from(to - from)).unwrap()
    }

    pub(crate) fn in_100(&mut self, share: Tick) -> bool {
        self.within(0, 100) < share
    }
}
