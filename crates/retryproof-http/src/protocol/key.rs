// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the `Idempotency-Key` request header (HTTP-2).
//!
//! A key can be written in two ways: bare (`abc`), or as an RFC 9651 String (`"abc"`). The bare
//! form is accepted because many clients send UUIDs without quotes. A strict structured-field
//! parser would refuse a UUID that begins with a digit.

use std::borrow::Cow;
use std::sync::Arc;
use std::{fmt, iter};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The maximum length of the header line in bytes, including white space and escapes (HTTP-2).
pub(crate) const MAX_RAW: usize = 1024;
/// The maximum length of the decoded key, in bytes (HTTP-2).
pub(crate) const MAX_KEY: usize = 255;

/// Why a key header was refused. The reason never contains the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// The header occurs on more than one line.
    Repeated,
    /// The header is empty, or has only white space.
    Empty,
    /// The header line has more than [`MAX_RAW`] bytes, or the decoded key more than [`MAX_KEY`]
    /// bytes.
    TooLong,
    /// The bare form contains forbidden bytes, or the quoted form is not an RFC 9651 String.
    Malformed,
}

impl KeyError {
    /// Returns the reason for the client. The text completes a sentence that begins with "the
    /// header NAME".
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Repeated => "must occur only once",
            Self::Empty => "must contain a key, but is empty or blank",
            Self::TooLong => {
                "must contain a key of at most 255 bytes, and may itself have at most 1024 bytes"
            }
            Self::Malformed => {
                "must contain only visible ASCII characters and no comma, or must be a quoted \
                 string (RFC 9651)"
            }
        }
    }
}

/// The client's key, decoded. Usually the key is a slice of the header line, and nothing is copied.
/// `Debug` shows only the key's length (ID-4).
#[derive(Clone)]
pub(crate) enum ClientKey {
    Line { line: HeaderValue, start: usize, end: usize },
    Decoded(Arc<[u8]>),
}

impl ClientKey {
    /// Reads the key of a request. Returns `None` if the request has no key header.
    pub(crate) fn from_headers(
        headers: &HeaderMap,
        name: &HeaderName,
    ) -> Result<Option<Self>, KeyError> {
        let mut lines = headers.get_all(name).iter();
        let Some(line) = lines.next() else { return Ok(None) };
        let lines = iter::once(line).chain(lines).map(HeaderValue::as_bytes);
        let Some(key) = parse(lines)? else { return Ok(None) };
        Ok(Some(match key {
            Cow::Owned(key) => Self::Decoded(key.into()),
            Cow::Borrowed(key) => {
                // `parse` returned a slice of its input, so the difference between the two addresses
                // is the key's position in the line.
                let start = key.as_ptr().addr() - line.as_bytes().as_ptr().addr();
                Self::Line { line: line.clone(), start, end: start + key.len() }
            }
        }))
    }

    /// Like [`from_headers`](Self::from_headers), for header lines in another framework's type.
    pub(crate) fn from_lines<'a>(
        lines: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<Self>, KeyError> {
        Ok(parse(lines)?.map(|key| Self::Decoded(key.into())))
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Line { line, start, end } => {
                line.as_bytes().get(*start..*end).unwrap_or_default()
            }
            Self::Decoded(key) => key,
        }
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKey({} bytes)", self.as_bytes().len())
    }
}

/// Reads the key from all lines of the key header. Returns `None` if there is no line. The decoded
/// key has 1 to 255 bytes of printable ASCII, and is not blank. The key is returned as bytes,
/// because the engine later checks the text that is built from it.
pub(crate) fn parse<'a>(
    lines: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Option<Cow<'a, [u8]>>, KeyError> {
    let mut lines = lines.into_iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(KeyError::Repeated);
    }
    parse_line(line).map(Some)
}

fn parse_line(raw: &[u8]) -> Result<Cow<'_, [u8]>, KeyError> {
    if raw.len() > MAX_RAW {
        return Err(KeyError::TooLong);
    }
    let raw = trim(raw);
    let key = match raw.first() {
        None => return Err(KeyError::Empty),
        Some(b'"') => quoted(&raw[1..])?,
        Some(_) => bare(raw)?,
    };
    if key.len() > MAX_KEY {
        return Err(KeyError::TooLong);
    }
    // The quoted form allows spaces, but ID-3 refuses a key of only spaces.
    if key.iter().all(|b| *b == b' ') {
        return Err(KeyError::Empty);
    }
    Ok(key)
}

/// Removes optional white space (RFC 9110 section 5.6.3) on both sides.
fn trim(mut raw: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = raw {
        raw = rest;
    }
    raw
}

fn bare(raw: &[u8]) -> Result<Cow<'_, [u8]>, KeyError> {
    // Do not exit the loop early, so that the compiler can vectorise it.
    if !raw.iter().fold(true, |legal, &b| legal & (0x21..=0x7e).contains(&b) & (b != b',')) {
        return Err(KeyError::Malformed);
    }
    Ok(Cow::Borrowed(raw))
}

