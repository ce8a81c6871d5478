// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`StoredResponse`]: a record that is read in place, and checked while it is read (CMP-8).

use std::fmt;

use bytes::Bytes;
use retryproof_core::{CodecId, Error, ErrorKind, Payload};

use super::names::{COMMON_NAMES, code_of};
use super::{FIRST_LITERAL, RESPONSE, ResponseDraft, SCHEMA, TOMBSTONE, VERSION, encode_response};

/// A record that this version cannot read (CMP-8). The error's text names the defect, and shows no
/// stored data (ID-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(&'static str);

impl Corrupt {
    pub(crate) fn bad_field() -> Self {
        Self("has a field that cannot be sent")
    }

    pub(crate) fn too_many_fields() -> Self {
        Self("has more fields than a response can carry")
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stored response {}", self.0)
    }
}

impl std::error::Error for Corrupt {}

/// A field name in a record: a common name or a literal one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredName<'a> {
    Common(u8),
    Literal(&'a str),
}

impl<'a> StoredName<'a> {
    pub(crate) fn as_str(self) -> &'a str {
        match self {
            Self::Common(code) => COMMON_NAMES.get(usize::from(code)).copied().unwrap_or_default(),
            Self::Literal(name) => name,
        }
    }
}

/// A stored response, read in place. `Debug` shows only status and lengths (ID-4).
#[derive(Clone)]
pub struct StoredResponse {
    record: Bytes,
    status: u16,
    tombstone: bool,
    headers: LineSection,
    trailers: LineSection,
    body: usize,
}

/// The position of the header lines or of the trailer lines in the record.
#[derive(Clone, Copy, Default)]
struct LineSection {
    start: usize,
    count: usize,
}

impl StoredResponse {
    /// Reads a record. Everything in the record is checked here, so no other method fails.
    ///
    /// # Errors
    /// [`Corrupt`] for an unknown version or kind, for lengths that do not add up to exactly the
    /// record's length, and for bytes that this crate never writes (CMP-8).
    pub fn decode(record: Bytes) -> Result<Self, Corrupt> {
        let (mut reader, status, tombstone) = StoredReader::open(&record)?;
        let headers = reader.section(record.len())?;
        let trailers =
            if tombstone { LineSection::default() } else { reader.section(record.len())? };
        let body_len = if tombstone { 0 } else { reader.varint()? };
        reader.ends_after(body_len)?;
        let body = record.len() - body_len;
        Ok(Self { status, tombstone, headers, trailers, body, record })
    }

    /// Encodes a response that an operator, not a handler, supplies to complete a record (OPS-4).
    /// Field names must be lower case.
    ///
    /// # Errors
    /// `Invalid` for a status below 200 or above 599, and for a field that no response can have.
    pub fn encode(status: u16, headers: &[(&str, &[u8])], body: &[u8]) -> Result<Payload, Error> {
        let draft = ResponseDraft {
            status,
            headers: headers.iter().copied(),
            trailers: std::iter::empty(),
            body: std::iter::once(body),
        };
        let mut record = Vec::with_capacity(draft.len());
        encode_response(&draft, &mut record);
        if !(200..600).contains(&status) || Self::decode(record.clone().into()).is_err() {
            let message = "the response cannot be stored: its status is not 200 to 599, or a \
                           header field is not valid";
            return Err(Error::new(ErrorKind::Invalid, message).with("status", status));
        }
        Ok(Payload::new(CodecId::HTTP, SCHEMA, &record))
    }

    /// Reads a record from the engine's envelope.
    pub(crate) fn from_payload(payload: Payload) -> Result<Self, Error> {
        Self::decode(record_of(payload)?).map_err(unreadable)
    }

    /// Returns the status code, 100 to 999.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether this is a tombstone: the work is done, but the response cannot be replayed
    /// (HTTP-13).
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.tombstone
    }

    /// Returns the header lines in order, each with its lower-case name and its raw value.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.header_lines().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the trailer lines in order. A tombstone has none.
    pub fn trailers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.trailer_lines().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the body, which shares the record's allocation. The body of a tombstone is empty.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.record.slice(self.body..)
    }

    pub(crate) fn header_lines(&self) -> StoredLines<'_> {
        self.lines(self.headers)
    }

    pub(crate) fn trailer_lines(&self) -> StoredLines<'_> {
        self.lines(self.trailers)
    }

    fn lines(&self, section: LineSection) -> StoredLines<'_> {
        StoredLines {
            reader: StoredReader { rest: &self.record[section.start..] },
            left: section.count,
        }
    }
}

/// Takes the record out of the engine's envelope.
pub(crate) fn record_of(payload: Payload) -> Result<Bytes, Error> {
    if payload.codec() != CodecId::HTTP || payload.schema() != SCHEMA {
        return Err(Error::corrupt("the stored value is not an HTTP response")
            .with("codec", payload.codec().0)
            .with("schema", payload.schema()));
    }
    Ok(payload.into_body().into_bytes())
}

/// Returns the error for a record that cannot be read.
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
pub(crate) struct StoredLines<'a> {
    reader: StoredReader<'a>,
    left: usize,
}

