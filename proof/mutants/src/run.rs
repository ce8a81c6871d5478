// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs tests, each in a separate process, and judges mutants by them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
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
}

impl Tests {
    /// Runs each test once without a mutant. A test that fails twice is left out, with a message.
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
        let tests = Mutex::new(Vec::new());
        each(jobs, &all, |at, (program, name)| {
            let note = notes.join(at.to_string());
            let mut test = Test {
                program: program.clone(),
                name: name.clone(),
                took: Duration::from_secs(60),
                reaches: BTreeSet::new(),
            };
            for _ in 0..2 {
                drop(fs::remove_file(&note));
                let began = now();
                let variable = ("RETRYPROOF_REACHED", note.to_string_lossy().into_owned());
                if test.run(&folder, &variable) == Answer::Passed {
                    test.took = began.elapsed();
                    let text = fs::read_to_string(&note).unwrap_or_default();
                    test.reaches = text.lines().filter_map(|line| line.parse().ok()).collect();
                    lock(&tests).push(test);
                    return;
                }
            }
            println!("  left out, because it fails without a mutant: {name}");
        });
        let mut tests = tests.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        tests.sort_by_key(|test| test.took);
        let sum: Duration = tests.iter().map(|test| test.took).sum();
        println!("  {} tests, {} s together", tests.len(), sum.as_secs());
        Ok(Self { tests, folder, jobs })
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

    /// Returns the result of the first test that catches the mutant. A test counts only if it fails
    /// again, and passes without the mutant. The latter is not checked if the mutant is `built` in.
    fn end<'t>(
        &self,
        tests: impl Iterator<Item = &'t Test>,
        on: &(&str, String),
        built: bool,
    ) -> End {
        let none = ("RETRYPROOF_MUTANT", String::new());
        for test in tests {
            let first = test.run(&self.folder, on);
            if first == Answer::Passed {
                continue;
            }
            let again = || test.run(&self.folder, on) != Answer::Passed;
            let without = || test.run(&self.folder, &none) == Answer::Passed;
            if (first == Answer::Hung || again()) && (built || without()) {
                let by = test.label();
                return if first == Answer::Hung { End::Hung(by) } else { End::Caught(by) };
            }
        }
        End::Survived
    }
}

impl Test {
    /// Returns the test's name, after `unit` or the name of its program.
    fn label(&self) -> String {
        let program = stem(&self.program);
        let program = if program.starts_with("retryproof") { "unit" } else { &program };
        format!("{program}::{}", self.name)
    }

    fn run(&self, folder: &Path, (variable, value): &(&str, String)) -> Answer {
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
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "bounds and times another process")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "another process does not announce its end")]
fn pause(waited: Duration) {
    thread::sleep((waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(50)));
}
