// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rules-check`: the tests name every rule of SPEC.md, and only those.
//!
//! A test names a rule by the name of its function (`fn acq_2_one_winner`) or file, or by the id in
//! its text (`ACQ-2`, in a comment or a message).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use crate::Verdict;
use crate::tree::{self, Source};

const GROUPS: [&str; 14] = [
    "ID", "CTX", "ACQ", "RUN", "CMP", "FP", "HTTP", "ANN", "LST", "STO", "CFG", "REC", "OPS",
    "SEAL",
];

/// Rules that this version does not have. A rule that gets a test must leave this list.
const LATER: [(&str, &str); 0] = [];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rule(usize, u32);

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", GROUPS[self.0], self.1)
    }
}

pub(crate) fn check(root: &Path) -> Verdict {
    let spec = match std::fs::read_to_string(root.join("SPEC.md")) {
        Ok(spec) => spec,
        Err(error) => return Verdict::Failed(format!("cannot read SPEC.md: {error}")),
    };
    let files = match tree::rust_files(root) {
        Ok(files) => files,
        Err(error) => return Verdict::Failed(error.to_string()),
    };
    let later: BTreeSet<Rule> = LATER.iter().flat_map(|(id, _)| mentions(id)).collect();
    for (id, why) in LATER {
        println!("  not yet: {id}: {why}");
    }
    let cited = cited_by(&files);
    let (problems, covered) = compare(&spec, &cited, &later);
    Verdict::of(
        &problems,
        format!("tests name {covered} rules; {} rules have no test yet", later.len()),
    )
}

/// Where the tests name a rule: in a name, or only in the text.
#[derive(Default)]
struct Cited {
    named: BTreeMap<Rule, String>,
    mentioned: BTreeMap<Rule, String>,
}

fn cited_by(files: &[Source]) -> Cited {
    let mut cited = Cited::default();
    for file in files {
        let Some(text) = test_part(file) else { continue };
        let stem = file.path.rsplit('/').next().unwrap_or(&file.path);
        for rule in named(text, is_kit(&file.path)).into_iter().chain(leading_rules(stem)) {
            cited.named.entry(rule).or_insert_with(|| file.path.clone());
        }
        for rule in mentions(text) {
            cited.mentioned.entry(rule).or_insert_with(|| file.path.clone());
        }
    }
    cited
}

/// Returns the problems, and how many rules have a test.
fn compare(spec: &str, cited: &Cited, later: &BTreeSet<Rule>) -> (Vec<String>, usize) {
    let mut problems = Vec::new();
    let mut rules = BTreeSet::new();
    for rule in spec.lines().filter_map(defined) {
        if !rules.insert(rule) {
            problems.push(format!("SPEC.md defines {rule} twice"));
        }
    }
    if rules.is_empty() {
        problems.push("SPEC.md defines no rule (`- **ACQ-1** ...`)".into());
    }
    for rule in mentions(spec).difference(&rules) {
        problems.push(format!("SPEC.md mentions {rule}, which it does not define"));
    }
    let mut covered = 0;
    for rule in &rules {
        match (cited.named.get(rule), cited.mentioned.get(rule), later.contains(rule)) {
            (Some(path), _, true) => problems.push(format!(
                "{rule} has a test now ({path}): remove it from the list of later rules"
            )),
            (None, _, true) => {}
            (None, None, false) => problems.push(format!("{rule}: no test names it")),
            _ => covered += 1,
        }
    }
    for rule in later.difference(&rules) {
        problems.push(format!("the list of later rules has {rule}, which SPEC.md does not define"));
    }
    for (rule, path) in cited.named.iter().chain(&cited.mentioned) {
        if !rules.contains(rule) && !is_status(*rule) {
            problems.push(format!("{path} names {rule}, which SPEC.md does not define"));
        }
    }
    (problems, covered)
}

/// Returns whether the id is a status code, as in a test's name `http_409_...`.
fn is_status(rule: Rule) -> bool {
    GROUPS[rule.0] == "HTTP" && (100..600).contains(&rule.1)
}

/// Returns the rule that a line of SPEC.md defines: `- **ACQ-1** ...`.
fn defined(line: &str) -> Option<Rule> {
    let (id, _) = line.strip_prefix("- **")?.split_once("**")?;
    parse(id, '-')
}

fn parse(id: &str, separator: char) -> Option<Rule> {
    let (group, number) = id.split_once(separator)?;
    let group = GROUPS.iter().position(|known| *known == group)?;
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Rule(group, number.parse().ok()?))
}

/// Returns every id such as `ACQ-2` that is not part of a longer word.
fn mentions(text: &str) -> BTreeSet<Rule> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
        .filter_map(|word| parse(word, '-'))
        .collect()
}

/// Returns the rules in the function names of a text. The kit lists its cases in macros, so in the
/// kit any identifier counts.
fn named(text: &str, any_identifier: bool) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    let mut before = "";
    for word in text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
    {
        if any_identifier || before == "fn" {
            rules.extend(leading_rules(word));
        }
        before = word;
    }
    rules
}

