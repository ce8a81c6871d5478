// SPDX-License-Identifier: MIT OR Apache-2.0
//! `size-check`: a file stays short enough to be read at once, or states why not; and names its
//! licence.

use std::path::Path;

use crate::Verdict;
use crate::tree::{self, Source};

const SPDX: &str = "// SPDX-License-Identifier: MIT OR Apache-2.0";
const LONG: usize = 400;
/// The reason is in the module's first lines, so that a reader sees it before the length.
const REASON: &str = "over 400 lines";
const REASON_WITHIN: usize = 15;

pub(crate) fn check(root: &Path) -> Verdict {
    let files = match tree::rust_files(root) {
        Ok(files) => files,
        Err(error) => return Verdict::Failed(error.to_string()),
    };
    let mut lengths: Vec<usize> = files.iter().map(|file| file.text.lines().count()).collect();
    lengths.sort_unstable();
    let median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    for file in files.iter().filter(|file| file.text.lines().count() > LONG) {
        println!("  {} lines: {}", file.text.lines().count(), file.path);
    }
    let problems: Vec<String> = files.iter().flat_map(problems_of).collect();
    Verdict::of(&problems, format!("{} files, median {median} lines", files.len()))
}

fn problems_of(file: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    if !file.text.starts_with(SPDX) {
        problems.push(format!("{}: the first line is not `{SPDX}`", file.path));
    }
    let lines = file.text.lines().count();
    let mut head = file.text.lines().take(REASON_WITHIN).filter(|line| line.starts_with("//"));
    if lines > LONG && !head.any(|line| line.to_lowercase().contains(REASON)) {
        problems.push(format!(
            "{}: {lines} lines; split it, or give the reason in its first {REASON_WITHIN} lines \
             (\"Over {LONG} lines because ...\")",
            file.path
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(head: &str, lines: usize) -> Source {
        Source { path: "x.rs".into(), text: format!("{head}\n{}", "x\n".repeat(lines)) }
    }

    #[test]
    fn a_short_file_with_its_licence_passes() {
        assert!(problems_of(&file(SPDX, 100)).is_empty());
        assert_eq!(problems_of(&file("//! no licence", 100)).len(), 1);
    }

    #[test]
    fn a_long_file_needs_a_reason_near_its_top() {
        assert_eq!(problems_of(&file(SPDX, 400)).len(), 1);
        assert!(
            problems_of(&file(&format!("{SPDX}\n//! Over 400 lines because so."), 400)).is_empty()
        );
        assert_eq!(
            problems_of(&file(&format!("{SPDX}{}// over 400 lines", "\n".repeat(20)), 400)).len(),
            1
        );
    }
}