impl<'a> Iterator for StoredLines<'a> {
    type Item = (StoredName<'a>, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.reader.line().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for StoredLines<'_> {}

/// Reads a record from its beginning.
#[derive(Clone)]
pub(crate) struct StoredReader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> StoredReader<'a> {
    /// Reads the status, and whether the record is a tombstone. The header lines come next.
    pub(crate) fn open(record: &'a [u8]) -> Result<(Self, u16, bool), Corrupt> {
        let mut reader = Self { rest: record };
        let [version, kind, high, low] = *reader.take_array::<4>()?;
        if version != VERSION {
            return Err(Corrupt("was written by a newer version of retryproof; upgrade this one"));
        }
        let tombstone = match kind {
            RESPONSE => false,
            TOMBSTONE => true,
            _ => return Err(Corrupt("is of an unknown kind")),
        };
        let status = u16::from_be_bytes([high, low]);
        if !(100..=999).contains(&status) {
            return Err(Corrupt("has no valid status"));
        }
        Ok((reader, status, tombstone))
    }

    /// Reads the number of lines that follow. A line has at least two bytes. A number that is too
    /// large for the rest of the record is refused before a reader reserves memory for the lines.
    #[inline]
    pub(crate) fn count(&mut self) -> Result<usize, Corrupt> {
        let count = self.varint()?;
        if count > self.rest.len() / 2 { Err(Corrupt("is cut short")) } else { Ok(count) }
    }

    /// Checks that only a body of this length is left.
    pub(crate) fn ends_after(&self, body_len: usize) -> Result<(), Corrupt> {
        if self.rest.len() == body_len {
            Ok(())
        } else {
            Err(Corrupt("does not have the length that it declares"))
        }
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Corrupt("is cut short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<&'a [u8; N], Corrupt> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Corrupt("is cut short"))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<usize, Corrupt> {
        // Most numbers fit into one byte, so check for that case first.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(usize::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<usize, Corrupt> {
        let mut number = 0_usize;
        for shift in (0..usize::BITS).step_by(7) {
            let [byte] = *self.take_array()?;
            let bits = usize::from(byte & 0x7f);
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Corrupt("has a malformed number"))
    }

    /// Checks a section of lines and skips it.
    fn section(&mut self, record: usize) -> Result<LineSection, Corrupt> {
        let count = self.count()?;
        let start = record - self.rest.len();
        for _ in 0..count {
            let (_, value) = self.named_line()?;
            // Do not exit the loop early, so that the compiler can vectorise it.
            if !value
                .iter()
                .fold(true, |legal, &b| legal & ((b == b'\t') | ((b >= 0x20) & (b != 0x7f))))
            {
                return Err(Corrupt("has a malformed field value"));
            }
        }
        Ok(LineSection { start, count })
    }

    /// Reads a line, and checks that its name has the form that this crate writes. The value is
    /// checked later, when the caller creates the field.
    #[inline]
    pub(crate) fn named_line(&mut self) -> Result<(StoredName<'a>, &'a [u8]), Corrupt> {
        let line = self.line()?;
        if let StoredName::Literal(name) = line.0
            && (name.is_empty() || !name.bytes().all(is_name_byte) || code_of(name).is_some())
        {
            return Err(Corrupt("has a malformed field name"));
        }
        Ok(line)
    }

    #[inline]
    fn line(&mut self) -> Result<(StoredName<'a>, &'a [u8]), Corrupt> {
        let tag = self.varint()?;
        let name = match tag.checked_sub(FIRST_LITERAL) {
            None => match u8::try_from(tag) {
                Ok(code) if tag < COMMON_NAMES.len() => StoredName::Common(code),
                _ => return Err(Corrupt("has an unknown code for a field name")),
            },
            Some(len) => {
                let name = str::from_utf8(self.take(len)?);
                StoredName::Literal(name.map_err(|_| Corrupt("has a malformed field name"))?)
            }
        };
        let len = self.varint()?;
        Ok((name, self.take(len)?))
    }
}

/// Whether a byte is an RFC 9110 `tchar`, in lower case as in HTTP/2 and the `http` crate.
fn is_name_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.')
        || matches!(byte, b'^'..=b'`' | b'|' | b'~')
}

/// A stored response that is read in one pass, without copying its bytes.
#[derive(Clone, Copy)]
pub struct StoredRecord<'a> {
    pub(crate) bytes: &'a Bytes,
    /// Whether the request's method is HEAD. Only a response to HEAD gets the stored length.
    pub(crate) to_head: bool,
}

impl StoredRecord<'_> {
    /// Reads the record in one pass. Calls `start` with the status and the number of fields, then
    /// calls `field` for each field, with its name (an index in [`COMMON_NAMES`], or text) and its
    /// value. Returns the body. Trailers are skipped. Values and body share the record's
    /// allocation.
    ///
    /// # Errors
    /// [`Corrupt`] if the record cannot be read or is a tombstone, or if `field` returns `None`.
    pub fn read<T>(
        self,
        start: impl FnOnce(u16, usize) -> T,
        mut field: impl FnMut(&mut T, Result<usize, &str>, Bytes) -> Option<()>,
    ) -> Result<(T, Bytes), Corrupt> {
        let record = self.bytes;
        let (mut reader, status, tombstone) = StoredReader::open(record)?;
        if tombstone {
            return Err(Corrupt::bad_field());
        }
        let count = reader.count()?;
        let mut response = start(status, count);
        for _ in 0..count {
            let (name, value) = reader.named_line()?;
            let name = match name {
                StoredName::Common(code) if self.drops(code) => continue,
                StoredName::Common(code) => Ok(usize::from(code)),
                StoredName::Literal(name) => Err(name),
            };
            field(&mut response, name, record.slice_ref(value)).ok_or_else(Corrupt::bad_field)?;
        }
        for _ in 0..reader.count()? {
            reader.named_line()?;
        }
        let body_len = reader.varint()?;
        reader.ends_after(body_len)?;
        Ok((response, record.slice(record.len() - body_len..)))
    }

    /// Whether a replay leaves out the field with this code. Only the record of a response to HEAD
    /// has a `Content-Length`, and only a replay to HEAD sends it.
    pub(crate) fn drops(&self, code: u8) -> bool {
        !self.to_head && COMMON_NAMES[usize::from(code)] == "content-length"
    }
}

impl fmt::Debug for StoredRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredRecord({} bytes)", self.bytes.len())
    }
}
