// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Journal`]: a file of events that survives the death of its writer.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::event::Event;

/// Appends events to a file. A whole line is written by a single `write(2)` on an `O_APPEND` file.
/// A killed writer therefore leaves at most an incomplete last line, and lines of several writers
/// do not mix.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().append(true).create(true).open(path).map(Self)
    }

    /// Writes one event.
    ///
    /// # Errors
    /// Fails if the disk takes less than the whole line.
    pub fn write(&self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        let written = (&self.0).write(&line)?;
        if written == line.len() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::WriteZero, "only part of a line was written"))
    }
}

/// Hashes bytes with FNV-1a, to identify them in a history. The hash is not fit for secrets.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
