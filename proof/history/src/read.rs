// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`read`]: reads a folder of event files, line by line.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::event::{Event, Manifest};
use crate::story::{Line, Run};

/// The files of a history, by number.
#[derive(Debug, Clone, Default)]
pub struct Lines(pub(crate) Vec<PathBuf>);

impl Lines {
    /// Returns the text of a line, to show it.
    #[must_use]
    pub fn text(&self, line: Line) -> Option<String> {
        let file = fs::File::open(self.0.get(line.file as usize)?).ok()?;
        BufReader::new(file).lines().nth(line.number as usize)?.ok()
    }
}

/// Why a history cannot be read.
#[derive(Debug)]
pub struct ReadError {
    path: PathBuf,
    line: Option<usize>,
    why: String,
}

impl ReadError {
    fn new(path: &Path, line: Option<usize>, why: impl fmt::Display) -> Self {
        Self { path: path.to_path_buf(), line, why: why.to_string() }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {}", line + 1)?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for ReadError {}

/// Reads `run.json` and every `*.jsonl` of a folder.
///
/// The last line of a file may be incomplete, because its writer may have been killed while it
/// wrote the line. Any other line that is not an event is an error: a checker that skips what it
/// does not understand proves nothing.
///
/// # Errors
/// If a line is not an event, as described above, or if a file cannot be read.
pub fn read(folder: &Path) -> Result<(Run, Lines), ReadError> {
    let path = folder.join("run.json");
    let text = fs::read(&path).map_err(|error| ReadError::new(&path, None, error))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| ReadError::new(&path, None, error))?;
    let listed = |error: io::Error| ReadError::new(folder, None, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(listed)? {
        let path = entry.map_err(listed)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    let mut run = Run::new(manifest);
    for (number, path) in (0..).zip(&files) {
        read_file(path, number, &mut run)?;
    }
    run.close();
    Ok((run, Lines(files)))
}

fn read_file(path: &Path, file: u32, run: &mut Run) -> Result<(), ReadError> {
    let opened = fs::File::open(path).map_err(|error| ReadError::new(path, None, error))?;
    let mut lines = BufReader::new(opened);
    let mut text = Vec::new();
    for number in 0_u32.. {
        text.clear();
        let fail = |why: &dyn fmt::Display| ReadError::new(path, Some(number as usize), why);
        if lines.read_until(b'\n', &mut text).map_err(|error| fail(&error))? == 0 {
            break;
        }
        // A line without its line end is incomplete, whatever it contains.
        if text.last() != Some(&b'\n') {
            break;
        }
        let event = serde_json::from_slice::<Event>(&text).map_err(|error| fail(&error))?;
        run.take(event, Line { file, number }).map_err(|why| fail(&why))?;
    }
    Ok(())
}
