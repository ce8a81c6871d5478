// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Reader`]: a stored response, read in place and checked on the way (CMP-8).

use super::names::{COMMON_NAMES, code_of};
use super::{Corrupt, FIRST_LITERAL, Name, RESPONSE, Section, TOMBSTONE, VERSION};

/// Reads a record from its beginning.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The status, and whether it is a tombstone; the lines come next.
    pub(crate) fn open(record: &'a [u8]) -> Result<(Self, u16, bool), Corrupt> {
        let mut reader = Self { rest: record };
        let [version, kind, high, low] = *reader.take_array::<4>()?;
        if version != VERSION {
            return Err(Corrupt("has an unknown version; a newer retryproof wrote it"));
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

    /// How many lines follow. A line has two bytes at least, so a false count makes nobody reserve
    /// much.
    pub(crate) fn count(&mut self) -> Result<usize, Corrupt> {
        let count = self.varint()?;
        if count > self.rest.len() / 2 { Err(Corrupt("is cut short")) } else { Ok(count) }
    }

    /// Checks that a body of the length that the record says is all that is left.
    pub(crate) fn ends_after(&self, body_len: usize) -> Result<(), Corrupt> {
        if self.rest.len() == body_len {
            Ok(())
        } else {
            Err(Corrupt("has another length than it says"))
        }
    }

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

    pub(crate) fn varint(&mut self) -> Result<usize, Corrupt> {
        // Most are short.
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

    /// Checks a section of lines and steps over it.
    pub(super) fn section(&mut self, record: usize) -> Result<Section, Corrupt> {
        let count = self.count()?;
        let start = record - self.rest.len();
        for _ in 0..count {
            let (_, value) = self.named_line()?;
            // Without an early exit, so that it is done on many bytes at once.
            if !value
                .iter()
                .fold(true, |legal, &b| legal & ((b == b'\t') | ((b >= 0x20) & (b != 0x7f))))
            {
                return Err(Corrupt("has a malformed field value"));
            }
        }
        Ok(Section { start, count })
    }

    /// A line whose name is one that we write. Its value is checked by whoever makes a field of it.
    pub(crate) fn named_line(&mut self) -> Result<(Name<'a>, &'a [u8]), Corrupt> {
        let line = self.line()?;
        if let Name::Literal(name) = line.0
            && (name.is_empty() || !name.bytes().all(is_name_byte) || code_of(name).is_some())
        {
            return Err(Corrupt("has a malformed field name"));
        }
        Ok(line)
    }

    pub(super) fn line(&mut self) -> Result<(Name<'a>, &'a [u8]), Corrupt> {
        let tag = self.varint()?;
        let name = match tag.checked_sub(FIRST_LITERAL) {
            None => match u8::try_from(tag) {
                Ok(code) if tag < COMMON_NAMES.len() => Name::Common(code),
                _ => return Err(Corrupt("has an unknown field name code")),
            },
            Some(len) => {
                let name = str::from_utf8(self.take(len)?);
                Name::Literal(name.map_err(|_| Corrupt("has a malformed field name"))?)
            }
        };
        let len = self.varint()?;
        Ok((name, self.take(len)?))
    }
}

/// RFC 9110 `tchar`, lower case as HTTP/2 and the `http` crate keep it.
fn is_name_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}
