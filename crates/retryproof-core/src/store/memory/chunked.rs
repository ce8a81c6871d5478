// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Chunked`]: a growing array that never moves what it holds, so that growth has no stall and no slack.

use std::ops::{Index, IndexMut};

const BITS: u32 = 7;
const CHUNK: usize = 1 << BITS;

/// An array in chunks of 128. Only the first chunk grows by moving, so that a small one stays small.
pub(super) struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: u32,
}

impl<T> Chunked<T> {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Appends `value` and says where. The caller sees to it that the length stays below `u32::MAX`.
    pub(super) fn push(&mut self, value: T) -> u32 {
        let at = self.len;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(value),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(value);
                self.chunks.push(chunk);
            }
            None => self.chunks.push(vec![value]),
        }
        self.len += 1;
        at
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.chunks[(at >> BITS) as usize][at as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[(at >> BITS) as usize][at as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_valid_over_growth() {
        let mut array = Chunked::new();
        for n in 0..1_000 {
            assert_eq!(array.push(n), n);
        }
        array[500] = 7;
        assert!((0..1_000).all(|n| array[n] == if n == 500 { 7 } else { n }));
        assert_eq!(array.len(), 1_000);
    }
}
