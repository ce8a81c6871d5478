// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes the code in small ways, and counts how many of these changes the tests of the changed
//! crate catch. `cargo xtask mutants` starts the servers and this program.
//!
//! The tool cargo-mutants lists the possible changes. A build for each of them would take most of
//! the time, so a copy of the crate gets all changes at once, each behind a switch, and one build
//! serves all. Each test runs in a separate process. A first run without a change notes which
//! switches each test reaches. A change is then tested only by the tests that reach its switch, the
//! fastest first, until one fails. A change that cannot have a switch is built alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

mod build;
mod list;
mod record;
mod run;
mod subject;
mod switch;

use build::Tree;
use list::{Mutant, sample};
use record::{End, Excused, Record, Sources};
use run::Tests;
use subject::{SUBJECTS, Subject};

/// The survivors that are excused, each with a reason.
const EXCUSED: &str = "proof/mutants.tsv";

/// At least this percentage of the viable mutants has to be caught.
const CAUGHT: usize = 95;

/// What the arguments ask for.
struct Wanted {
    subjects: Vec<&'static Subject>,
    seed: u64,
    count: usize,
    /// How many tests run at the same time.
    jobs: usize,
    /// Whether the mutants without a switch are left out.
    quick: bool,
    /// Whether to test the mutants that have an old result, instead of a random sample.
    again: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match wanted(&arguments).and_then(|wanted| all(&wanted)) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            problems.iter().for_each(|problem| println!("  error: {problem}"));
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn wanted(arguments: &[String]) -> Result<Wanted, String> {
    let mut wanted =
        Wanted { subjects: Vec::new(), seed: 1, count: 300, jobs: 3, quick: false, again: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => wanted.seed = number(argument, arguments.next())?,
            "--count" => wanted.count = number(argument, arguments.next())?,
            "--jobs" => wanted.jobs = number(argument, arguments.next())?,
            "--quick" => wanted.quick = true,
            "--again" => wanted.again = true,
            name => wanted.subjects.push(Subject::of(name)?),
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

/// Tests the mutants of every wanted crate, and returns what is wrong with the results.
fn all(wanted: &Wanted) -> Result<Vec<String>, String> {
    let root = std::env::current_dir().map_err(|error| error.to_string())?;
    let text = fs::read_to_string(root.join(EXCUSED)).map_err(|e| format!("{EXCUSED}: {e}"))?;
    let excused = record::excused(&text)?;
    let mut problems = Vec::new();
    for subject in &wanted.subjects {
        problems.extend(one(&root, subject, wanted, &excused)?);
    }
    Ok(problems)
}

/// Tests the chosen mutants of a crate that have no result yet.
fn one(
    root: &Path,
    subject: &Subject,
    wanted: &Wanted,
    excused: &Excused,
) -> Result<Vec<String>, String> {
    let all = list::list(root, subject)?;
    let sources = Sources::read(&root.join(subject.folder()))?;
    let path = root.join(format!("proof/mutants/results/{}.tsv", subject.name));
    let mut record = Record::read(path, sources)?;
    let drawn = if wanted.again {
        all.iter().filter(|mutant| record.has(mutant)).cloned().collect()
    } else {
        sample(all.clone(), wanted.seed, wanted.count)
    };
    let left: BTreeSet<usize> =
        (0..drawn.len()).filter(|&number| record.valid(&drawn[number]).is_none()).collect();
    println!(
        "{}: {} of {} mutants drawn, {} left to test",
        subject.name,
        drawn.len(),
        all.len(),
        left.len()
    );
    if !left.is_empty() {
        test(root, subject, wanted, &drawn, &left, &mut record)?;
    }
    let mut problems: Vec<_> =
        record.report(subject.name, &all, excused, CAUGHT).into_iter().collect();
    for change in record::needless(subject.name, &all, excused) {
        problems.push(format!("{}: {EXCUSED} excuses what is no mutant: {change}", subject.name));
    }
    Ok(problems)
}

fn test(
    root: &Path,
    subject: &Subject,
    wanted: &Wanted,
    drawn: &[Mutant],
    left: &BTreeSet<usize>,
    record: &mut Record,
) -> Result<(), String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let folder = root.join(target).join("mutants");
    let tree = Tree::new(root, folder.join("tree"), subject)?;
    let numbered: BTreeMap<usize, &Mutant> = drawn.iter().enumerate().collect();
    let built = tree.build(&numbered, drawn.len())?;
    println!(
        "  {} have a switch, {} cannot compile, {} are built alone",
        built.switched.len(),
        built.impossible.len(),
        drawn.len() - built.switched.len() - built.impossible.len()
    );
    let notes = folder.join("reached");
    let tests = Tests::measure(&built.programs, tree.folder(), &notes, wanted.jobs)?;
    let failed = Mutex::new(None);
    let record = Mutex::new(record);
    let done = |number: usize, end: End| {
        println!("  {}: {}: {end:?}", drawn[number].file, drawn[number].change);
        let mut record = record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Err(why) = record.note(&drawn[number], end) {
            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(why);
        }
    };
    let (refused, viable): (Vec<usize>, Vec<usize>) =
        left.iter().partition(|number| built.impossible.contains(number));
    refused.into_iter().for_each(|number| done(number, End::NotCompiled));
    let (switched, alone): (Vec<usize>, Vec<usize>) =
        viable.into_iter().partition(|number| built.switched.contains(number));
    tests.judge(&switched, done);
    for number in alone.into_iter().filter(|_| !wanted.quick) {
        let mutant = &drawn[number];
        let near = built.switched.iter().filter(|&&other| drawn[other].file == mutant.file);
        let end = match tree.build_with(mutant)? {
            Some(programs) => tests.judge_built(&programs, &near.copied().collect()),
            None => End::NotCompiled,
        };
        done(number, end);
    }
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests;
