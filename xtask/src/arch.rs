// SPDX-License-Identifier: MIT OR Apache-2.0
//! `arch-check`: everything that ARCHITECTURE.md names exists, and the page leaves no crate out and
//! has no row twice; links of the other pages lead to existing files; the files of a crate do not
//! import each other in circles.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Verdict;
use crate::deps::{members, metadata};
use crate::{circles, tree};

const PAGE: &str = "ARCHITECTURE.md";

pub(crate) fn check(root: &Path) -> Verdict {
    let (page, members) = match (std::fs::read_to_string(root.join(PAGE)), metadata(root)) {
        (Ok(page), Ok(metadata)) => (page, members(&metadata)),
        (Err(error), _) => return Verdict::Failed(format!("cannot read {PAGE}: {error}")),
        (_, Err(error)) => return Verdict::Failed(error),
    };
    let folders: Vec<String> = members.iter().map(|member| member.folder(root)).collect();
    let files = rust_files(&page);
    let mut problems: Vec<String> = files
        .iter()
        .filter(|file| !candidates(file, &folders).iter().any(|path| root.join(path).is_file()))
        .map(|file| format!("{PAGE} names {file}, but no crate contains it"))
        .collect();
    for (member, folder) in members.iter().zip(&folders) {
        if !page.contains(&format!("`{folder}`")) {
            problems.push(format!("{PAGE} does not name `{folder}` ({})", member.name));
        }
    }
    match tree::files(root, |name| name.ends_with(".md")) {
        Ok(pages) => {
            problems.extend(pages.iter().flat_map(|page| dead_links(root, &page.path, &page.text)))
        }
        Err(error) => problems.push(error.to_string()),
    }
    problems.extend(rows_that_stand_twice(&page));
    match tree::rust_files(root) {
        Ok(sources) => problems.extend(circles::problems(&sources)),
        Err(error) => problems.push(error.to_string()),
    }
    Verdict::of(&problems, format!("{} crates, {} files", members.len(), files.len()))
}

/// Returns the rows of tables that have the same first cell under the same heading.
fn rows_that_stand_twice(page: &str) -> Vec<String> {
    let mut first_cells = BTreeSet::new();
    let mut problems = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with('#') {
            first_cells.clear();
        }
        if lines.peek().is_some_and(|next| next.starts_with("|-")) {
            continue;
        }
        let Some(cell) = line.strip_prefix('|').and_then(|row| row.split('|').next()) else {
            continue;
        };
        let cell = cell.trim();
        let is_rule = cell.is_empty() || cell.chars().all(|c| c == '-' || c == ':');
        if !is_rule && !first_cells.insert(cell) {
            problems.push(format!("{PAGE} has two rows for {cell}"));
        }
    }
    problems
}

/// Returns all texts in backticks that end in `.rs`.
fn rust_files(page: &str) -> Vec<&str> {
    page.split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| code.ends_with(".rs") && !code.contains(char::is_whitespace))
        .collect()
}

/// Returns the paths that `file` may stand for: `core/engine/acquire.rs` is short for
/// `crates/retryproof-core/src/engine/acquire.rs`.
fn candidates(file: &str, folders: &[String]) -> Vec<String> {
    let mut paths = vec![file.to_string()];
    if let Some((short, rest)) = file.split_once('/') {
        let of_crate = |folder: &&String| {
            let name = folder.rsplit('/').next().unwrap_or(folder);
            name == short || name.strip_prefix("retryproof-") == Some(short)
        };
        paths.extend(
            folders
                .iter()
                .filter(of_crate)
                .flat_map(|f| [format!("{f}/src/{rest}"), format!("{f}/{rest}")]),
        );
    }
    paths
}

fn dead_links(root: &Path, path: &str, text: &str) -> Vec<String> {
    let folder = root.join(path).parent().unwrap_or(root).to_path_buf();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets
        .filter(|target| {
            target.contains(['/', '.']) && !target.contains("://") && !target.contains("::")
        })
        .filter(|target| !folder.join(target).exists())
        .map(|target| format!("{path} links to {target}, which does not exist"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stands_once_under_a_heading() {
        let page = "# A\n| x | is |\n|---|---|\n| x | 1 |\n| x | 2 |\n# B\n| x | 3 |\n";
        assert_eq!(rows_that_stand_twice(page), ["ARCHITECTURE.md has two rows for x"]);
    }

    #[test]
    fn files_are_those_in_backticks() {
        assert_eq!(
            rust_files("`core/store.rs`, store.rs, `a b.rs`, `x.md` and `x/y.rs`"),
            ["core/store.rs", "x/y.rs"]
        );
    }

    #[test]
    fn a_short_path_stands_for_a_file_of_its_crate() {
        let folders = ["crates/retryproof-core".into(), "examples/lab".into()];
        assert!(
            candidates("core/store.rs", &folders)
                .contains(&"crates/retryproof-core/src/store.rs".into())
        );
        assert!(
            candidates("lab/tests/it/main.rs", &folders)
                .contains(&"examples/lab/tests/it/main.rs".into())
        );
        assert_eq!(candidates("http/key.rs", &folders), ["http/key.rs"]);
    }

    #[test]
    fn links_to_missing_files_are_found_and_others_left_alone() {
        let text = "[a](xtask/Cargo.toml) [b](no/such.md#x) [c](https://example.org/x.y) \
             [d](#here) [e](crate::x::Y)";
        let root = tree::root();
        assert_eq!(
            dead_links(&root, "README.md", text),
            ["README.md links to no/such.md, which does not exist"]
        );
    }
}
