// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which mutants a run draws.

use serde_json::Value;

/// One change that cargo-mutants can make.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mutant {
    /// `file:line:column: change`.
    pub(super) name: String,
}

impl Mutant {
    /// The file that it changes.
    pub(super) fn file(&self) -> &str {
        self.name.split_once(':').map_or(&*self.name, |(file, _)| file)
    }
}

/// The mutants in the tool's list, sorted. A function that returns `fmt::Result` prints for a
/// person (`Debug`, `Display`), so its mutants are left out.
pub(super) fn listed(json: &Value) -> Vec<Mutant> {
    let prints = |mutant: &&Value| {
        let returns = mutant["function"]["return_type"].as_str().unwrap_or_default();
        returns.contains("fmt::Result")
    };
    let all = json.as_array().map_or(&[][..], Vec::as_slice).iter();
    let names = all.filter(|mutant| !prints(mutant)).filter_map(|mutant| mutant["name"].as_str());
    let mut mutants: Vec<Mutant> = names.map(|name| Mutant { name: name.to_owned() }).collect();
    mutants.sort();
    mutants
}

/// Draws `count` mutants, or all if there are fewer. The seed decides which ones.
pub(super) fn sample(mut mutants: Vec<Mutant>, seed: u64, count: usize) -> Vec<Mutant> {
    let mut state = seed;
    let count = count.min(mutants.len());
    for at in 0..count {
        let left = (mutants.len() - at) as u64;
        let further = usize::try_from(random(&mut state) % left).unwrap_or(0);
        mutants.swap(at, at + further);
    }
    mutants.truncate(count);
    mutants
}

/// The next number of SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A regular expression that matches this name and no other.
pub(super) fn exact(name: &str) -> String {
    let mut pattern = String::from("^");
    for c in name.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('$');
    pattern
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn mutants_of_printing_code_are_not_listed() {
        let mutant = |name: &str, returns: &str| json!({ "name": name, "function": { "return_type": returns } });
        let json = json!([
            mutant("b", "-> bool"),
            mutant("printed", "-> fmt::Result"),
            { "name": "a", "function": null },
        ]);
        let names: Vec<_> = listed(&json).into_iter().map(|mutant| mutant.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(Mutant { name: "src/a.rs:1:2: replace".into() }.file(), "src/a.rs");
    }

    #[test]
    fn a_seed_draws_the_same_mutants_each_time_and_another_seed_draws_others() {
        let all: Vec<_> = (0..1_000).map(|n| Mutant { name: n.to_string() }).collect();
        let drawn = |seed, count| sample(all.clone(), seed, count);
        assert_eq!(drawn(1, 300), drawn(1, 300));
        assert_eq!(drawn(1, 300)[..20], drawn(1, 20), "a smaller sample is part of a larger one");
        assert_eq!(drawn(1, 300).into_iter().collect::<BTreeSet<_>>().len(), 300);
        assert_ne!(drawn(1, 300), drawn(2, 300));
        assert_eq!(drawn(1, 5_000).len(), 1_000);
    }

    #[test]
    fn a_name_is_matched_as_it_stands() {
        assert_eq!(exact("a.rs:1:2: replace + with *"), r"^a\.rs:1:2: replace \+ with \*$");
        assert_eq!(exact("<impl A>::b -> [u8]"), r"^<impl A>::b \-> \[u8\]$");
    }
}
