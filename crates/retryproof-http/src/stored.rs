// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoredResponse`]: one flat, versioned encoding of a response (CMP-8, HTTP-8).
//!
//! ```text
//! version(1) kind(1: 0 response, 1 tombstone) status(2, big endian)
//! count {name value_len value}*                 header lines, in order
//! count {name value_len value}* body_len body   trailers and body, of a response alone
//! name: code of a common name (0 to 63), or 64 + length and the lower-case name
//! ```
//! Counts, lengths and name codes are varints (LEB128, shortest form). One buffer and no slice of
//! the wire: a record that kept `Bytes` of the connection would pin its whole read buffer.

use std::fmt;

use bytes::Bytes;
use retryproof_core::{CodecId, Error, Payload};

mod names;
mod reader;

pub use names::COMMON_NAMES;
pub(crate) use names::code_of;
pub(crate) use reader::Reader;

/// The schema version in the engine's envelope. The record has one of its own; this one never
/// moves.
pub(crate) const SCHEMA: u16 = 1;
const VERSION: u8 = 1;
const RESPONSE: u8 = 0;
const TOMBSTONE: u8 = 1;
/// Name codes below this are common names; the rest is a length.
const FIRST_LITERAL: usize = 64;
/// Header bytes that a tombstone keeps at most, names and values (HTTP-13).
const TOMBSTONE_HEADERS: usize = 8 * 1024;

/// One header or trailer line: lower-case name and raw value.
pub(crate) type Line<'a> = (&'a str, &'a [u8]);

/// What is to be stored of a response. The iterators are walked twice: for the size, then for the
/// bytes.
pub(crate) struct Draft<H, T, B> {
    pub(crate) status: u16,
    pub(crate) headers: H,
    pub(crate) trailers: T,
    /// The body in pieces.
    pub(crate) body: B,
}

impl<'a, H, T, B> Draft<H, T, B>
where
    H: Iterator<Item = Line<'a>> + Clone,
    T: Iterator<Item = Line<'a>> + Clone,
    B: Iterator<Item = &'a [u8]> + Clone,
{
    /// The length of its record, exactly.
    pub(crate) fn len(&self) -> usize {
        let body = self.body_len();
        4 + lines_len(self.headers.clone())
            + lines_len(self.trailers.clone())
            + varint_len(body)
            + body
    }

    fn body_len(&self) -> usize {
        self.body.clone().map(<[u8]>::len).sum()
    }
}

/// Appends the record of a whole response, [`Draft::len`] bytes.
pub(crate) fn encode_response<'a, H, T, B>(draft: &Draft<H, T, B>, out: &mut Vec<u8>)
where
    H: Iterator<Item = Line<'a>> + Clone,
    T: Iterator<Item = Line<'a>> + Clone,
    B: Iterator<Item = &'a [u8]> + Clone,
{
    put_head(RESPONSE, draft.status, out);
    put_lines(draft.headers.clone(), out);
    put_lines(draft.trailers.clone(), out);
    put_varint(draft.body_len(), out);
    for piece in draft.body.clone() {
        out.extend_from_slice(piece);
    }
}

/// Appends the record of a response that cannot be replayed: its status, `Location` first, and then
/// the other header lines that fit into 8 KiB (HTTP-13).
pub(crate) fn encode_tombstone<'a>(
    status: u16,
    headers: impl Iterator<Item = Line<'a>> + Clone,
    out: &mut Vec<u8>,
) {
    let is_location = |(name, _): &Line<'_>| *name == "location";
    let ordered =
        headers.clone().filter(is_location).chain(headers.filter(|line| !is_location(line)));
    let mut left = TOMBSTONE_HEADERS;
    let kept: Vec<Line<'a>> = ordered
        .filter(|(name, value)| match left.checked_sub(name.len() + value.len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
        .collect();
    put_head(TOMBSTONE, status, out);
    put_lines(kept.into_iter(), out);
}

fn put_head(kind: u8, status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&[VERSION, kind]);
    out.extend_from_slice(&status.to_be_bytes());
}

fn put_lines<'a>(lines: impl Iterator<Item = Line<'a>> + Clone, out: &mut Vec<u8>) {
    put_varint(lines.clone().count(), out);
    for (name, value) in lines {
        match code_of(name) {
            Some(code) => out.push(code),
            None => {
                put_varint(FIRST_LITERAL + name.len(), out);
                out.extend_from_slice(name.as_bytes());
            }
        }
        put_varint(value.len(), out);
        out.extend_from_slice(value);
    }
}

