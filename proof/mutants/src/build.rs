// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy of the workspace in which one crate has switches, and the builds of this crate's tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::list::Mutant;
use crate::subject::Subject;
use crate::switch::{Numbered, Switched, switched};

/// What `lib.rs` gets: the function that reads the switch, and notes which mutants a test reaches.
const SWITCH: &str = r#"
/// Whether the environment switched on the mutant with this number.
#[doc(hidden)]
#[allow(dead_code, unreachable_pub, reason = "a crate may have no mutant that needs it")]
pub(crate) fn mutant(number: usize) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static ON: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    let variable = |name: &str| std::env::var(name).ok();
    let read = || variable("RETRYPROOF_MUTANT").and_then(|n| n.parse().ok()).unwrap_or(COUNT);
    let on = *ON.get_or_init(read);
    if on == COUNT && !REACHED[number].swap(true, Ordering::Relaxed) {
        if let Some(path) = variable("RETRYPROOF_REACHED") {
            use std::io::Write as _;
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(format!("{number}\n").as_bytes()));
        }
    }
    on == number
}
"#;

/// Errors about types and names: mismatched types, a missing trait, operator, method or name.
const TYPES: [&str; 8] = ["E0277", "E0308", "E0369", "E0600", "E0599", "E0425", "E0433", "E0061"];

/// The copy of the workspace.
pub(crate) struct Tree<'a> {
    root: &'a Path,
    copy: PathBuf,
    subject: &'a Subject,
}

/// A program that contains tests.
pub(crate) type Program = PathBuf;

/// One error of the compiler: the text, and the places that it names, the main one first.
struct Fault {
    text: String,
    /// Whether the error is about types or names, and so is due to the mutation itself. Other
    /// errors may be due to the switch.
    is_final: bool,
    places: Vec<(String, Range<usize>)>,
}

/// The result of a build with switches.
pub(crate) struct Built {
    pub(crate) programs: Vec<Program>,
    /// The mutants that have a switch.
    pub(crate) switched: BTreeSet<usize>,
    /// The mutants that no compiler accepts.
    pub(crate) impossible: BTreeSet<usize>,
}

