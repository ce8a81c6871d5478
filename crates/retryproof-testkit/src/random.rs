// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Random`]: pseudo-random numbers from a seed, for tests that must be repeatable.

/// The generator SplitMix64. It is small, fast and good enough to choose the steps of a test, but
/// not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    /// Returns one of the choices.
    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_every_choice_comes_up() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(7)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let drawn = draw(3);
        assert!((0..7).all(|choice| drawn.contains(&choice)), "{drawn:?}");
    }
}
