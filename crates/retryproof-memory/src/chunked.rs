// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Chunked`]: a growing array that never moves its elements, so that growth neither stalls nor
//! wastes memory.

use std::ops::{Index, IndexMut};

/// An array in chunks of `N` elements; `N` is a power of two. Places of the last chunk beyond the
/// array's length hold a filler value.
pub(crate) struct Chunked<T, const N: usize> {
    chunks: Vec<Box<[T; N]>>,
    len: u32,
}

impl<T, const N: usize> Chunked<T, N> {
    const BITS: u32 = {
        assert!(N.is_power_of_two(), "the chunk size should be a power of two");
        N.trailing_zeros()
    };

    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the element or filler at an index, or `None` beyond the last chunk.
    #[inline(always)]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        Some(&self.chunks.get((at >> Self::BITS) as usize)?[at as usize % N])
    }

    /// Like [`get`](Self::get), but mutable.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        Some(&mut self.chunks.get_mut((at >> Self::BITS) as usize)?[at as usize % N])
    }

    /// Adds an element made by `filler`, and returns its index. The caller ensures that the length
    /// stays below `u32::MAX`.
    #[inline]
    pub(crate) fn push_with(&mut self, filler: impl Fn() -> T) -> u32 {
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