/// Returns the rules whose ids a name begins with: ACQ-2 and CMP-3 for
/// `acq_2_cmp_3_late_completion`.
fn leading_rules(name: &str) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut parts = name.split('_');
    while let (Some(group), Some(number), Some(_)) =
        (parts.next(), parts.next(), parts.clone().next())
    {
        let is_lower = group.bytes().all(|b| b.is_ascii_lowercase());
        match parse(&format!("{}-{number}", group.to_uppercase()), '-') {
            Some(rule) if is_lower => rules.push(rule),
            _ => break,
        }
    }
    rules
}

fn is_kit(path: &str) -> bool {
    path.starts_with("crates/retryproof-testkit/src/conformance")
}

/// Returns the part of a file that contains tests: the whole file, the text after `#[cfg(test)]
/// mod`, or nothing.
fn test_part(file: &Source) -> Option<&str> {
    let path = &file.path;
    if path.starts_with("xtask/") {
        return None; // its tests contain invented rules
    }
    if path.contains("/tests/") || path.ends_with("/tests.rs") || is_kit(path) {
        return Some(&file.text);
    }
    let mut offset = 0;
    let mut cfg_test = None;
    for line in file.text.split_inclusive('\n') {
        let code = line.trim();
        if code.starts_with("#[cfg(") && code.contains("test") && !code.contains("not(test)") {
            cfg_test = Some(offset);
        } else if cfg_test.is_some()
            && code.split(' ').any(|word| word == "mod")
            && code.ends_with('{')
        {
            return cfg_test.map(|from| &file.text[from..]);
        } else if !code.starts_with("#[") {
            cfg_test = None;
        }
        offset += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(ids: &[&str]) -> BTreeSet<Rule> {
        ids.iter().map(|id| parse(id, '-').expect("a rule")).collect()
    }

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn ids_are_found_in_text_but_not_inside_other_words() {
        let text = "see ACQ-2, (`HTTP-13`) and CMP-9. Not SHA-256, UTF-8, RFC-9457, XID-1, ID-, \
             ID-4x or ACQ-2-3";
        assert_eq!(mentions(text), rules(&["ACQ-2", "HTTP-13", "CMP-9"]));
    }

    #[test]
    fn function_names_begin_with_their_rules() {
        let text = "async fn acq_2_cmp_10_late() {}\nfn id_4() {}\nfn helper() { run_1_x(); \
             }\npub fn fp_1_mismatch()";
        assert_eq!(named(text, false), rules(&["ACQ-2", "CMP-10", "FP-1"]));
        assert_eq!(named("case!(run_1_long_action);", true), rules(&["RUN-1"]));
        assert_eq!(leading_rules("replays_acq_2_x"), []);
    }

    #[test]
    fn only_the_test_module_of_a_source_file_counts() {
        let text = "/// ACQ-1\nfn x() {}\n#[cfg(all(test, not(loom)))]\n#[expect(x)]\nmod tests \
             {\n // ACQ-2\n}\n";
        let file = source("crates/a/src/x.rs", text);
        let part = test_part(&file).expect("a test module");
        assert_eq!(mentions(part), rules(&["ACQ-2"]));
        assert!(
            test_part(&source("crates/a/src/x.rs", "#[cfg(test)]\nuse x;\nmod y {\n}\n")).is_none()
        );
        assert!(
            test_part(&source("crates/a/src/x.rs", "#[cfg(test)]\nmod tests;\nfn y() {}\n"))
                .is_none()
        );
        assert!(test_part(&source("crates/a/tests/it/main.rs", "")).is_some());
        assert!(test_part(&source("crates/a/src/x/tests.rs", "")).is_some());
    }

    #[test]
    fn missing_unknown_stale_and_doubled_rules_are_each_reported() {
        let spec = "- **ACQ-1** one, see ACQ-9\n- **ACQ-2** two\n- **ACQ-2** again\n- **LST-1** \
             later\n- **FP-1** fine";
        let tests = source(
            "crates/a/tests/it/x.rs",
            "fn lst_1_skipped() {}\n// FP-1 and RUN-77\nfn http_409_is_a_status() {}",
        );
        let later = rules(&["LST-1", "LST-9"]);
        let (problems, covered) = compare(spec, &cited_by(&[tests]), &later);
        assert_eq!(covered, 1);
        let expected = [
            "defines ACQ-2 twice",
            "mentions ACQ-9",
            "ACQ-1: no test",
            "ACQ-2: no test",
            "LST-1 has a test now",
        ];
        let unknown = ["list of later rules has LST-9", "names RUN-77"];
        for part in expected.iter().chain(&unknown) {
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part} in {problems:#?}"
            );
        }
        assert_eq!(problems.len(), expected.len() + unknown.len(), "{problems:#?}");
    }
}
