// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stored result of a command: its exit code, and its output in the order of arrival.
//!
//! Schema 1, little endian: the exit code (i32), then chunks: stream (1 = stdout, 2 = stderr),
//! length (u32), bytes. The detail of a tombstone is the exit code (i32) and the size of the output
//! in bytes (u64).

use retryproof::{CodecId, Payload, Tombstone};

use crate::exit::VerbError;

/// The codec of a command's result. Ids below 1,024 belong to this project.
pub(crate) const CODEC: CodecId = CodecId(4);
const SCHEMA: u16 = 1;
/// The size of a chunk's header in bytes: 1 for the stream and 4 for the length.
pub(crate) const CHUNK_HEADER: usize = 5;

/// The stream to which a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }
}

/// A command's result, as read from a store.
#[derive(Debug)]
pub(crate) struct Recording<'a> {
    code: i32,
    chunks: Vec<(Stream, &'a [u8])>,
}

impl<'a> Recording<'a> {
    /// Reads a stored result. The whole result is checked before any output is replayed (CMP-8).
    pub(crate) fn decode(payload: &'a Payload) -> Result<Self, VerbError> {
        check_schema(payload)?;
        let (code, mut rest) = code_of(payload.body())?;
        let mut chunks = Vec::new();
        while let Some((header, after)) = rest.split_first_chunk::<CHUNK_HEADER>() {
            let [stream, length @ ..] = *header;
            let stream = match stream {
                1 => Stream::Stdout,
                2 => Stream::Stderr,
                _ => return Err(unreadable("an unknown stream")),
            };
            let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
            let Some((bytes, after)) = after.split_at_checked(length) else {
                return Err(unreadable("a chunk that is cut off"));
            };
            chunks.push((stream, bytes));
            rest = after;
        }
        if rest.is_empty() {
            Ok(Self { code, chunks })
        } else {
            Err(unreadable("an incomplete chunk header at its end"))
        }
    }

    pub(crate) fn code(&self) -> i32 {
        self.code
    }

    pub(crate) fn chunks(&self) -> &[(Stream, &'a [u8])] {
        &self.chunks
    }
}

/// Returns the exit code from a tombstone that [`tombstone`] has made.
pub(crate) fn code_of_tombstone(detail: &Payload) -> Result<i32, VerbError> {
    check_schema(detail)?;
    Ok(code_of(detail.body())?.0)
}

/// Returns the result of a command whose output was too large. `size` is the size of the output in
/// bytes.
pub(crate) fn tombstone(code: i32, size: u64) -> Tombstone {
    let mut detail = code.to_le_bytes().to_vec();
    detail.extend_from_slice(&size.to_le_bytes());
    Tombstone::with_detail(CODEC, SCHEMA, &detail)
}

/// Returns the result of a command. `chunks` has the format that this module describes.
pub(crate) fn payload(code: i32, chunks: &[u8]) -> Payload {
    let mut body = Vec::with_capacity(4 + chunks.len());
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(chunks);
    Payload::new(CODEC, SCHEMA, &body)
}

fn check_schema(payload: &Payload) -> Result<(), VerbError> {
    if payload.schema() == SCHEMA {
        return Ok(());
    }
    Err(VerbError::other(format!(
        "a newer version of `retryproof run` wrote this result (schema {}); upgrade this program",
        payload.schema()
    )))
}

fn code_of(body: &[u8]) -> Result<(i32, &[u8]), VerbError> {
    let (code, rest) = body.split_first_chunk().ok_or_else(|| unreadable("no exit code"))?;
    Ok((i32::from_le_bytes(*code), rest))
}

fn unreadable(what: &str) -> VerbError {
    VerbError::other(format!("the stored result of the command is damaged: it has {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmp_8_damaged_results_are_refused_as_a_whole() {
        let good = payload(3, b"\x01\x02\x00\x00\x00ab\x02\x00\x00\x00\x00");
        let read = Recording::decode(&good).unwrap();
        assert_eq!(read.code(), 3);
        assert_eq!(read.chunks(), [(Stream::Stdout, &b"ab"[..]), (Stream::Stderr, &b""[..])]);
        for cut in 0..good.body().len() {
            let ends_between_chunks = cut == 4 || cut == 11;
            let damaged = Payload::new(CODEC, SCHEMA, &good.body()[..cut]);
            assert_eq!(Recording::decode(&damaged).is_ok(), ends_between_chunks, "{cut}");
        }
        assert!(Recording::decode(&payload(0, b"\x03\x00\x00\x00\x00")).is_err());
        let newer = Payload::new(CODEC, 2, good.body());
        assert!(Recording::decode(&newer).unwrap_err().to_string().contains("upgrade"));
        assert_eq!(code_of_tombstone(tombstone(9, 1 << 40).detail()).unwrap(), 9);
    }
}
