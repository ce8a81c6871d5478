// SPDX-License-Identifier: MIT OR Apache-2.0
//! Canonical JSON (RFC 8785) for bodies that are I-JSON (RFC 7493), used by the fingerprint `json`
//! (FP-3).
//!
//! Where two different bodies could otherwise count as equal, this module is stricter than both
//! RFCs. If a double cannot represent one of the body's numbers exactly (`9007199254740993`), the
//! body does not count as I-JSON and is compared byte for byte.

use std::cmp::Ordering;
use std::ops::Range;

mod number;

use super::pointer::PointerNode;
use number::write_number;

/// Bodies with deeper nesting are not canonicalised, because the parser recurses once per level.
const MAX_DEPTH: u32 = 128;

/// Returns the canonical bytes, or `None` if the body is not I-JSON as defined above.
pub(super) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    written(body, None)
}

/// Like [`canonical`], but leaves out the members that a pointer names (FP-5). These members are
/// read like all others, so the whole body has to be I-JSON.
pub(super) fn canonical_without(body: &[u8], ignored: &PointerNode) -> Option<Vec<u8>> {
    written(body, Some(ignored))
}

fn written(body: &[u8], ignored: Option<&PointerNode>) -> Option<Vec<u8>> {
    let text = str::from_utf8(body).ok()?;
    let mut writer = Writer {
        text,
        at: 0,
        depth: 0,
        ignored,
        out: Vec::with_capacity(body.len()),
        decoded: String::new(),
        members: Vec::new(),
        unsorted: Vec::new(),
    };
    writer.value()?;
    writer.white_space();
    (writer.at == text.len()).then_some(writer.out)
}

/// Reads one document from `text` and writes it canonically to `out` in the same pass. The members
/// of an object are written again only if they are out of order, or if one of them is left out. All
/// strings and objects share the same buffers, so a small string or object allocates nothing.
struct Writer<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    /// The pointers that lead into the value that is being read, if any do.
    ignored: Option<&'a PointerNode>,
    out: Vec<u8>,
    /// The unescaped member names of all open objects, and the string that is being read.
    decoded: String,
    /// The members of all open objects.
    members: Vec<Member>,
    /// A buffer for the members of an object that is being sorted.
    unsorted: Vec<u8>,
}

/// A member that has been written. Its name is in `decoded` and its text in the output, each at the
/// given position.
struct Member {
    name: Range<usize>,
    written: Range<usize>,
    is_ignored: bool,
}