/// Parses an RFC 9651 String after its opening quote, with the parameters that may follow it.
fn quoted(rest: &[u8]) -> Result<Cow<'_, [u8]>, KeyError> {
    let (key, after) = string(rest).ok_or(KeyError::Malformed)?;
    parameters(after).ok_or(KeyError::Malformed)?;
    Ok(key)
}

/// Decodes a String up to its closing quote. Returns the decoded text and the input after the
/// quote. Copies the text only if it has an escape.
fn string(input: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let mut decoded: Option<Vec<u8>> = None;
    let mut at = 0;
    loop {
        match *input.get(at)? {
            b'"' => {
                let key = match decoded {
                    Some(key) => Cow::Owned(key),
                    None => Cow::Borrowed(&input[..at]),
                };
                return Some((key, &input[at + 1..]));
            }
            b'\\' => {
                let escaped = *input.get(at + 1)?;
                if !matches!(escaped, b'"' | b'\\') {
                    return None;
                }
                let so_far = match &mut decoded {
                    Some(so_far) => so_far,
                    none => none.insert(input[..at].to_owned()),
                };
                so_far.push(escaped);
                at += 2;
            }
            byte @ 0x20..=0x7e => {
                if let Some(so_far) = &mut decoded {
                    so_far.push(byte);
                }
                at += 1;
            }
            _ => return None,
        }
    }
}

/// Checks the syntax of RFC 9651 parameters (section 4.2.3.2) up to the end of the line, and
/// ignores their meaning.
fn parameters(mut rest: &[u8]) -> Option<()> {
    while let [b';', after @ ..] = rest {
        rest = skip_while(after, |b| b == b' ');
        rest = match rest {
            [b'a'..=b'z' | b'*', after @ ..] => skip_while(
                after,
                |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'),
            ),
            _ => return None,
        };
        if let [b'=', after @ ..] = rest {
            rest = bare_item(after)?;
        }
    }
    rest.is_empty().then_some(())
}

/// Skips one RFC 9651 bare item (section 4.2.3.1).
fn bare_item(input: &[u8]) -> Option<&[u8]> {
    match input {
        [b'"', rest @ ..] => string(rest).map(|(_, rest)| rest),
        [b'?', b'0' | b'1', rest @ ..] => Some(rest),
        [b'@', rest @ ..] => number(rest, Fraction::Refused),
        [b'-' | b'0'..=b'9', ..] => number(input, Fraction::Allowed),
        [b':', rest @ ..] => {
            let end = rest.iter().position(|&b| b == b':')?;
            let valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
            rest[..end].iter().all(valid).then_some(&rest[end + 1..])
        }
        [b'%', b'"', rest @ ..] => display_string(rest),
        [b'a'..=b'z' | b'A'..=b'Z' | b'*', rest @ ..] => Some(skip_while(rest, |b| {
            b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b)
        })),
        _ => None,
    }
}

#[derive(PartialEq, Eq)]
enum Fraction {
    Allowed,
    Refused,
}

/// Skips an Integer (up to 15 digits) or, if allowed, a Decimal (up to 12 digits, a dot, 1 to 3
/// digits).
fn number(input: &[u8], fraction: Fraction) -> Option<&[u8]> {
    let digits = input.strip_prefix(b"-").unwrap_or(input);
    let rest = skip_while(digits, |b| b.is_ascii_digit());
    let whole = digits.len() - rest.len();
    let [b'.', after @ ..] = rest else {
        return (1..=15).contains(&whole).then_some(rest);
    };
    let rest = skip_while(after, |b| b.is_ascii_digit());
    let places = after.len() - rest.len();
    (fraction == Fraction::Allowed && (1..=12).contains(&whole) && (1..=3).contains(&places))
        .then_some(rest)
}

/// Skips a Display String after its opening `%"`. A Display String is printable ASCII with
/// lower-case percent escapes that decode to UTF-8.
fn display_string(input: &[u8]) -> Option<&[u8]> {
    let mut decoded = Vec::new();
    let mut rest = input;
    loop {
        rest = match rest {
            [b'"', rest @ ..] => return str::from_utf8(&decoded).ok().map(|_| rest),
            [b'%', high, low, rest @ ..] => {
                decoded.push(hex(*high)? << 4 | hex(*low)?);
                rest
            }
            [byte @ (0x20..=0x24 | 0x26..=0x7e), rest @ ..] => {
                decoded.push(*byte);
                rest
            }
            _ => return None,
        };
    }
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn skip_while(input: &[u8], wanted: impl Fn(u8) -> bool) -> &[u8] {
    let end = input.iter().position(|&b| !wanted(b)).unwrap_or(input.len());
    &input[end..]
}

#[cfg(test)]
mod tests;