impl<'a> Tree<'a> {
    /// Copies each file that git lists. A copy that is already equal is left alone, so that a build
    /// repeats only what changed.
    pub(crate) fn new(root: &'a Path, copy: PathBuf, subject: &'a Subject) -> Result<Self, String> {
        let list = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|error| format!("git could not be run: {error}"))?;
        let tree = Self { root, copy, subject };
        for file in String::from_utf8_lossy(&list.stdout).split_terminator('\0') {
            // Skip a file that git lists but that has been deleted.
            if let Ok(bytes) = fs::read(root.join(file)) {
                tree.write(file, &bytes)?;
            }
        }
        Ok(tree)
    }

    fn write(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        let to = self.copy.join(file);
        if fs::read(&to).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        let folder = to.parent().unwrap_or(&to);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&to, bytes))
            .map_err(|error| format!("{}: {error}", to.display()))
    }

    fn source(&self, file: &str) -> Result<String, String> {
        let path = self.root.join(self.subject.folder()).join(file);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the folder in which the crate's tests run.
    pub(crate) fn folder(&self) -> PathBuf {
        self.copy.join(self.subject.folder())
    }

    /// Builds the crate with a switch for each mutant. A mutant that the compiler refuses, or that
    /// has no place for a switch, gets no switch.
    pub(crate) fn build(&self, mutants: &Numbered<'_>, count: usize) -> Result<Built, String> {
        let mut left = mutants.clone();
        let (mut constant, mut impossible) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let files = self.switch(mutants, &left, &constant, count)?;
            let (faults, programs) = self.compile()?;
            if faults.is_empty() {
                impossible.extend(files.values().flat_map(|file| &file.impossible));
                let switched = files.values().flat_map(|file| &file.switched).copied().collect();
                return Ok(Built { programs, switched, impossible });
            }
            let before = (left.len(), constant.len());
            for fault in &faults {
                // The function is called where only a constant is allowed, so it has to stay
                // `const`.
                if let Some(name) = non_const(&fault.text) {
                    constant.insert(name);
                }
                for (path, file) in &files {
                    let path = format!("{}/{path}", self.subject.folder());
                    let here = fault.places.iter().filter(|(at, _)| *at == path);
                    let places: Vec<_> = here.map(|(_, range)| range.clone()).collect();
                    let (blamed, exact) = file.blamed(&places);
                    for number in blamed {
                        let mutant = left.remove(&number);
                        if exact && fault.is_final && mutant.is_some_and(|m| !m.is_opaque()) {
                            impossible.insert(number);
                        }
                    }
                }
            }
            println!("  {} switches, {} refused by the compiler", left.len(), faults.len());
            if (left.len(), constant.len()) == before {
                return Err(format!("the crate does not compile: {}", faults[0].text));
            }
        }
    }

    /// Writes the files with the switches, and returns them by their path.
    fn switch(
        &self,
        all: &Numbered<'_>,
        mutants: &Numbered<'_>,
        constant: &BTreeSet<String>,
        count: usize,
    ) -> Result<BTreeMap<String, Switched>, String> {
        // Also write a file whose mutants were all refused, in its original form.
        let mut by_file: BTreeMap<&str, Numbered<'_>> =
            all.values().map(|mutant| (&*mutant.file, Numbered::new())).collect();
        for (&number, &mutant) in mutants {
            by_file.entry(&mutant.file).or_default().insert(number, mutant);
        }
        let mut files = BTreeMap::new();
        for (file, mutants) in by_file {
            let switched = switched(&self.source(file)?, &mutants, constant)
                .map_err(|why| format!("{file}: {why}"))?;
            let mut text = switched.text.clone();
            if file == "src/lib.rs" {
                text += &SWITCH.replace("COUNT", &count.to_string());
            }
            self.write(&format!("{}/{file}", self.subject.folder()), text.as_bytes())?;
            files.insert(file.to_owned(), switched);
        }
        if !files.contains_key("src/lib.rs") {
            let text = self.source("src/lib.rs")? + &SWITCH.replace("COUNT", &count.to_string());
            self.write(&format!("{}/src/lib.rs", self.subject.folder()), text.as_bytes())?;
        }
        Ok(files)
    }

    /// Builds the crate with one mutant written into the source, so the other mutants of its file
    /// have no switch. Returns `None` if the mutant does not compile.
    pub(crate) fn build_with(&self, mutant: &Mutant) -> Result<Option<Vec<Program>>, String> {
        let path = format!("{}/{}", self.subject.folder(), mutant.file);
        let before = fs::read(self.copy.join(&path)).map_err(|error| error.to_string())?;
        let mut text = replaced(&self.source(&mutant.file)?, mutant);
        if mutant.file == "src/lib.rs" {
            text += SWITCH;
        }
        self.write(&path, text.as_bytes())?;
        let built = self.compile();
        self.write(&path, &before)?;
        let (faults, programs) = built?;
        Ok(faults.is_empty().then_some(programs))
    }

    /// Builds the unit tests and the integration tests, without documentation tests.
    fn compile(&self) -> Result<(Vec<Fault>, Vec<Program>), String> {
        let output = Command::new("cargo")
            .args(["test", "--no-run", "--locked", "--all-features", "--lib", "--tests"])
            .args(["--message-format=json", "--package", &self.subject.package()])
            .current_dir(&self.copy)
            .env("CARGO_TARGET_DIR", self.copy.with_file_name("build"))
            .output()
            .map_err(|error| format!("cargo could not be run: {error}"))?;
        let (mut faults, mut programs) = (Vec::new(), Vec::new());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(json) = serde_json::from_str::<Value>(line) else { continue };
            if let (Some(program), true) =
                (json["executable"].as_str(), json["profile"]["test"] == true)
            {
                programs.push(program.into());
            }
            if json["message"]["level"] == "error" {
                faults.extend(fault(&json["message"]));
            }
        }
        if !output.status.success() && faults.is_empty() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok((faults, programs))
    }
}

/// Returns the error with its places, or `None` for the line that only counts errors.
fn fault(message: &Value) -> Option<Fault> {
    let spans = message["spans"].as_array()?;
    let mut places = Vec::new();
    for main in [true, false] {
        for span in spans.iter().filter(|span| span["is_primary"] == main) {
            let mut span = span;
            // If a macro has produced the code, the place where the macro is used counts too.
            loop {
                let number = |name: &str| usize::try_from(span[name].as_u64()?).ok();
                let range =
                    number("byte_start")?..number("byte_end")?.max(number("byte_start")? + 1);
                places.push((span["file_name"].as_str()?.to_owned(), range));
                span = &span["expansion"]["span"];
                if span.is_null() {
                    break;
                }
            }
        }
    }
    let text = message["rendered"].as_str()?.to_owned();
    let code = message["code"]["code"].as_str().unwrap_or_default();
    let is_final = TYPES.contains(&code);
    (!places.is_empty()).then_some(Fault { text, is_final, places })
}

/// Returns the name of a function that a constant calls, although the function is no longer
/// `const`.
fn non_const(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("cannot call non-const ")?;
    let name = rest.split('`').nth(1)?;
    let name = name.rsplit("::").find(|part| !part.starts_with('<'))?;
    Some(name.to_owned())
}

/// Returns the source with the mutant in its place.
fn replaced(source: &str, mutant: &Mutant) -> String {
    let mut place = (1, 1);
    let mut text = String::with_capacity(source.len());
    for c in source.chars() {
        if place == mutant.start {
            text += &mutant.replacement;
        }
        if place < mutant.start || place >= mutant.end {
            text.push(c);
        }
        place = if c == '\n' { (place.0 + 1, 1) } else { (place.0, place.1 + 1) };
    }
    text
}
