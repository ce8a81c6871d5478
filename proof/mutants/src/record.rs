// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of each mutant, kept in a file for each crate.
//!
//! A result counts as long as the code that it depends on is the same: the mutated file and the
//! file of the test that caught it. A survivor depends on all sources and tests of the crate,
//! because a new test may catch it. Comments do not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::list::Mutant;

const HEAD: &str = "# What became of the mutants of one crate, by `cargo xtask mutants`: file, change, result, \
                    the test that caught it, and a hash of the code that the result depends on.\n";

/// The result of one mutant. The text is the test that caught it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Caught(String),
    Hung(String),
    Survived,
    NotCompiled,
}

/// The code of a crate: a hash of each file below `src` and `tests`, without comments.
#[derive(Debug, Default)]
pub(crate) struct Sources(BTreeMap<String, String>);

/// The results of one crate: file and change, then the result and its hash.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    sources: Sources,
    lines: BTreeMap<(String, String), (End, String)>,
}

/// Survivors that no test can catch: crate, file and change, with the reason.
pub(crate) type Excused = BTreeMap<(String, String, String), String>;

impl End {
    fn columns(&self) -> (&str, &str) {
        match self {
            Self::Caught(by) => ("caught", by),
            Self::Hung(by) => ("hung", by),
            Self::Survived => ("survived", "-"),
            Self::NotCompiled => ("not compiled", "-"),
        }
    }

    fn parse(end: &str, by: &str) -> Option<Self> {
        match end {
            "caught" => Some(Self::Caught(by.into())),
            "hung" => Some(Self::Hung(by.into())),
            "survived" => Some(Self::Survived),
            "not compiled" => Some(Self::NotCompiled),
            _ => None,
        }
    }
}

impl Sources {
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let mut sources = Self::default();
        for part in ["src", "tests"] {
            sources.add(folder, part)?;
        }
        Ok(sources)
    }

    fn add(&mut self, folder: &Path, below: &str) -> Result<(), String> {
        let path = folder.join(below);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if !path.exists() {
            return Ok(());
        }
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = format!("{below}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                self.add(folder, &name)?;
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(entry.path()).map_err(failed)?;
                self.0.insert(name, hash(&code(&text)));
            }
        }
        Ok(())
    }

    /// Returns the hash of what a result depends on.
    fn of(&self, file: &str, end: &End) -> String {
        let of = |file: &str| self.0.get(file).map_or("", String::as_str);
        match end {
            End::NotCompiled => of(file).to_owned(),
            End::Caught(by) | End::Hung(by) => {
                hash(&format!("{} {}", of(file), of(&self.test_file(by))))
            }
            End::Survived => hash(&self.0.values().map(String::as_str).collect::<String>()),
        }
    }

    /// Returns the file of a test: `unit::a::tests::b` is in `src/a/tests.rs` or `src/a.rs`,
    /// `it::a::b` in `tests/it/a.rs`.
    fn test_file(&self, by: &str) -> String {
        let (program, name) = by.split_once("::").unwrap_or((by, ""));
        let folder = if program == "unit" { "src".into() } else { format!("tests/{program}") };
        let mut module = name;
        while let Some((outer, _)) = module.rsplit_once("::") {
            let file = format!("{folder}/{}.rs", outer.replace("::", "/"));
            if self.0.contains_key(&file) {
                return file;
            }
            module = outer;
        }
        format!("{folder}/main.rs")
    }
}

/// Returns the text without indentation and without lines that only have a comment.
fn code(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())[..6].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

