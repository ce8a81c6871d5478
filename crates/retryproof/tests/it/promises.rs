// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the statements of the front page and the manual against the library: outcomes, features,
//! settings, messages, links.

use std::path::{Path, PathBuf};

#[cfg(feature = "client")]
mod client;
#[cfg(all(feature = "axum", feature = "macros"))]
mod http;
#[cfg(all(feature = "axum", feature = "config"))]
mod operations;
mod outcomes;

const README: &str = include_str!("../../README.md");
const MANIFEST: &str = include_str!("../../Cargo.toml");

/// Returns the root of the repository, or `None` in a packaged crate, which has only this folder.
fn repository() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("xtask").exists().then_some(root)
}

/// Returns the text of the fenced blocks with the language `language`.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    page.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// Returns the cells of the table rows of a page whose first cell begins with a backtick.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines = page.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn readme_has_exactly_two_commands() {
    assert_eq!(blocks(README, "sh"), ["cargo run -p payments -- demo", "cargo xtask test"]);
    let Some(root) = repository() else { return };
    assert!(root.join("examples/payments/src/main.rs").exists());
    let aliases = std::fs::read_to_string(root.join(".cargo/config.toml")).unwrap();
    assert!(
        aliases.contains("xtask = "),
        "the second command is an alias of the repository's own: {aliases}"
    );
}

#[test]
fn readme_example_is_fifteen_lines() {
    let example = blocks(README, "rust,no_run")[0];
    assert_eq!(example.lines().filter(|line| !line.trim().is_empty()).count(), 15, "{example}");
}

#[test]
fn readme_names_every_feature_and_no_other() {
    let section =
        MANIFEST.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap();
    let lines = section.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let mut features: Vec<_> =
        lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    features.retain(|name| *name != "default");
    let rows = rows(README);
    let named = rows.iter().filter_map(|row| row[0].split('`').nth(1));
    assert_eq!(named.collect::<Vec<_>>(), features, "in the order of the manifest");
}

/// Returns every link of a page to a file of the repository.
fn links(page: &str) -> Vec<&str> {
    let inline = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined =
        page.lines().filter(|line| line.starts_with('[')).filter_map(|line| line.split_once("]: "));
    inline
        .chain(defined.map(|(_, target)| target))
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("::") && !target.contains(':'))
        .collect()
}

#[test]
fn links_of_the_pages_lead_to_files() {
    let Some(root) = repository() else { return };
    let mut pages: Vec<_> =
        ["README.md", "DESIGN.md", "SPEC.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
            .iter()
            .map(|page| root.join(page))
            .collect();
    let guides = std::fs::read_dir(root.join("crates/retryproof/src/guide")).unwrap();
    pages.extend(
        guides
            .map(|entry| entry.unwrap().path())
            .filter(|page| page.extension().is_some_and(|e| e == "md")),
    );
    assert!(pages.len() >= 6 + 8, "the search finds them: {pages:?}");
    let mut found = 0;
    for page in &pages {
        for link in links(&std::fs::read_to_string(page).unwrap()) {
            assert!(page.with_file_name(link).exists(), "{} links to {link}", page.display());
            found += 1;
        }
    }
    assert!(found >= 15, "the search finds them: {found}");
}
