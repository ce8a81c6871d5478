// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which changes are possible according to cargo-mutants, and which of them a run tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::subject::Subject;

/// Line and column, both from 1, in characters.
pub(crate) type Place = (usize, usize);

/// One change that can be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mutant {
    /// The path below the crate's folder.
    pub(crate) file: String,
    pub(crate) start: Place,
    pub(crate) end: Place,
    /// What is done, and in which function. If a file has the same change several times, all but
    /// the first have a number.
    pub(crate) change: String,
    pub(crate) genre: String,
    /// The new text between `start` and `end`.
    pub(crate) replacement: String,
}

impl Mutant {
    /// Returns whether the function returns a type without a name, which all its `return`s share.
    pub(crate) fn is_opaque(&self) -> bool {
        self.change.contains("impl ")
    }
}

/// Returns all mutants of the crate, in the order of the source.
pub(crate) fn list(root: &Path, subject: &Subject) -> Result<Vec<Mutant>, String> {
    let folder = subject.folder();
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["mutants", "--list", "--json", "--package"]);
    command.arg(subject.package());
    for file in subject.files {
        command.arg("--file").arg(format!("{folder}/src/{file}"));
    }
    for file in ["tests.rs", "tests/**"] {
        command.arg("--exclude").arg(format!("{folder}/src/**/{file}"));
    }
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!(
            "cargo-mutants failed; install it with `cargo install cargo-mutants --locked`: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let json: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let mutants = listed(&json, &folder);
    if mutants.is_empty() { Err(format!("{} has no mutants", subject.name)) } else { Ok(mutants) }
}

/// Returns the mutants in the tool's list. A function that returns `fmt::Result` prints for a
/// person (`Debug`, `Display`), so its mutants are left out. So are the mutants in a module `tests`
/// that also depends on a feature, because the tool lists these.
fn listed(json: &Value, folder: &str) -> Vec<Mutant> {
    let all = json.as_array().map_or(&[][..], Vec::as_slice).iter();
    let mut mutants: Vec<Mutant> = all.filter_map(|value| mutant(value, folder)).collect();
    mutants.sort();
    let mut seen = BTreeMap::<(String, String), usize>::new();
    for mutant in &mut mutants {
        let times = seen.entry((mutant.file.clone(), mutant.change.clone())).or_default();
        *times += 1;
        if *times > 1 {
            mutant.change = format!("{} ({times})", mutant.change);
        }
    }
    mutants
}

fn mutant(value: &Value, folder: &str) -> Option<Mutant> {
    if value["function"]["return_type"].as_str().unwrap_or_default().contains("fmt::Result") {
        return None;
    }
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let place = |value: &Value| Some((number(&value["line"])?, number(&value["column"])?));
    let (_, change) = value["name"].as_str()?.split_once(": ")?;
    if change.contains(" tests::") {
        return None;
    }
    Some(Mutant {
        file: value["file"].as_str()?.strip_prefix(folder)?.trim_start_matches('/').to_owned(),
        start: place(&value["span"]["start"])?,
        end: place(&value["span"]["end"])?,
        change: change.split_whitespace().collect::<Vec<_>>().join(" "),
        genre: value["genre"].as_str()?.to_owned(),
        replacement: value["replacement"].as_str()?.to_owned(),
    })
}

/// Picks `count` mutants at random, or all if there are fewer. The seed decides which ones. If a
/// change of the code adds or removes mutants, nearly all of the others stay chosen.
pub(crate) fn sample(mut mutants: Vec<Mutant>, seed: u64, count: usize) -> Vec<Mutant> {
    mutants.sort_by_cached_key(|mutant| {
        Sha256::digest(format!("{seed} {} {}", mutant.file, mutant.change).as_bytes())
    });
    mutants.truncate(count);
    mutants
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn value(line: usize, change: &str, returns: &str) -> Value {
        json!({
            "name": format!("crates/a/src/b.rs:{line}:5: {change}"),
            "file": "crates/a/src/b.rs",
            "function": { "return_type": returns },
            "span": { "start": { "line": line, "column": 5 }, "end": { "line": line, "column": 7 } },
            "genre": "FnValue",
            "replacement": "true",
        })
    }

    #[test]
    fn a_mutant_has_a_name_that_does_not_move_with_its_line() {
        let json = json!([
            value(9, "replace f", "-> bool"),
            value(3, "replace f", "-> bool"),
            value(1, "printed", "-> fmt::Result"),
            value(2, "replace tests::f", "-> bool"),
        ]);
        let names: Vec<_> =
            listed(&json, "crates/a").into_iter().map(|m| (m.file, m.start, m.change)).collect();
        let file = || "src/b.rs".to_owned();
        assert_eq!(
            names,
            [(file(), (3, 5), "replace f".into()), (file(), (9, 5), "replace f (2)".into())]
        );
    }

    #[test]
    fn a_seed_draws_the_same_mutants_each_time_and_another_seed_draws_others() {
        let json: Vec<_> = (0..1_000).map(|line| value(line, "replace f", "-> bool")).collect();
        let all = listed(&Value::from(json), "crates/a");
        let drawn = |seed, count| sample(all.clone(), seed, count);
        assert_eq!(drawn(1, 300), drawn(1, 300));
        assert_eq!(drawn(1, 300)[..20], drawn(1, 20), "a smaller sample is part of a larger one");
        assert_eq!(drawn(1, 300).into_iter().collect::<BTreeSet<_>>().len(), 300);
        assert_ne!(drawn(1, 300), drawn(2, 300));
        let fewer = sample(all[1..].to_vec(), 1, 300);
        let stay = drawn(1, 300).iter().filter(|mutant| fewer.contains(mutant)).count();
        assert!(stay >= 299, "{stay} of 300 are drawn again from 999 mutants");
        assert_eq!(drawn(1, 5_000).len(), 1_000);
    }
}
