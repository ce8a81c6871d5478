// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs tests, each in a separate process, and judges mutants by them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::build::Program;
use crate::record::End;

/// The shortest time limit of a test, because the machine may be busy.
const AT_LEAST: Duration = Duration::from_secs(15);

/// One test that passes without a mutant.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    pub(crate) program: Program,
    pub(crate) name: String,
    took: Duration,
    /// The mutants whose place the test reaches.
    reaches: BTreeSet<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Passed,
    Failed,
    Hung,
}

/// The tests of a crate.
pub(crate) struct Tests {
    /// The tests, the fastest first.
    tests: Vec<Test>,
    folder: PathBuf,
    /// How many tests run at the same time.
    jobs: usize,
    /// Held for reading by each run, and for writing by a run beside which no other may run.
    turns: RwLock<()>,
}

/// The environment variable that switches a mutant on, and its value.
type Switch = (&'static str, String);

/// What else may run at the same time as a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Others,
    Nothing,
}

impl Tests {
    /// Runs each test once without a mutant, and repeats a failed test once beside the others and
    /// once alone. A test that fails each time is left out, with a message.
    pub(crate) fn measure(
        programs: &[Program],
        folder: PathBuf,
        notes: &Path,
        jobs: usize,
    ) -> Result<Self, String> {
        let mut all = Vec::new();
        for program in programs {
            for name in names(program)? {
                all.push((program.clone(), name));
            }
        }
        fs::create_dir_all(notes).map_err(|error| format!("{}: {error}", notes.display()))?;
        let (passed, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        each(jobs, &all, |at, (program, name)| {
            let note = notes.join(at.to_string());
            let mut test = Test {
                program: program.clone(),
                name: name.clone(),
                took: Duration::from_secs(60),
                reaches: BTreeSet::new(),
            };
            if (0..2).any(|_| test.passes(&folder, &note)) {
                lock(&passed).push(test);
            } else {
                lock(&failed).push((test, note));
            }
        });
        let mut tests = into_inner(passed);
        for (mut test, note) in into_inner(failed) {
            if test.passes(&folder, &note) {
                tests.push(test);
            } else {
                println!("  left out, because it fails without a mutant: {}", test.name);
            }
        }
        tests.sort_by_key(|test| test.took);
        let sum: Duration = tests.iter().map(|test| test.took).sum();
        println!("  {} tests, {} s together", tests.len(), sum.as_secs());
        Ok(Self { tests, folder, jobs, turns: RwLock::new(()) })
    }

    /// Judges mutants that have a switch, and passes on each result.
    pub(crate) fn judge(&self, numbers: &[usize], done: impl Fn(usize, End) + Sync) {
        each(self.jobs, numbers, |_, &number| {
            let tests = self.tests.iter().filter(|test| test.reaches.contains(&number));
            let end = self.end(tests, &("RETRYPROOF_MUTANT", number.to_string()), false);
            done(number, end);
        });
    }

    /// Judges a mutant without a switch, by its own programs. It is tested by the tests that reach
    /// one of `near`, or by all if there are none.
    pub(crate) fn judge_built(&self, programs: &[Program], near: &BTreeSet<usize>) -> End {
        let close = |test: &&Test| near.is_empty() || !test.reaches.is_disjoint(near);
        let by_stem: BTreeMap<_, _> = programs.iter().map(|p| (stem(p), p)).collect();
        let moved = self.tests.iter().filter(close).filter_map(|test| {
            let program = (*by_stem.get(&stem(&test.program))?).clone();
            Some(Test { program, ..test.clone() })
        });
        let moved: Vec<Test> = moved.collect();
        self.end(moved.iter(), &("RETRYPROOF_MUTANT", String::new()), true)
    }

    /// Returns the result of the first test that catches the mutant.
    fn end<'t>(&self, tests: impl Iterator<Item = &'t Test>, on: &Switch, built: bool) -> End {
        for test in tests {
            let first = self.run(test, on, Load::Others);
            if first == Answer::Passed {
                continue;
            }
            let by = test.label();
            if !self.is_due_to_mutant(test, first, on, built) {
                println!("  does not count, because it is not due to the mutant: {by} failed");
                continue;
            }
            return if first == Answer::Hung { End::Hung(by) } else { End::Caught(by) };
        }
        End::Survived
    }

    /// Returns whether a test's failure is due to the mutant: the test fails again with the mutant,
    /// and passes without it. The latter is not checked if the mutant is `built` in. If the test
    /// fails without the mutant, the machine may be too busy for it, so both runs are repeated
    /// while no other test runs.
    fn is_due_to_mutant(&self, test: &Test, first: Answer, on: &Switch, built: bool) -> bool {
        let off = ("RETRYPROOF_MUTANT", String::new());
        for load in [Load::Others, Load::Nothing] {
            // A hang takes long, so the first one is not repeated.
            let is_known = first == Answer::Hung && load == Load::Others;
            if !is_known && self.run(test, on, load) == Answer::Passed {
                return false;
            }
            if built || self.run(test, &off, load) == Answer::Passed {
                return true;
            }
        }
        false
    }

    fn run(&self, test: &Test, switch: &Switch, load: Load) -> Answer {
        match load {
            Load::Others => {
                let _turn = self.turns.read().unwrap_or_else(PoisonError::into_inner);
                test.run(&self.folder, switch)
            }
            Load::Nothing => {
                let _turn = self.turns.write().unwrap_or_else(PoisonError::into_inner);
                test.run(&self.folder, switch)
            }
        }
    }
}

