// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mutants`: changes the code in small ways, and counts how many of these changes the tests of the
//! changed crate catch. The tool cargo-mutants makes the changes.
//!
//! A run tests a random sample of the possible mutants. The seed decides which ones, so a second
//! run draws the same sample again. Results are kept below `target/mutants/REVISION`: a run that
//! was interrupted goes on where it ended, and runs with several seeds add up.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Verdict;
use crate::cargo::{self, Cargo};
use crate::services::ForTests;

mod results;
mod sample;

use results::Results;
use sample::{Mutant, exact, listed, sample};

const HOW_TO_INSTALL: &str =
    "cargo-mutants is missing; install it with `cargo install cargo-mutants --locked`";

/// The survivors that are excused, each with a reason.
const EXCUSED: &str = "proof/mutants.tsv";

/// At least this percentage of the viable mutants has to be caught.
const CAUGHT: usize = 95;

/// A crate whose mutants are drawn.
struct Subject {
    /// The name without the prefix `retryproof-`.
    name: &'static str,
    /// The files to change, below the crate's `src`. If the list is empty, all files.
    files: &'static [&'static str],
    /// The servers that the crate's tests need.
    services: &'static [&'static str],
}

const SUBJECTS: [Subject; 7] = [
    Subject { name: "core", files: &[], services: &[] },
    // The stages that a request passes, and the protocol. The front ends are left out.
    Subject {
        name: "http",
        files: &[
            "protocol/**",
            "call.rs",
            "call/**",
            "head.rs",
            "guard.rs",
            "prepare.rs",
            "duplicate.rs",
            "run.rs",
            "end.rs",
            "record.rs",
            "response.rs",
            "body.rs",
            "body/**",
            "fate.rs",
            "window.rs",
            "switches.rs",
            "transaction.rs",
        ],
        services: &[],
    },
    // The transitions of each store, with the code that reads and writes its records.
    Subject {
        name: "memory",
        files: &["shard.rs", "busy.rs", "record.rs", "sweep.rs", "store.rs", "operate.rs"],
        services: &[],
    },
    Subject { name: "sqlite", files: TRANSITIONS, services: &[] },
    Subject { name: "postgres", files: TRANSITIONS, services: &["postgres", "pgbouncer"] },
    Subject { name: "mysql", files: TRANSITIONS, services: &["mariadb"] },
    Subject { name: "redis", files: TRANSITIONS, services: &["redis", "sentinel"] },
];

const TRANSITIONS: &[&str] = &[
    "execute.rs",
    "execute/**",
    "statement.rs",
    "statement/**",
    "record.rs",
    "record/**",
    "join.rs",
    "join/**",
    "store.rs",
    "store/**",
];

/// What the arguments ask for.
struct Wanted {
    subjects: Vec<&'static Subject>,
    seed: u64,
    count: usize,
}

pub(crate) fn run(root: &Path, arguments: &[String]) -> Verdict {
    let wanted = match wanted(arguments) {
        Ok(wanted) => wanted,
        Err(why) => return Verdict::Failed(why),
    };
    if !matches!(Cargo::new("mutants --version").capture(root), Ok((true, ..))) {
        return Verdict::Failed(HOW_TO_INSTALL.into());
    }
    match all(root, &wanted) {
        Ok(problems) => Verdict::of(&problems, format!("seed {}", wanted.seed)),
        Err(why) => Verdict::Failed(why),
    }
}

fn wanted(arguments: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted { subjects: Vec::new(), seed: 1, count: 300 };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => wanted.seed = number(argument, arguments.next())?,
            "--count" => wanted.count = number(argument, arguments.next())?,
            name => {
                let short = name.strip_prefix("retryproof-").unwrap_or(name);
                let known = SUBJECTS.iter().find(|subject| subject.name == short);
                wanted.subjects.push(known.ok_or_else(|| {
                    let names: Vec<_> = SUBJECTS.iter().map(|subject| subject.name).collect();
                    format!("unknown crate `{name}`: there are {}", names.join(", "))
                })?);
            }
        }
    }
    if wanted.subjects.is_empty() {
        wanted.subjects.extend(&SUBJECTS);
    }
    Ok(wanted)
}

fn number<N: std::str::FromStr>(option: &str, value: Option<&String>) -> Result<N, String> {
    let value = value.ok_or_else(|| format!("`{option}` needs a number"))?;
    value.parse().map_err(|_| format!("`{option} {value}` is not a number"))
}

