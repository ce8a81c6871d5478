// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `Idempotency-Key` header (HTTP-2).

use sfv::{BareItem, Item, Parser};

use super::{about, kind};
use crate::product::http::key;

/// A parser of the header: returns the key, `None` if the header is missing, or why the key is
/// invalid.
pub type Parse = fn(&[&[u8]]) -> Result<Option<Vec<u8>>, String>;

fn product(lines: &[&[u8]]) -> Result<Option<Vec<u8>>, String> {
    key::parse(lines.iter().copied())
        .map(|key| key.map(|key| key.into_owned()))
        .map_err(|error| error.reason().to_owned())
}

pub(super) fn run(input: &[u8]) -> u64 {
    check(input, product)
}

/// Checks the properties of a parser. A line feed in the input separates header lines.
///
/// # Panics
/// If a property does not hold.
#[must_use]
pub fn check(input: &[u8], parse: Parse) -> u64 {
    let lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    let parsed = parse(&lines);
    assert_eq!(parse(&[]), Ok(None));
    let &[line] = lines.as_slice() else {
        assert!(parsed.is_err(), "a repeated header was read");
        return kind(parsed);
    };
    compare(line, &parsed);
    let Ok(Some(key)) = &parsed else {
        assert!(parsed.is_err(), "a line is not missing");
        return kind(parsed);
    };
    assert!((1..=255).contains(&key.len()) && line.len() <= 1_024, "the bounds hold");
    assert!(key.iter().all(|byte| (0x20..=0x7e).contains(byte)), "a key is printable ASCII");
    assert!(key.iter().any(|byte| *byte != b' '), "a key is not blank");
    let mut quoted = vec![b'"'];
    for byte in key {
        if matches!(byte, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(*byte);
    }
    quoted.push(b'"');
    let again = |line: &[u8]| assert_eq!(parse(&[line]), parsed, "another form of the same key");
    again(&quoted);
    again(&[b" \t", &quoted[..], b"; a=1;b=?0;c=\"x\" "].concat());
    if !key.iter().any(|byte| matches!(byte, b' ' | b',')) && key.first() != Some(&b'"') {
        again(key);
        again(&[b"\t", &key[..], b" "].concat());
    }
    kind((about(key.len()), line.first() == Some(&b'"'), line.contains(&b'\\')))
}

/// Checks that the parser reads the quoted form as the crate `sfv` does.
fn compare(line: &[u8], parsed: &Result<Option<Vec<u8>>, String>) {
    let mut trimmed = line;
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = trimmed {
        trimmed = rest;
    }
    if trimmed.first() != Some(&b'"') || line.len() > 1_024 {
        return;
    }
    let string = match Parser::new(trimmed).parse::<Item>() {
        Ok(Item { bare_item: BareItem::String(text), .. }) => Some(text.as_str().to_owned()),
        _ => None,
    };
    match (string, parsed) {
        (Some(text), Ok(Some(key))) => assert_eq!(text.as_bytes(), &key[..], "RFC 9651"),
        (Some(text), Err(_)) => {
            assert!(text.len() > 255 || text.trim().is_empty(), "RFC 9651 reads the key");
        }
        // The parser does not decode byte sequences (`:…:`) in parameters, which have no meaning
        // here. It therefore accepts invalid ones.
        (None, Ok(_)) => assert!(trimmed.contains(&b':'), "RFC 9651 does not read the key"),
        (None, Err(_)) | (Some(_), Ok(None)) => {}
    }
}
