// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which parts of a response are stored (HTTP-8, HTTP-9), and their encoding: one flat, versioned
//! record (CMP-8).
//!
//! ```text
//! version(1) kind(1: 0 response, 1 tombstone) status(2, big endian)
//! count {name value_len value}*                 header lines, in order
//! count {name value_len value}* body_len body   trailers and body, of a response alone
//! name: code of a common name (0 to 63), or 64 + length and the lower-case name
//! ```
//! Counts, lengths and name codes are varints (LEB128, shortest form). The record is copied into
//! one buffer. A record that kept the connection's `Bytes` would keep the whole read buffer alive.
//!
//! Field names are lower case throughout. HTTP-8 promises that a replay keeps the field order of
//! the first response. Fields are therefore read in that order and never removed from a map,
//! because a removal can reorder the remaining fields.

use std::borrow::Cow;

mod names;
mod reader;

pub use names::COMMON_NAMES;
pub(crate) use names::code_of;
pub use reader::{Corrupt, StoredRecord, StoredResponse};
pub(crate) use reader::{StoredName, StoredReader, record_of, unreadable};

/// The field that marks a replay (HTTP-8). A handler cannot set this field.
pub(crate) const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";

/// Fields that are not stored by default, because a replay could give one client's session or
/// challenge to another client (HTTP-9).
const SENSITIVE: [&str; 4] =
    ["set-cookie", "www-authenticate", "authentication-info", "clear-site-data"];

/// What happens to a field of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldVerdict {
    /// The field is stored and replayed.
    Store,
    /// The field is sent with the first response but not stored. It describes the connection or the
    /// time of sending, or the configuration excludes it.
    Drop,
    /// The field is one of [`SENSITIVE`]. It is stored only if a hook has seen it; otherwise it is
    /// dropped, and a warning is logged.
    Sensitive,
    /// The field is neither sent nor stored, because only the guard can mark a response as a
    /// replay.
    Forged,
}

/// The kind of exchange, which decides whether `Content-Length` is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// A HEAD request. The length is stored, because there is no body to compute it from.
    Head,
    /// Any other request. A replay computes the length again.
    Other,
}

/// What happens to the sensitive fields of a response (HTTP-9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SensitiveFields {
    /// Sensitive fields are not stored, and a warning is logged.
    Unstored,
    /// Sensitive fields are stored, because a hook has seen them.
    Stored,
}

/// The configured fields (HTTP-9): sensitive fields to store, and fields to leave out.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldRules {
    stored: Vec<Cow<'static, str>>,
    skipped: Vec<Cow<'static, str>>,
}

impl FieldRules {
    /// Allows a field of [`SENSITIVE`], or one that was skipped, to be stored. Fields of the
    /// connection, `Date` and `Trailer` are never stored.
    pub(crate) fn store(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = lower(name.into());
        self.skipped.retain(|skipped| *skipped != name);
        self.stored.push(name);
    }

    /// Stops storing a field. No warning is logged for the field.
    pub(crate) fn skip(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = lower(name.into());
        self.stored.retain(|stored| *stored != name);
        self.skipped.push(name);
    }

    /// Whether a field is stored. Calls `warn` for a sensitive field that is not stored.
    pub(crate) fn stores(
        &self,
        name: &str,
        connection: &ConnectionNames,
        exchange: Exchange,
        sensitive: SensitiveFields,
        warn: impl FnOnce(),
    ) -> bool {
        match (self.judge(name, connection, exchange), sensitive) {
            (FieldVerdict::Store, _) | (FieldVerdict::Sensitive, SensitiveFields::Stored) => true,
            (FieldVerdict::Sensitive, SensitiveFields::Unstored) => {
                warn();
                false
            }
            (FieldVerdict::Drop | FieldVerdict::Forged, _) => false,
        }
    }

    /// Decides what happens to the field with this lower-case name.
    fn judge(&self, name: &str, connection: &ConnectionNames, exchange: Exchange) -> FieldVerdict {
        if name == IDEMPOTENT_REPLAYED {
            FieldVerdict::Forged
        } else if is_hop_by_hop(name)
            || matches!(name, "date" | "trailer")
            || (name == "content-length" && exchange == Exchange::Other)
            || connection.names(name)
            || self.skipped.iter().any(|skipped| skipped == name)
        {
            FieldVerdict::Drop
        } else if SENSITIVE.contains(&name) && !self.stored.iter().any(|stored| stored == name) {
            FieldVerdict::Sensitive
        } else {
            FieldVerdict::Store
        }
    }
}

