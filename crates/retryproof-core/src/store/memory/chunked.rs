// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Chunked`]: a growing array that never moves what it holds, so that growth has no stall and no
//! slack.

use std::ops::{Index, IndexMut};

/// An array in chunks of `N`, a power of two. Places that are not pushed yet hold some filler.
pub(super) struct Chunked<T, const N: usize> {
    chunks: Vec<Box<[T; N]>>,
    len: u32,
}

impl<T, const N: usize> Chunked<T, N> {
    const BITS: u32 = {
        assert!(N.is_power_of_two(), "so that a place in a chunk is some bits of the index");
        N.trailing_zeros()
    };

    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// What is there; filler too, but nothing behind the last chunk.
    #[inline(always)]
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        Some(&self.chunks.get((at >> Self::BITS) as usize)?[at as usize % N])
    }

    /// The same, to be changed.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        Some(&mut self.chunks.get_mut((at >> Self::BITS) as usize)?[at as usize % N])
    }

    /// Makes one more place and says where; it holds what `filler` makes. The caller sees to it
    /// that the length stays below `u32::MAX`.
    #[inline]
    pub(super) fn push_with(&mut self, filler: impl Fn() -> T) -> u32 {
        let at = self.len;
        if (at as usize).is_multiple_of(N) {
            self.add_chunk(filler);
        }
        self.len += 1;
        at
    }

    #[cold]
    fn add_chunk(&mut self, filler: impl Fn() -> T) {
        self.chunks.push(Box::new(std::array::from_fn(|_| filler())));
    }
}

impl<T, const N: usize> Index<u32> for Chunked<T, N> {
    type Output = T;

    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        &self.chunks[(at >> Self::BITS) as usize][at as usize % N]
    }
}

impl<T, const N: usize> IndexMut<u32> for Chunked<T, N> {
    #[inline(always)]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[(at >> Self::BITS) as usize][at as usize % N]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_valid_over_growth() {
        let mut array: Chunked<u32, 16> = Chunked::new();
        for n in 0..1_000 {
            assert_eq!(array.push_with(|| 0), n);
            array[n] = n;
        }
        array[500] = 7;
        assert!((0..1_000).all(|n| array[n] == if n == 500 { 7 } else { n }));
        assert_eq!(array.len(), 1_000);
    }
}