impl Test {
    /// Returns the test's name, after `unit` or the name of its program.
    fn label(&self) -> String {
        let program = stem(&self.program);
        let program = if program.starts_with("retryproof") { "unit" } else { &program };
        format!("{program}::{}", self.name)
    }

    /// Runs the test without a mutant. If the test passes, notes how long it took and which mutants
    /// it reached.
    fn passes(&mut self, folder: &Path, note: &Path) -> bool {
        drop(fs::remove_file(note));
        let began = now();
        let variable = ("RETRYPROOF_REACHED", note.to_string_lossy().into_owned());
        if self.run(folder, &variable) != Answer::Passed {
            return false;
        }
        self.took = began.elapsed();
        let text = fs::read_to_string(note).unwrap_or_default();
        self.reaches = text.lines().filter_map(|line| line.parse().ok()).collect();
        true
    }

    fn run(&self, folder: &Path, (variable, value): &Switch) -> Answer {
        // Limit the memory, because a mutant may allocate without end.
        let mut child = match Command::new("sh")
            .args(["-c", "ulimit -v 8000000; exec \"$@\"", "sh"])
            .arg(&self.program)
            .args(["--exact", &self.name, "--test-threads=1"])
            .current_dir(folder)
            .env("CARGO_MANIFEST_DIR", folder)
            .env(variable, value)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
        {
            Ok(child) => child,
            Err(error) => {
                println!("  {}: {error}", self.program.display());
                return Answer::Passed;
            }
        };
        let (began, bound) = (now(), AT_LEAST + self.took * 4);
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Answer::Passed,
                Ok(Some(_)) | Err(_) => return Answer::Failed,
                Ok(None) if began.elapsed() > bound => break,
                Ok(None) => pause(began.elapsed()),
            }
        }
        // Kill the servers that the test started, too.
        if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(child.wait());
        Answer::Hung
    }
}

/// Returns the name of a program without the hash, which differs between builds.
fn stem(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or_else(|| name.to_string(), |(stem, _)| stem.to_owned())
}

/// Returns the names of a program's tests.
fn names(program: &Path) -> Result<Vec<String>, String> {
    let output = Command::new(program)
        .args(["--list", "--format", "terse"])
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect())
}

/// Calls `work` for each item, `jobs` at the same time.
fn each<T: Sync>(jobs: usize, items: &[T], work: impl Fn(usize, &T) + Sync) {
    let next = Mutex::new(items.iter().enumerate());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let item = lock(&next).next();
                    let Some((at, item)) = item else { break };
                    work(at, item);
                }
            });
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "bounds and times another process")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "another process does not announce its end")]
fn pause(waited: Duration) {
    thread::sleep((waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(50)));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Judges a mutant by one test, a script. `off` are the runs without the mutant that fail, and
    /// `on` those with the mutant, both counted from 1.
    fn judged(off: &[usize], on: &[usize]) -> End {
        let folder = std::env::temp_dir()
            .join(format!("retryproof-runs-{}-{off:?}-{on:?}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("script");
        let list = |runs: &[usize]| runs.iter().map(|run| format!(" {run} ")).collect::<String>();
        let script = format!(
            "#!/bin/sh\n\
             if [ \"$1\" = --list ]; then echo 'a_test: test'; exit; fi\n\
             if [ -n \"$RETRYPROOF_REACHED\" ]; then echo 7 > \"$RETRYPROOF_REACHED\"; fi\n\
             file=off; fails='{}'\n\
             if [ -n \"$RETRYPROOF_MUTANT\" ]; then file=on; fails='{}'; fi\n\
             echo >> $file\n\
             run=$(($(wc -l < $file)))\n\
             case \"$fails\" in *\" $run \"*) exit 1;; esac\n",
            list(off),
            list(on)
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let notes = folder.join("notes");
        let tests = Tests::measure(&[program], folder.clone(), &notes, 2).unwrap();
        let end = Mutex::new(None);
        tests.judge(&[7], |number, found| {
            assert_eq!(number, 7);
            *lock(&end) = Some(found);
        });
        fs::remove_dir_all(&folder).unwrap();
        into_inner(end).unwrap()
    }

    #[test]
    fn a_failure_counts_only_if_the_mutant_is_its_cause() {
        let caught = || End::Caught("script::a_test".into());
        let always: Vec<usize> = (1..9).collect();
        assert_eq!(judged(&[], &always), caught());
        assert_eq!(judged(&[], &[]), End::Survived);
        assert_eq!(judged(&[], &[1]), End::Survived, "a failure that does not come again");
        assert_eq!(judged(&always[1..], &always), End::Survived, "a test that fails without it");
    }

    #[test]
    fn a_failure_without_the_mutant_on_a_busy_machine_is_repeated_alone() {
        let caught = || End::Caught("script::a_test".into());
        let always: Vec<usize> = (1..9).collect();
        // The first run without the mutant is the one that measures the test.
        assert_eq!(judged(&[2], &always), caught());
        assert_eq!(judged(&[2], &[1, 2]), End::Survived, "it passes with the mutant, too");
        // The machine was too busy when the test was measured.
        assert_eq!(judged(&[1, 2], &always), caught());
        assert_eq!(judged(&[1, 2, 3], &always), End::Survived, "it never passed");
    }
}
