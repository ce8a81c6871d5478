// SPDX-License-Identifier: MIT OR Apache-2.0
//! `size-check`: a file is short enough to be read in one go, or states why not; its prose and
//! strings fit a screen; and it names its licence.

use std::path::Path;

use crate::Verdict;
use crate::tree::{self, Source};

const SPDX: &str = "// SPDX-License-Identifier: MIT OR Apache-2.0";
const LONG: usize = 400;
const WIDE: usize = 110;
/// A file that is too long must give its reason, with these words, in its first lines, so that a
/// reader sees the reason first.
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
    let mut problems: Vec<String> = files.iter().flat_map(problems_of).collect();
    match tree::files(root, |name| name.ends_with(".md")) {
        Ok(pages) => problems.extend(files.iter().chain(&pages).flat_map(long_lines_of)),
        Err(error) => problems.push(error.to_string()),
    }
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
             (\"This file is over {LONG} lines long because ...\")",
            file.path
        ));
    }
    problems
}

/// Finds lines of shipped sources and their pages that are too long. rustfmt breaks code at 100
/// columns; this check is for prose and strings, which rustfmt does not break. It skips rows of
/// tables, examples between fences, and texts without a space, which cannot be broken.
fn long_lines_of(file: &Source) -> Vec<String> {
    let is_test = file.path.ends_with("tests.rs");
    if !file.path.starts_with("crates/") || !file.path.contains("/src/") || is_test {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let mut in_example = false;
    for (at, line) in file.text.lines().enumerate() {
        let text = line.trim_start_matches([' ', '/', '!']);
        in_example ^= text.starts_with("```");
        let longest = text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let breaks = !in_example && !text.starts_with('|') && longest < WIDE - 20;
        if line.chars().count() > WIDE && breaks {
            problems.push(format!("{}:{}: over {WIDE} columns", file.path, at + 1));
        }
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
    fn a_long_line_of_shipped_prose_breaks() {
        let long = |path: &str, text: &str| {
            long_lines_of(&Source { path: path.into(), text: format!("{SPDX}\n{text}\n") })
        };
        let words = "word ".repeat(25);
        let here = "crates/x/src/a.rs";
        assert_eq!(long(here, &format!("/// {words}")), ["crates/x/src/a.rs:2: over 110 columns"]);
        assert!(long(here, &format!("//! | {words}")).is_empty());
        assert!(long(here, &format!("/// ```\n/// {words}\n/// ```")).is_empty());
        assert!(long(here, &format!("/// {}", "x".repeat(120))).is_empty());
        assert!(long("examples/x/src/a.rs", &format!("/// {words}")).is_empty());
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