fn lines_len<'a>(lines: impl Iterator<Item = Line<'a>>) -> usize {
    let (count, bytes) = lines.fold((0, 0), |(count, bytes), (name, value)| {
        let name = if code_of(name).is_some() {
            1
        } else {
            varint_len(FIRST_LITERAL + name.len()) + name.len()
        };
        (count + 1, bytes + name + varint_len(value.len()) + value.len())
    });
    varint_len(count) + bytes
}

#[expect(clippy::cast_possible_truncation, reason = "masked to the low seven bits")]
fn put_varint(mut number: usize, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

const fn varint_len(number: usize) -> usize {
    (usize::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// A record that this version cannot read (CMP-8). It says what is wrong, never what is stored
/// (ID-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(&'static str);

impl Corrupt {
    pub(crate) fn bad_field() -> Self {
        Self("has a field that cannot be sent")
    }

    pub(crate) fn too_many_fields() -> Self {
        Self("has more fields than an answer can carry")
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stored response {}", self.0)
    }
}

impl std::error::Error for Corrupt {}

/// A header name in a record: one of the common names, or spelled out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    Common(u8),
    Literal(&'a str),
}

impl<'a> Name<'a> {
    pub(crate) fn as_str(self) -> &'a str {
        match self {
            Self::Common(code) => COMMON_NAMES.get(usize::from(code)).copied().unwrap_or_default(),
            Self::Literal(name) => name,
        }
    }
}

/// A response as it was stored, read in place. `Debug` shows status and lengths alone (ID-4).
#[derive(Clone)]
pub struct StoredResponse {
    record: Bytes,
    status: u16,
    tombstone: bool,
    headers: Section,
    trailers: Section,
    body: usize,
}

/// Where the lines of one kind stand in the record.
#[derive(Clone, Copy, Default)]
struct Section {
    start: usize,
    count: usize,
}

impl StoredResponse {
    /// Reads a record; everything in it is checked here, so that the rest cannot fail.
    ///
    /// # Errors
    /// [`Corrupt`] for an unknown version or kind, for lengths that do not add up to the record
    /// exactly, and for bytes that no response of ours has (CMP-8).
    pub fn decode(record: Bytes) -> Result<Self, Corrupt> {
        let (mut reader, status, tombstone) = Reader::open(&record)?;
        let headers = reader.section(record.len())?;
        let trailers = if tombstone { Section::default() } else { reader.section(record.len())? };
        let body_len = if tombstone { 0 } else { reader.varint()? };
        reader.ends_after(body_len)?;
        let body = record.len() - body_len;
        Ok(Self { status, tombstone, headers, trailers, body, record })
    }

    /// Reads what the engine's envelope holds.
    pub(crate) fn from_payload(payload: Payload) -> Result<Self, Error> {
        Self::decode(record_of(payload)?).map_err(unreadable)
    }

    /// The status code, 100 to 999.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether this is a tombstone: the work is done, the response cannot be replayed (HTTP-13).
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.tombstone
    }

    /// The header lines in order: lower-case name, raw value.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.header_lines().map(|(name, value)| (name.as_str(), value))
    }

    /// The trailer lines in order; none in a tombstone.
    pub fn trailers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.trailer_lines().map(|(name, value)| (name.as_str(), value))
    }

    /// The body, sharing the record's allocation; empty in a tombstone.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.record.slice(self.body..)
    }

    pub(crate) fn header_lines(&self) -> Lines<'_> {
        self.lines(self.headers)
    }

    pub(crate) fn trailer_lines(&self) -> Lines<'_> {
        self.lines(self.trailers)
    }

    fn lines(&self, section: Section) -> Lines<'_> {
        Lines { reader: Reader { rest: &self.record[section.start..] }, left: section.count }
    }
}

/// The record that the engine's envelope holds.
pub(crate) fn record_of(payload: Payload) -> Result<Bytes, Error> {
    if payload.codec() != CodecId::HTTP || payload.schema() != SCHEMA {
        return Err(Error::corrupt("the stored value is not an HTTP response")
            .with("codec", payload.codec().0)
            .with("schema", payload.schema()));
    }
    Ok(payload.into_body().into_bytes())
}

/// The failure of a record that cannot be read.
pub(crate) fn unreadable(corrupt: Corrupt) -> Error {
    Error::corrupt("the stored HTTP response cannot be read").because(corrupt)
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.status)
            .field("tombstone", &self.tombstone)
            .field("headers", &self.headers.count)
            .field("trailers", &self.trailers.count)
            .field("body_len", &(self.record.len() - self.body))
            .finish()
    }
}

/// The lines of a record whose layout was checked.
#[derive(Clone)]
pub(crate) struct Lines<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (Name<'a>, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.reader.line().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Lines<'_> {}

#[cfg(test)]
mod tests;
