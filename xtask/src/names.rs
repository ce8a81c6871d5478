// SPDX-License-Identifier: MIT OR Apache-2.0
//! `names-check`: a type name of the shipped crates means one thing, unless the allow list gives a
//! reason for a second definition.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Verdict;
use crate::circles::{shipped, without_tests};
use crate::tree::{self, Source};

const ALLOWED: &str = "xtask/names-allowed.tsv";
const KINDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

pub(crate) fn check(root: &Path) -> Verdict {
    let files = match tree::rust_files(root) {
        Ok(files) => files,
        Err(error) => return Verdict::Failed(error.to_string()),
    };
    let allowed = match std::fs::read_to_string(root.join(ALLOWED)) {
        Ok(allowed) => allowed,
        Err(error) => return Verdict::Failed(format!("cannot read {ALLOWED}: {error}")),
    };
    let (problems, names, twice) = judge(&files, &allowed);
    Verdict::of(&problems, format!("{names} type names, {twice} of them allowed twice"))
}

/// Returns the problems, the number of names, and the number of names defined in more than one
/// file.
fn judge(files: &[Source], allowed: &str) -> (Vec<String>, usize, usize) {
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| shipped(&file.path).is_some()) {
        for name in defined_in(&file.text) {
            places.entry(name).or_default().insert(&file.path);
        }
    }
    let names = places.len();
    places.retain(|_, files| files.len() > 1);
    let mut problems = Vec::new();
    let mut reasons = BTreeMap::new();
    for line in allowed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once('\t') {
            Some((name, why)) if !why.trim().is_empty() => _ = reasons.insert(name, why),
            _ => problems
                .push(format!("{ALLOWED}: `{line}` needs a tab and a reason after the name")),
        }
    }
    for (name, files) in &places {
        if !reasons.contains_key(name) {
            let files: Vec<&str> = files.iter().copied().collect();
            problems.push(format!("{name} is defined in {}", files.join(", ")));
        }
    }
    for name in reasons.keys().filter(|name| !places.contains_key(*name)) {
        problems.push(format!("{ALLOWED}: {name} is not defined twice any more; remove its line"));
    }
    (problems, names, places.len())
}

/// Returns the types that a file defines outside of functions, macros and its tests. Associated
/// types and types inside of a function are indented, so they are left out.
fn defined_in(text: &str) -> impl Iterator<Item = &str> {
    without_tests(text).lines().filter_map(|line| {
        let rest = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.strip_prefix(' ')?,
            None => line,
        };
        let (kind, rest) = rest.split_once(' ')?;
        if !KINDS.contains(&kind) {
            return None;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        Some(&rest[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped_crates(files: &[(&str, &str)]) -> Vec<Source> {
        let source = |(name, text): &(&str, &str)| Source {
            path: format!("crates/{name}/src/lib.rs"),
            text: (*text).into(),
        };
        files.iter().map(source).collect()
    }

    #[test]
    fn a_name_that_stands_twice_needs_a_reason() {
        let planted =
            shipped_crates(&[("a", "pub struct Desk;\n"), ("b", "pub(crate) enum Desk<T> {}\n")]);
        let (problems, ..) = judge(&planted, "");
        assert_eq!(problems, ["Desk is defined in crates/a/src/lib.rs, crates/b/src/lib.rs"]);
        assert!(judge(&planted, "# why\nDesk\ttwins on purpose\n").0.is_empty());
        assert_eq!(judge(&planted, "Desk\n").0.len(), 2);
    }

    #[test]
    fn a_reason_without_a_second_place_goes() {
        let once = shipped_crates(&[("a", "pub struct Desk;\n")]);
        assert_eq!(judge(&once, "Desk\ttwins\n").0.len(), 1);
    }

    #[test]
    fn associated_types_and_tests_do_not_count() {
        let text =
            "impl X for Y {\n    type Error = E;\n}\n#[cfg(test)]\nmod tests {\nstruct T;\n}";
        assert_eq!(defined_in(text).count(), 0);
    }
}
