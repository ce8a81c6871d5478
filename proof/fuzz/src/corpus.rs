// SPDX-License-Identifier: MIT OR Apache-2.0
//! Corpora: a line for each input, with `\xNN` for any byte that is not printable ASCII.

/// Reads a corpus. A line that begins with `#` is a comment.
pub(crate) fn read(text: &str) -> Vec<Vec<u8>> {
    text.lines().filter(|line| !line.starts_with('#')).map(unescape).collect()
}

/// Returns the bytes that a line stands for.
pub(crate) fn unescape(line: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let escaped = (*first == b'\\').then_some(after);
        match escaped {
            Some([b'n', after @ ..]) => (rest, _) = (after, bytes.push(b'\n')),
            Some([b't', after @ ..]) => (rest, _) = (after, bytes.push(b'\t')),
            Some([b'\\', after @ ..]) => (rest, _) = (after, bytes.push(b'\\')),
            Some([b'x', high, low, after @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0);
                let byte = digit(*high) * 16 + digit(*low);
                bytes.push(u8::try_from(byte).unwrap_or(0));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    bytes
}

/// Returns the line of a corpus that stands for the bytes.
pub(crate) fn escape(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| match byte {
            b'\n' => "\\n".to_owned(),
            b'\t' => "\\t".to_owned(),
            b'\\' => "\\\\".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        })
        .collect()
}
