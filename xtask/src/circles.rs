// SPDX-License-Identifier: MIT OR Apache-2.0
//! Import circles: files of one crate that reach each other through their paths. `arch-check`
//! refuses a circle unless it is one parent with modules below it.

mod paths;

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::Source;

/// A module by its path from the crate's root; the root itself is empty.
type Module = Vec<String>;

/// Returns one problem for each circle of a shipped crate.
pub(crate) fn problems(files: &[Source]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for file in files {
        if let Some((name, _)) = shipped(&file.path) {
            crates.entry(name).or_default().push(file);
        }
    }
    let mut problems = Vec::new();
    for (name, files) in crates {
        let circles = circles_of(&files);
        problems.extend(circles.iter().map(|circle| {
            format!("{name}: these files import each other: {}", circle.join(" <-> "))
        }));
    }
    problems
}

/// Returns the crate's name and the path below its `src`, if the file is source of a shipped crate.
pub(crate) fn shipped(path: &str) -> Option<(&str, &str)> {
    let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let below = rest.strip_prefix("src/")?;
    let is_test = below.ends_with("tests.rs") || below.contains("/tests/");
    (below.ends_with(".rs") && !is_test).then_some((name, below))
}

/// Returns the text without the module of tests, which is at the end of a file.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Returns the circles of one crate, except those of a parent and the modules below it.
fn circles_of(files: &[&Source]) -> Vec<Vec<String>> {
    let modules: BTreeMap<Module, &Source> =
        files.iter().map(|file| (module_of(&file.path), *file)).collect();
    let reached = paths::edges(&modules);
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        reached.keys().map(|from| (from, closure(from, &reached))).collect();
    let mut circles: Vec<Vec<String>> = Vec::new();
    let mut seen: BTreeSet<&Module> = BTreeSet::new();
    for (from, reaches) in &reach {
        if seen.contains(*from) {
            continue;
        }
        let back = reaches.iter().copied().filter(|to| reach[*to].contains(*from));
        let circle: BTreeSet<&Module> = back.chain([*from]).collect();
        seen.extend(circle.iter().copied());
        let parent = circle.iter().min_by_key(|module| module.len());
        let is_family = parent.is_some_and(|parent| circle.iter().all(|of| of.starts_with(parent)));
        if circle.len() > 1 && !is_family {
            circles.push(circle.iter().map(|module| shown(module)).collect());
        }
    }
    circles
}

fn closure<'a>(
    from: &'a Module,
    edges: &'a BTreeMap<Module, BTreeSet<Module>>,
) -> BTreeSet<&'a Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        for to in edges.get(at).into_iter().flatten() {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

fn module_of(path: &str) -> Module {
    let below = shipped(path).map_or("", |(_, below)| below).trim_end_matches(".rs");
    match below {
        "lib" | "main" => Vec::new(),
        below => below.trim_end_matches("/mod").split('/').map(str::to_owned).collect(),
    }
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "lib.rs".into() } else { format!("{}.rs", module.join("/")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Vec<Source> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/x/src/{path}"),
            text: (*text).into(),
        };
        files.iter().map(source).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let planted = crate_of(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "use crate::b::{B, C};\npub struct A;"),
            ("b.rs", "fn f() { let _ = super::A; }"),
        ]);
        let found = problems(&planted);
        assert_eq!(found, ["x: these files import each other: a.rs <-> b.rs"]);
    }

    #[test]
    fn a_parent_and_its_children_may_know_each_other() {
        let family = crate_of(&[
            ("lib.rs", "mod a;"),
            ("a.rs", "mod one; mod two; use one::One; use self::two::Two; pub struct A;"),
            ("a/one.rs", "use super::A; use super::two::Two;"),
            ("a/two.rs", "use super::one::One;"),
        ]);
        assert!(problems(&family).is_empty());
    }

    #[test]
    fn comments_strings_and_tests_import_nothing() {
        let quiet = crate_of(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "// see crate::b::B\nconst A: &str = \"crate::b::B\";\n#[cfg(test)]\nmod tests { use crate::b::B; }",
            ),
            ("b.rs", "use crate::a::A;"),
        ]);
        assert!(problems(&quiet).is_empty());
    }
}