fn lower(name: Cow<'static, str>) -> Cow<'static, str> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        name.to_ascii_lowercase().into()
    } else {
        name
    }
}

/// Whether a field belongs to the connection and not to the response. Such a field is listed in RFC
/// 9110 section 7.6.1, or is sent by older peers.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(name, "connection" | "keep-alive" | "te" | "transfer-encoding" | "upgrade")
        || name.starts_with("proxy-")
}

/// The fields that a response's `Connection` lines name, in lower case. Without `Connection` lines,
/// nothing is allocated.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionNames(Vec<String>);

impl ConnectionNames {
    pub(crate) fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let options = values.flat_map(|value| value.split(|b| *b == b','));
        let names = options.filter_map(|option| str::from_utf8(option).ok());
        Self(
            names
                .map(|name| name.trim().to_ascii_lowercase())
                .filter(|name| !name.is_empty())
                .collect(),
        )
    }

    fn names(&self, name: &str) -> bool {
        self.0.iter().any(|named| named == name)
    }
}

/// Returns the value of a replay's `Trailer` field: each name once, in order. HTTP/1.1 sends no
/// trailers without this field.
pub(crate) fn trailer_field<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique.join(", ")
}

/// The schema version in the engine's envelope. This number never changes, because the record has
/// its own version.
pub(crate) const SCHEMA: u16 = 1;
const VERSION: u8 = 1;
const RESPONSE: u8 = 0;
const TOMBSTONE: u8 = 1;
/// Name codes below this value stand for common names; codes from this value on encode the length
/// of a literal name.
const FIRST_LITERAL: usize = 64;
/// The maximum number of header bytes (names and values) that a tombstone keeps (HTTP-13).
const TOMBSTONE_HEADERS: usize = 8 * 1024;

/// One header or trailer line: lower-case name and raw value.
pub(crate) type StoredLine<'a> = (&'a str, &'a [u8]);

/// A response to be stored. The iterators are read twice, first for the size and then for the
/// bytes.
pub(crate) struct ResponseDraft<H, T, B> {
    pub(crate) status: u16,
    pub(crate) headers: H,
    pub(crate) trailers: T,
    /// The body in pieces.
    pub(crate) body: B,
}

impl<'a, H, T, B> ResponseDraft<H, T, B>
where
    H: Iterator<Item = StoredLine<'a>> + Clone,
    T: Iterator<Item = StoredLine<'a>> + Clone,
    B: Iterator<Item = &'a [u8]> + Clone,
{
    /// Returns the exact length of the response's record.
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

/// Appends the record of a whole response. The record has [`ResponseDraft::len`] bytes.
pub(crate) fn encode_response<'a, H, T, B>(draft: &ResponseDraft<H, T, B>, out: &mut Vec<u8>)
where
    H: Iterator<Item = StoredLine<'a>> + Clone,
    T: Iterator<Item = StoredLine<'a>> + Clone,
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

/// Appends the record of a response that cannot be replayed (HTTP-13). The record holds the status
/// and the header lines that fit into 8 KiB, `Location` first.
pub(crate) fn encode_tombstone<'a>(
    status: u16,
    headers: impl Iterator<Item = StoredLine<'a>> + Clone,
    out: &mut Vec<u8>,
) {
    let is_location = |(name, _): &StoredLine<'_>| *name == "location";
    let ordered =
        headers.clone().filter(is_location).chain(headers.filter(|line| !is_location(line)));
    let mut left = TOMBSTONE_HEADERS;
    let kept: Vec<StoredLine<'a>> = ordered
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

fn put_lines<'a>(lines: impl Iterator<Item = StoredLine<'a>> + Clone, out: &mut Vec<u8>) {
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

fn lines_len<'a>(lines: impl Iterator<Item = StoredLine<'a>>) -> usize {
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

#[cfg(test)]
mod tests;
