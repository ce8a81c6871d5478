// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints results on stdout, as a table or as JSON. A closed pipe ends the output but not the
//! program.

use std::io::{self, ErrorKind, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::arguments::OutputFormat;
use crate::exit::VerbError;

/// How many bytes of JSON lines are collected before a write.
const WRITE: usize = 64 << 10;

/// Prints the result of a verb in the format that the user chose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer(OutputFormat);

impl Printer {
    pub(crate) fn new(format: OutputFormat) -> Self {
        Self(format)
    }

    /// Prints one item: its rows as a table, or `value` as JSON.
    pub(crate) fn one(self, rows: &[(&str, String)], value: &Value) -> Result<(), VerbError> {
        match self.0 {
            OutputFormat::Table => {
                let mut table = bare_table();
                for (name, value) in rows {
                    table.add_row([(*name).to_owned(), one_line(value)]);
                }
                write_out(format!("{}\n", table.trim_fmt()).as_bytes())
            }
            OutputFormat::Json => write_out(json_text(format!("{value:#}\n")).as_bytes()),
            OutputFormat::Jsonl => write_out(json_text(format!("{value}\n")).as_bytes()),
        }
    }

    /// Prints a list: as a table, as a JSON array, or as one JSON value per line.
    pub(crate) fn list<const COLUMNS: usize>(
        self,
        header: [&str; COLUMNS],
        rows: &[[String; COLUMNS]],
        values: &[Value],
    ) -> Result<(), VerbError> {
        self.long_list(header, rows.iter().cloned(), values.iter().cloned())
    }

    /// Prints a list that may be too long to keep both its rows and its values in memory. Creates
    /// only those that the format needs, and prints JSON lines as it creates them.
    pub(crate) fn long_list<const COLUMNS: usize>(
        self,
        header: [&str; COLUMNS],
        rows: impl Iterator<Item = [String; COLUMNS]>,
        values: impl Iterator<Item = Value>,
    ) -> Result<(), VerbError> {
        match self.0 {
            OutputFormat::Table => write_out(format!("{}\n", table(header, rows)).as_bytes()),
            OutputFormat::Json => {
                let values: Value = values.collect();
                write_out(json_text(format!("{values:#}\n")).as_bytes())
            }
            OutputFormat::Jsonl => {
                let mut lines = String::new();
                for value in values {
                    lines += &json_text(format!("{value}\n"));
                    if lines.len() >= WRITE {
                        if !write_on(lines.as_bytes())? {
                            return Ok(());
                        }
                        lines.clear();
                    }
                }
                write_out(lines.as_bytes())
            }
        }
    }

    /// Whether the output is a table.
    pub(crate) fn is_for_people(self) -> bool {
        self.0 == OutputFormat::Table
    }
}

/// Returns a list as a table, without a final newline.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let mut table = bare_table();
    table.set_header(header.map(str::to_uppercase));
    for row in rows {
        table.add_row(row.iter().map(|cell| one_line(cell)));
    }
    table.trim_fmt()
}

fn bare_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// Escapes the control characters that JSON allows in strings, and that a terminal would obey: DEL
/// and U+0080 to U+009F. They occur only in strings, so the values stay the same.
fn json_text(text: String) -> String {
    let is_obeyed = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !text.contains(is_obeyed) {
        return text;
    }
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if is_obeyed(c) {
            shown += &format!("\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
        shown
    })
}

/// Writes to stdout. A broken pipe is not an error, because its reader needs no more output.
pub(crate) fn write_out(bytes: &[u8]) -> Result<(), VerbError> {
    write_on(bytes).map(|_| ())
}

/// Writes a part of a long output to stdout. Returns `false` if the reader has closed the pipe.
pub(crate) fn write_on(bytes: &[u8]) -> Result<bool, VerbError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(VerbError::other(format!("could not write to stdout: {error}"))),
    }
}

/// Prints the error of a verb. If stderr is closed, only the exit code reports the error.
pub(crate) fn report(error: &VerbError) {
    // The name of a file, or a server's text, can contain control characters.
    let text = harmless(&error.to_string());
    let _ = writeln!(anstream::stderr(), "\x1b[1;31merror\x1b[0m: {text}");
}

/// Prints a remark on stderr. A failed write is ignored.
pub(crate) fn remark(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "retryproof: {text}");
}

/// Escapes control characters other than newlines and tabs, because they could move the cursor or
/// hide a line.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

fn one_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n")
}

/// Returns stored bytes as text for a table, or a remark if they are not UTF-8.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => harmless(text),
        Err(_) => {
            format!("({} bytes that are not text; `--output json` prints them)", bytes.len())
        }
    }
}

/// Returns stored bytes as JSON: `{"text": …}`, or `{"base64": …}` if the bytes are not text.
pub(crate) fn json_of(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_store_cannot_control_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\r\n\tc"), "a\\u{1b}[2Jb\\r\n\tc");
        assert_eq!(one_line("a\nb"), "a\\nb");
    }

    #[test]
    fn bytes_are_text_or_base64() {
        assert_eq!(json_of(b"abc"), json!({ "text": "abc" }));
        assert_eq!(json_of(&[0xff, 0]), json!({ "base64": "/wA=" }));
        assert!(text_of(&[0xff, 0]).starts_with("(2 bytes"));
    }
}
