// SPDX-License-Identifier: MIT OR Apache-2.0
//! Canonical JSON (RFC 8785) of a body that is I-JSON (RFC 7493), for the fingerprint `json` (FP-3).
//!
//! Stricter than either where a doubt would let two different bodies meet: a number that a double cannot carry in
//! full (`9007199254740993`) makes the body "not I-JSON", so that it is compared byte for byte.

mod number;

use number::write_number;

/// Deeper nesting is not canonicalised; the parser recurses once per level.
const MAX_DEPTH: u32 = 128;

/// The canonical bytes, or `None` when the body is not I-JSON in the sense above.
pub(super) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let text = str::from_utf8(body).ok()?;
    let mut writer = Writer { text, at: 0, depth: 0, out: Vec::with_capacity(body.len()) };
    writer.value()?;
    writer.white_space();
    (writer.at == text.len()).then_some(writer.out)
}

/// Reads one document from `text` and writes it canonically to `out` in the same pass; only objects whose members
/// are out of order are moved afterwards.
struct Writer<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    out: Vec<u8>,
}

/// A member already written: its name, and where it stands in the output.
struct Member {
    name: String,
    start: usize,
    end: usize,
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
                let string = self.string()?;
                write_string(&string, &mut self.out);
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
        self.white_space();
        if self.peek()? == b']' {
            self.at += 1;
        } else {
            loop {
                self.value()?;
                self.white_space();
                match self.next()? {
                    b',' => self.out.push(b','),
                    b']' => break,
                    _ => return None,
                }
            }
        }
        self.out.push(b']');
        Some(())
    }

    fn object(&mut self) -> Option<()> {
        self.out.push(b'{');
        let first = self.out.len();
        let mut members = Vec::new();
        self.white_space();
        if self.peek()? == b'}' {
            self.at += 1;
        } else {
            loop {
                members.push(self.member()?);
                self.white_space();
                match self.next()? {
                    b',' => self.out.push(b','),
                    b'}' => break,
                    _ => return None,
                }
            }
            sort(&mut members, first, &mut self.out)?;
        }
        self.out.push(b'}');
        Some(())
    }

    fn member(&mut self) -> Option<Member> {
        self.white_space();
        let start = self.out.len();
        let name = self.string()?;
        write_string(&name, &mut self.out);
        self.white_space();
        if self.next()? != b':' {
            return None;
        }
        self.out.push(b':');
        self.value()?;
        Some(Member { name, start, end: self.out.len() })
    }

    /// Reads a string, quotes included.
    fn string(&mut self) -> Option<String> {
        if self.next()? != b'"' {
            return None;
        }
        let mut string = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.bytes().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1f))?;
            string.push_str(&rest[..plain]);
            self.at += plain;
            match self.next()? {
                b'"' => break,
                b'\\' => string.push(self.escape()?),
                _ => return None,
            }
        }
        // I-JSON admits no noncharacters (RFC 7493 section 2.1).
        let noncharacter = |c| matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe;
        (!string.chars().any(noncharacter)).then_some(string)
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
                    // A surrogate: only the high one of a pair may stand here.
                    None => {
                        if first >= 0xdc00 || self.next()? != b'\\' || self.next()? != b'u' {
                            return None;
                        }
                        let low = self.four_digits()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
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
        digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
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
}

/// Puts the members, which end the output from `first` on, in the order of their UTF-16 code units (RFC 8785
/// section 3.2.3); `None` when a name stands twice (RFC 7493 section 2.3).
fn sort(members: &mut [Member], first: usize, out: &mut Vec<u8>) -> Option<()> {
    let by_name = |a: &Member, b: &Member| a.name.encode_utf16().cmp(b.name.encode_utf16());
    if members.is_sorted_by(|a, b| by_name(a, b).is_lt()) {
        return Some(());
    }
    members.sort_by(by_name);
    if members.windows(2).any(|pair| pair[0].name == pair[1].name) {
        return None;
    }
    let unsorted = out.split_off(first);
    for (n, member) in members.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&unsorted[member.start - first..member.end - first]);
    }
    Some(())
}

fn write_string(string: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in string.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..=0x1f => {
                let digit = |d: u8| b"0123456789abcdef"[usize::from(d)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests;