impl Record {
    pub(crate) fn read(path: PathBuf, sources: Sources) -> Result<Self, String> {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let bad = || format!("{}: not a result: `{line}`", path.display());
            let [file, change, end, by, hash] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(bad());
            };
            let end = End::parse(end, by).ok_or_else(bad)?;
            lines.insert((file.to_owned(), change.to_owned()), (end, hash.to_owned()));
        }
        Ok(Self { path, sources, lines })
    }

    /// Returns the stored result of the mutant, if the code that the result depends on has not
    /// changed.
    pub(crate) fn valid(&self, mutant: &Mutant) -> Option<&End> {
        let (end, hash) = self.lines.get(&(mutant.file.clone(), mutant.change.clone()))?;
        (*hash == self.sources.of(&mutant.file, end)).then_some(end)
    }

    /// Returns whether there is a result, valid or not.
    pub(crate) fn has(&self, mutant: &Mutant) -> bool {
        self.lines.contains_key(&(mutant.file.clone(), mutant.change.clone()))
    }

    /// Notes a result, and writes the file.
    pub(crate) fn note(&mut self, mutant: &Mutant, end: End) -> Result<(), String> {
        let hash = self.sources.of(&mutant.file, &end);
        self.lines.insert((mutant.file.clone(), mutant.change.clone()), (end, hash));
        let mut text = String::from(HEAD);
        for ((file, change), (end, hash)) in &self.lines {
            let (end, by) = end.columns();
            let _ = writeln!(text, "{file}\t{change}\t{end}\t{by}\t{hash}");
        }
        fs::write(&self.path, text).map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Prints the figures of all mutants with a valid result, and the survivors. Returns what is
    /// wrong if fewer than `percent` were caught. Mutants that do not compile and excused survivors
    /// are not counted. A mutant that makes the tests hang counts as caught.
    pub(crate) fn report(
        &self,
        krate: &str,
        all: &[Mutant],
        excused: &Excused,
        percent: usize,
    ) -> Option<String> {
        let (mut caught, mut hung, mut survived, mut excuses, mut refused) = (0_u32, 0, 0, 0, 0);
        let mut lines = Vec::new();
        for mutant in all {
            match self.valid(mutant) {
                Some(End::Caught(_)) => caught += 1,
                Some(End::Hung(_)) => hung += 1,
                Some(End::NotCompiled) => refused += 1,
                Some(End::Survived) => {
                    let key = (krate.to_owned(), mutant.file.clone(), mutant.change.clone());
                    let reason = excused.get(&key);
                    *(if reason.is_some() { &mut excuses } else { &mut survived }) += 1;
                    let reason =
                        reason.map_or_else(String::new, |why| format!(" (excused: {why})"));
                    lines.push(format!(
                        "  survived: {}:{}: {}{reason}",
                        mutant.file, mutant.start.0, mutant.change
                    ));
                }
                None => {}
            }
        }
        let (viable, good) = (caught + hung + survived, caught + hung);
        println!(
            "{krate}: {} of {} mutants tested: {caught} caught, {hung} hung, {survived} survived, \
             {excuses} excused, {refused} not compiled; {:.1} % caught",
            viable + excuses + refused,
            all.len(),
            f64::from(good) * 100.0 / f64::from(viable.max(1)),
        );
        lines.iter().for_each(|line| println!("{line}"));
        let enough = viable > 0 && u64::from(good) * 100 >= u64::from(viable) * percent as u64;
        (!enough).then(|| {
            format!("{krate}: {good} of {viable} mutants were caught, fewer than {percent} %")
        })
    }
}

/// Reads the list of excused survivors: crate, file, change and reason, separated by tabs.
pub(crate) fn excused(text: &str) -> Result<Excused, String> {
    let mut excused = Excused::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [krate, file, change, reason] if !reason.trim().is_empty() => {
                excused.insert((krate.into(), file.into(), change.into()), reason.into());
            }
            _ => return Err(format!("not crate, file, change and reason, with tabs: `{line}`")),
        }
    }
    Ok(excused)
}

/// Returns the excuses of a crate that fit none of its mutants.
pub(crate) fn needless<'a>(krate: &str, all: &[Mutant], excused: &'a Excused) -> Vec<&'a str> {
    let all: BTreeSet<_> = all.iter().map(|m| (m.file.as_str(), m.change.as_str())).collect();
    let own = excused.keys().filter(|(of, ..)| of == krate);
    own.filter(|(_, file, change)| !all.contains(&(file, change)))
        .map(|(_, _, change)| change.as_str())
        .collect()
}
