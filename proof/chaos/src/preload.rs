// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small C libraries that change how the system behaves for a process. They are compiled when they
//! are needed, and preloaded only into processes of this program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source` into a library in `folder`.
pub(crate) fn library(name: &str, source: &str, folder: &Path) -> io::Result<PathBuf> {
    let (file, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&file, source)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(&file);
    let output = command.output().map_err(|error| {
        io::Error::other(format!("this run needs a C compiler, and `cc` did not start: {error}"))
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("`cc` could not compile {name}.c: {said}")));
    }
    Ok(library)
}
