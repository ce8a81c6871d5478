// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Record`]: a stored answer as a framework reads it, in one pass and without a copy of its
//! bytes.

use std::fmt;

use bytes::Bytes;

use crate::stored::{COMMON_NAMES, Corrupt, Name, Reader};

/// A stored answer.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub(crate) bytes: &'a Bytes,
    /// Whether the request is one for a head alone: only then a length stands without its bytes.
    pub(crate) to_head: bool,
}

impl Record<'_> {
    /// Reads it in one pass: `start` is called with the status and the number of fields, then
    /// `field` with each, its code among the [`COMMON_NAMES`] or its name, and its value; at the
    /// end there is the body. Trailers are passed over. Values share the record's allocation, as
    /// the body does.
    ///
    /// # Errors
    /// [`Corrupt`], also where `field` has none for a field.
    pub fn read<T>(
        self,
        start: impl FnOnce(u16, usize) -> T,
        mut field: impl FnMut(&mut T, Result<usize, &str>, Bytes) -> Option<()>,
    ) -> Result<(T, Bytes), Corrupt> {
        let record = self.bytes;
        let (mut reader, status, tombstone) = Reader::open(record)?;
        if tombstone {
            return Err(Corrupt::bad_field());
        }
        let count = reader.count()?;
        let mut answer = start(status, count);
        for _ in 0..count {
            let (name, value) = reader.named_line()?;
            let name = match name {
                Name::Common(code) if self.drops(code) => continue,
                Name::Common(code) => Ok(usize::from(code)),
                Name::Literal(name) => Err(name),
            };
            field(&mut answer, name, record.slice_ref(value)).ok_or_else(Corrupt::bad_field)?;
        }
        for _ in 0..reader.count()? {
            reader.named_line()?;
        }
        let body_len = reader.varint()?;
        reader.ends_after(body_len)?;
        Ok((answer, record.slice(record.len() - body_len..)))
    }
}

impl Record<'_> {
    /// Whether a field does not go to this request: the length that a HEAD was told, of a body that
    /// is not there.
    pub(crate) fn drops(&self, code: u8) -> bool {
        !self.to_head && COMMON_NAMES[usize::from(code)] == "content-length"
    }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} bytes)", self.bytes.len())
    }
}