/// Runs every wanted crate, and returns what is wrong with its result.
fn all(root: &Path, wanted: &Wanted) -> Result<Vec<String>, String> {
    let revision = revision(root)?;
    let text = fs::read_to_string(root.join(EXCUSED)).map_err(|e| format!("{EXCUSED}: {e}"))?;
    let excused = results::excused(&text)?;
    let service = |name: &str| wanted.subjects.iter().any(|s| s.services.contains(&name));
    // The servers run until all crates are done.
    let servers = ForTests::begin_with(root, service);
    if let (_, Verdict::Failed(why)) = &servers {
        return Err(why.clone());
    }
    let folder = root.join(cargo::target()).join("mutants");
    let mut problems = Vec::new();
    for subject in &wanted.subjects {
        let results = folder.join(&revision).join(subject.name);
        let test = |left: &[&Mutant]| test(root, &folder, &results, subject, left, &servers.0);
        let drawn = sample(list(root, subject)?, wanted.seed, wanted.count);
        let before = Results::read(&results)?;
        let left: Vec<&Mutant> = drawn.iter().filter(|m| !before.knows(&m.name)).collect();
        println!("{}: {} mutants drawn, {} left to test", subject.name, drawn.len(), left.len());
        if !left.is_empty() {
            test(&left)?;
        }
        let after = Results::read(&results)?;
        let untested = drawn.iter().filter(|mutant| !after.knows(&mutant.name)).count();
        if untested > 0 {
            problems.push(format!(
                "{}: {untested} drawn mutants have no result; {} has the logs",
                subject.name,
                results.display()
            ));
        }
        println!("{} at {revision}: {}", subject.name, after.counts());
        let survivors = after.survivors(subject.name, &excused);
        survivors.iter().for_each(|(line, reason)| println!("  survived: {line}{reason}"));
        problems.extend(after.problem(subject.name, &survivors, CAUGHT));
    }
    Ok(problems)
}

/// The commit, which the results belong to.
fn revision(root: &Path) -> Result<String, String> {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).current_dir(root).output();
        let output = output.map_err(|error| format!("git could not be run: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
        return Err("there are changes without a commit, and results are counted by commit".into());
    }
    match git(&["rev-parse", "--short=10", "HEAD"])? {
        revision if revision.is_empty() => Err("this is no git repository".into()),
        revision => Ok(revision),
    }
}

/// All mutants that can be drawn from the crate.
fn list(root: &Path, subject: &Subject) -> Result<Vec<Mutant>, String> {
    let crate_name = format!("retryproof-{}", subject.name);
    let list = Cargo::new("mutants --list --json --package").arg(&crate_name);
    let list = subject.files.iter().fold(list, |list, file| {
        list.arg("--file").arg(&format!("crates/{crate_name}/src/{file}"))
    });
    let list = ["tests.rs", "tests/**"].iter().fold(list, |list, file| {
        list.arg("--exclude").arg(&format!("crates/{crate_name}/src/**/{file}"))
    });
    let (success, json, errors) = list.capture(root).map_err(|error| error.to_string())?;
    if !success {
        return Err(format!("`{list}` failed: {errors}"));
    }
    let json: Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
    let mutants = listed(&json);
    if mutants.is_empty() { Err(format!("`{list}` lists no mutant")) } else { Ok(mutants) }
}

/// Tests these mutants. The tool writes each result as soon as it is known.
fn test(
    root: &Path,
    folder: &Path,
    results: &Path,
    subject: &Subject,
    left: &[&Mutant],
    servers: &ForTests<'_>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", results.display());
    fs::create_dir_all(results).map_err(failed)?;
    let run = results.join((1 + Results::runs(results)?.len()).to_string());
    let names: Vec<Value> = left.iter().map(|mutant| Value::from(exact(&mutant.name))).collect();
    let config = run.with_extension("toml");
    // A JSON list of strings is a list of strings in TOML too.
    fs::write(&config, format!("examine_re = {}\n", Value::from(names))).map_err(failed)?;
    let tool = match Cargo::new("nextest --version").capture(root) {
        Ok((true, ..)) => "nextest",
        _ => "cargo",
    };
    // cargo-mutants 27 tests the mutants that delete a field of a struct even if no expression
    // matches them. So name only the files of the mutants that are left.
    let files: BTreeSet<_> = left.iter().map(|mutant| mutant.file()).collect();
    // The order is random, so that the results of an interrupted run are a random sample too.
    let command = Cargo::new("mutants --all-features --shuffle --cap-lints=true")
        .arg("--timeout-multiplier=3")
        .arg("--test-tool")
        .arg(tool)
        .arg("--package")
        .arg(&format!("retryproof-{}", subject.name))
        .arg("--config")
        .arg(&config.to_string_lossy())
        .arg("--output")
        .arg(&run.to_string_lossy())
        // One folder for all runs, so that dependencies are compiled once.
        .env("CARGO_TARGET_DIR", folder.join("build").to_string_lossy())
        .unseen(&servers.variables);
    let command = files.into_iter().fold(command, |line, file| line.arg("--file").arg(file));
    println!("{command}");
    // The tool fails if a mutant survives. Its results say more.
    command.run(root).map(drop).map_err(|error| format!("`{command}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_name_crates_seed_and_count() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(String::from).collect();
            wanted(&words).map(|w| {
                let names: Vec<_> = w.subjects.iter().map(|subject| subject.name).collect();
                (names, w.seed, w.count)
            })
        };
        let (all, seed, count) = parse("").unwrap();
        assert_eq!((all.len(), seed, count), (SUBJECTS.len(), 1, 300));
        let some = parse("core --seed 7 retryproof-sqlite --count 20");
        assert_eq!(some, Ok((vec!["core", "sqlite"], 7, 20)));
        for (line, part) in [("kore", "kore"), ("--seed", "--seed"), ("--count x", "x")] {
            assert!(parse(line).unwrap_err().contains(part), "{line}");
        }
    }
}
