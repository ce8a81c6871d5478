// SPDX-License-Identifier: MIT OR Apache-2.0
//! The source tree: where it is, and its files.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns the workspace root, which is the folder above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// One file, by its path from the root, with forward slashes.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Reads all files below `root` whose name `wanted` accepts, sorted by path. Build output and
/// hidden folders are left out.
pub(crate) fn files(root: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(entry.path());
                }
            } else if wanted(&name) {
                let path = entry.path();
                let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
                let path =
                    path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Reads all Rust files below the root.
pub(crate) fn rust_files(root: &Path) -> io::Result<Vec<Source>> {
    files(root, |name| name.ends_with(".rs"))
}