impl Writer<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn white_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Option<()> {
        self.white_space();
        match self.peek()? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => {
                let start = self.decoded.len();
                self.string()?;
                self.decoded.truncate(start);
                Some(())
            }
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.at += 1;
        read(self)?;
        self.depth -= 1;
        Some(())
    }

    fn literal(&mut self, word: &'static str) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| {
            self.at += word.len();
            self.out.extend_from_slice(word.as_bytes());
        })
    }

    fn array(&mut self) -> Option<()> {
        self.out.push(b'[');
        let ignored = self.ignored;
        let mut index = 0_usize;
        self.white_space();
        if self.peek()? == b']' {
            self.at += 1;
        } else {
            loop {
                self.ignored = ignored.and_then(|node| node.next(&index.to_string()));
                self.value()?;
                index += 1;
                self.white_space();
                match self.next()? {
                    b',' => self.out.push(b','),
                    b']' => break,
                    _ => return None,
                }
            }
        }
        self.ignored = ignored;
        self.out.push(b']');
        Some(())
    }

    fn object(&mut self) -> Option<()> {
        self.out.push(b'{');
        let (first, members, names) = (self.out.len(), self.members.len(), self.decoded.len());
        self.white_space();
        if self.peek()? == b'}' {
            self.at += 1;
        } else {
            loop {
                self.member()?;
                self.white_space();
                match self.next()? {
                    b',' => self.out.push(b','),
                    b'}' => break,
                    _ => return None,
                }
            }
            self.sort(members, first)?;
        }
        self.members.truncate(members);
        self.decoded.truncate(names);
        self.out.push(b'}');
        Some(())
    }

    fn member(&mut self) -> Option<()> {
        self.white_space();
        let (start, name) = (self.out.len(), self.decoded.len());
        self.string()?;
        let name = name..self.decoded.len();
        self.white_space();
        if self.next()? != b':' {
            return None;
        }
        self.out.push(b':');
        let ignored = self.ignored;
        self.ignored = ignored.and_then(|node| node.next(&self.decoded[name.clone()]));
        let is_ignored = self.ignored.is_some_and(PointerNode::is_end);
        self.value()?;
        self.ignored = ignored;
        self.members.push(Member { name, written: start..self.out.len(), is_ignored });
        Some(())
    }

    /// Reads a string with its quotes, appends the unescaped text to `decoded`, and writes the
    /// canonical string to `out`.
    fn string(&mut self) -> Option<()> {
        if self.next()? != b'"' {
            return None;
        }
        let start = self.decoded.len();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.bytes().position(is_special)?;
            self.decoded.push_str(&rest[..plain]);
            self.at += plain;
            match self.next()? {
                b'"' => break,
                b'\\' => {
                    let escaped = self.escape()?;
                    self.decoded.push(escaped);
                }
                _ => return None,
            }
        }
        let string = &self.decoded[start..];
        // I-JSON allows no noncharacters (RFC 7493 section 2.1). In UTF-8, the first byte of each
        // noncharacter is 0xEF or higher.
        let noncharacter =
            |c| matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe;
        if string.bytes().any(|byte| byte >= 0xef) && string.chars().any(noncharacter) {
            return None;
        }
        write_string(string, &mut self.out);
        Some(())
    }

    fn escape(&mut self) -> Option<char> {
        Some(match self.next()? {
            plain @ (b'"' | b'\\' | b'/') => char::from(plain),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.four_digits()?;
                match char::from_u32(first) {
                    Some(c) => c,
                    // The escape is a surrogate. It must be the high half of a pair, and an escape
                    // with the low half must follow.
                    None => {
                        if first >= 0xdc00 || self.next()? != b'\\' || self.next()? != b'u' {
                            return None;
                        }
                        let low =
                            self.four_digits()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + low)?
                    }
                }
            }
            _ => return None,
        })
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
        self.at += 4;
        digits
            .iter()
            .try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        // Copy the number unchanged: a double represents every integer of up to 15 digits exactly.
        let is_short = self.at - start <= 15 && self.text.as_bytes()[start] != b'-';
        if is_short && !matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            self.out.extend_from_slice(&self.text.as_bytes()[start..self.at]);
            return Some(());
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits()?;
        }
        write_number(&self.text[start..self.at], &mut self.out)
    }

    fn some_digits(&mut self) -> Option<()> {
        let start = self.at;
        self.digits();
        (self.at > start).then_some(())
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    /// Sorts the members of the innermost open object by the UTF-16 code units of their names (RFC
    /// 8785 section 3.2.3). The object's members begin at index `members`, and their text in the
    /// output begins at `first`. Removes the ignored members. Returns `None` if a name occurs twice
    /// (RFC 7493 section 2.3).
    fn sort(&mut self, members: usize, first: usize) -> Option<()> {
        let Self { out, decoded, unsorted, .. } = self;
        let members = self.members.get_mut(members..)?;
        let name =
            |member: &Member| decoded.as_bytes().get(member.name.clone()).unwrap_or_default();
        let by_name = |a: &Member, b: &Member| utf16_order(name(a), name(b));
        if !members.is_sorted_by(|a, b| by_name(a, b).is_lt()) {
            members.sort_unstable_by(by_name);
            if members.windows(2).any(|pair| name(&pair[0]) == name(&pair[1])) {
                return None;
            }
        } else if !members.iter().any(|member| member.is_ignored) {
            return Some(());
        }
        unsorted.clear();
        unsorted.extend_from_slice(&out[first..]);
        out.truncate(first);
        let kept = members.iter().filter(|member| !member.is_ignored);
        for (n, member) in kept.enumerate() {
            if n > 0 {
                out.push(b',');
            }
            out.extend_from_slice(
                &unsorted[member.written.start - first..member.written.end - first],
            );
        }
        Some(())
    }
}

/// Compares two UTF-8 texts by their UTF-16 code units. The result differs from the byte order only
/// between a character beyond U+FFFF and a character from U+E000 to U+FFFF. UTF-16 writes the
/// former with surrogates, which sort lower.
fn utf16_order(a: &[u8], b: &[u8]) -> Ordering {
    let Some((a, b)) = a.iter().zip(b).find(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    match (*a, *b) {
        (0xee | 0xef, 0xf0..) => Ordering::Greater,
        (0xf0.., 0xee | 0xef) => Ordering::Less,
        (a, b) => a.cmp(&b),
    }
}

/// Whether this byte has to be escaped in a string.
fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..=0x1f)
}

fn write_string(string: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = string.as_bytes();
    while let Some(plain) = rest.iter().position(|byte| is_special(*byte)) {
        out.extend_from_slice(&rest[..plain]);
        match rest[plain] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            byte => {
                let digit = |d: u8| b"0123456789abcdef"[usize::from(d)];
                out.extend_from_slice(&[
                    b'\\',
                    b'u',
                    b'0',
                    b'0',
                    digit(byte >> 4),
                    digit(byte & 15),
                ]);
            }
        }
        rest = &rest[plain + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

#[cfg(test)]
mod tests;
