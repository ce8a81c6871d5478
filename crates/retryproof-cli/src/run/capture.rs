// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Capture`]: a copy of a command's output, up to a limit.

use crate::recording::{CHUNK_HEADER, Stream};

/// The output so far, as the chunks of a stored result.
#[derive(Debug)]
pub(crate) struct Capture {
    chunks: Vec<u8>,
    /// The stream of the last chunk, and the index of the chunk's length in `chunks`.
    last: Option<(Stream, usize)>,
    /// The number of bytes of output so far, including dropped bytes.
    size: u64,
    limit: usize,
}

impl Capture {
    /// Creates a capture that keeps up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        // The length of each chunk is stored in 32 bits, so the limit must also fit into 32 bits.
        let limit = limit.min(u32::MAX as usize);
        Self { chunks: Vec::new(), last: None, size: 0, limit }
    }

    /// Appends output. If the output exceeds the limit, all of it is dropped, because a replay
    /// needs the whole output.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.size += bytes.len() as u64;
        if self.is_too_large() {
            (self.chunks, self.last) = (Vec::new(), None);
            return;
        }
        let at = match self.last {
            Some((last, at)) if last == stream => at,
            _ => {
                self.chunks.push(stream.code());
                let at = self.chunks.len();
                self.chunks.extend_from_slice(&[0; CHUNK_HEADER - 1]);
                self.last = Some((stream, at));
                at
            }
        };
        self.chunks.extend_from_slice(bytes);
        let start = at + CHUNK_HEADER - 1;
        let length = u32::try_from(self.chunks.len() - start).unwrap_or(u32::MAX);
        self.chunks[at..start].copy_from_slice(&length.to_le_bytes());
    }

    /// Returns the chunks. If the output is too large, the error is its size in bytes.
    pub(crate) fn into_chunks(self) -> Result<Vec<u8>, u64> {
        if self.is_too_large() { Err(self.size) } else { Ok(self.chunks) }
    }

    fn is_too_large(&self) -> bool {
        self.size > self.limit as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::recording::{Recording, payload};

    #[test]
    fn output_comes_back_in_order_and_adjacent_pieces_are_one_chunk() {
        let mut capture = Capture::new(100);
        for (stream, bytes) in [
            (Stream::Stdout, &b"a"[..]),
            (Stream::Stdout, b"b\0"),
            (Stream::Stderr, b"\xff"),
            (Stream::Stderr, b""),
            (Stream::Stdout, b"c"),
        ] {
            capture.push(stream, bytes);
        }
        let stored = payload(0, &capture.into_chunks().unwrap());
        let read = Recording::decode(&stored).unwrap();
        let expected: [(Stream, &[u8]); 3] =
            [(Stream::Stdout, b"ab\0"), (Stream::Stderr, b"\xff"), (Stream::Stdout, b"c")];
        assert_eq!(read.chunks(), expected);
    }

    #[test]
    fn the_limit_is_exact_and_nothing_beyond_it_is_kept() {
        let mut capture = Capture::new(4);
        capture.push(Stream::Stdout, b"abcd");
        assert!(!capture.is_too_large());
        capture.push(Stream::Stderr, b"e");
        assert!(capture.chunks.is_empty());
        capture.push(Stream::Stdout, b"fgh");
        assert_eq!(capture.into_chunks(), Err(8));
    }
}
