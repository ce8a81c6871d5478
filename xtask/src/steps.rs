// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask test`: the steps of a full check, cheap ones first, and their summary.
//!
//! Clippy, docs and the feature loop share the results of `cargo check`; the two test steps share
//! one build. None of them changes RUSTFLAGS, because that would build every dependency again. The
//! loom step must change them, so it builds in a separate folder.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::cargo::{self, Cargo};
use crate::services::ForTests;
use crate::tally::{self, Tally};
use crate::{Verdict, alerts, arch, deps, features, lock, names, rules, size, supply};

enum Work {
    Check(fn(&Path) -> Verdict),
    /// Runs cargo, and fails if its exit code is not zero.
    Run(Cargo),
    /// Like `Run`, but also counts the tests that ran, and fails if there were none.
    Tests(Cargo),
    /// Starts the servers that the later steps test against.
    Servers,
    Skip(String),
}

struct Step {
    name: &'static str,
    what: &'static str,
    work: Work,
}

fn plan(root: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = |name, what, work| steps.push(Step { name, what, work });
    step(
        "format",
        "the files are formatted",
        component(root, "fmt", "rustfmt", "fmt --all --check"),
    );
    step(
        "rules-check",
        "each rule has a test, and tests name existing rules",
        Work::Check(rules::check),
    );
    step("size-check", "lengths of files and lines, licences", Work::Check(size::check));
    step(
        "arch-check",
        "ARCHITECTURE.md names existing files; no circular imports",
        Work::Check(arch::check),
    );
    step("names-check", "a type name means one thing", Work::Check(names::check));
    step("deps-check", "dependencies between crates", Work::Check(deps::check));
    step("alerts-check", "the alerts fire, and only when they should", Work::Check(alerts::check));
    step("supply-check", "licences, sources and bans of dependencies", Work::Check(supply::check));
    step("advisories", "known vulnerabilities of dependencies", Work::Check(supply::advisories));
    // This step and the later ones include all members of the workspace, even those that
    // `default-members` excludes from a plain `cargo build`.
    let lint = "clippy --workspace --all-targets --all-features --locked -- -D warnings";
    step("clippy", "lints, each warning an error", component(root, "clippy", "clippy", lint));
    let doc = Cargo::new("doc --workspace --no-deps --all-features --locked")
        .flags("RUSTDOCFLAGS", "-D warnings");
    step("docs", "documentation, each warning an error", Work::Run(doc));
    step("features", "the facade with each feature alone, none, all", Work::Check(features::check));
    step(
        "lock-check",
        "lock files of users, both ends of the SQLite driver",
        Work::Check(lock::check),
    );
    let runner = match optional(
        root,
        "nextest",
        "nextest run --workspace --all-features --locked --no-fail-fast",
    ) {
        // Most tests wait, so two at a time keep a core busy.
        Work::Run(nextest) => nextest.arg("--test-threads").arg(&(2 * cores()).to_string()),
        _ => {
            println!("note: cargo-nextest is not installed, cargo test runs the tests instead");
            Cargo::new("test --workspace --all-features --tests --locked --no-fail-fast")
        }
    };
    step("services", "the servers that the stores are tested against", Work::Servers);
    step("tests", "unit and integration tests", Work::Tests(runner));
    let doctests = Cargo::new("test --workspace --all-features --doc --locked --no-fail-fast");
    step("doc tests", "the examples in the documentation", Work::Tests(doctests));
    let loom = Cargo::new("test -p retryproof-memory --release --test loom --locked")
        .flags("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", cargo::target().join("loom").to_string_lossy());
    step("loom", "every interleaving of the memory store's lock-free parts", Work::Tests(loom));
    steps
}

/// Creates a step that needs a component of the toolchain, which minimal installations lack.
fn component(root: &Path, probe: &str, component: &str, line: &str) -> Work {
    if installed(root, probe) {
        return Work::Run(Cargo::new(line));
    }
    println!("note: {component} is missing, trying `rustup component add {component}`");
    let added = std::process::Command::new("rustup").args(["component", "add", component]).status();
    if added.is_ok_and(|status| status.success()) && installed(root, probe) {
        return Work::Run(Cargo::new(line));
    }
    Work::Skip(format!(
        "{component} is not installed; install it with `rustup component add {component}`"
    ))
}

/// Creates a step that uses a tool if it is installed, and never compiles the tool.
fn optional(root: &Path, tool: &str, line: &str) -> Work {
    if installed(root, tool) {
        return Work::Run(Cargo::new(line));
    }
    Work::Skip(format!("cargo-{tool} is not installed"))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn installed(root: &Path, subcommand: &str) -> bool {
    matches!(Cargo::new(subcommand).arg("--version").capture(root), Ok((true, _, _)))
}

struct Done {
    name: &'static str,
    verdict: Verdict,
    took: Duration,
    repeat: String,
    /// The names of the tests that failed.
    failed: Vec<String>,
}

/// Runs every step, even after a failure, so that one run shows all problems. Returns true if none
/// failed.
pub(crate) fn run_all(root: &Path) -> bool {
    let start = now();
    let steps = plan(root);
    let total = steps.len();
    let mut tally = Tally::default();
    let mut closing = Vec::new();
    let mut done = Vec::new();
    let mut servers: Option<ForTests<'_>> = None;
    for (n, step) in steps.into_iter().enumerate() {
        let repeat = match &step.work {
            Work::Check(_) => format!("cargo xtask {}", step.name),
            Work::Run(cargo) | Work::Tests(cargo) => cargo.to_string(),
            Work::Servers => "cargo xtask services up".into(),
            Work::Skip(_) => String::new(),
        };
        println!(
            "\n=== [{}/{total}] {}: {} (after {})",
            n + 1,
            step.name,
            step.what,
            seconds(start.elapsed())
        );
        if !repeat.is_empty() {
            println!("    {repeat}");
        }
        let began = now();
        let mut failed = Vec::new();
        let verdict = match step.work {
            Work::Check(check) => check(root),
            Work::Run(cargo) => exit(cargo.run(root).map(|success| (success, String::new()))),
            Work::Servers => {
                let (running, verdict) = ForTests::begin(root);
                servers = Some(running);
                verdict
            }
            Work::Tests(cargo) => exit(at(cargo, servers.as_ref()).watch(root, tally::tells).map(
                |(success, lines)| {
                    let (ran, names) = tally::read(&lines);
                    failed.extend(names.into_iter().map(String::from));
                    tally.merge(ran);
                    closing.extend(lines.into_iter().filter(|line| tally::is_summary(line)));
                    (
                        success && ran.passed > 0,
                        format!("{} passed, {} ignored", ran.passed, ran.ignored),
                    )
                },
            )),
            Work::Skip(why) => Verdict::Skipped(why),
        };
        let took = began.elapsed();
        match &verdict {
            Verdict::Passed(_) => println!("=== {}: ok in {}", step.name, seconds(took)),
            Verdict::Skipped(why) => println!("=== {}: SKIPPED: {why}", step.name),
            Verdict::Failed(_) => {
                println!("=== {}: FAILED in {}; to repeat: {repeat}", step.name, seconds(took))
            }
        }
        done.push(Done { name: step.name, verdict, took, repeat, failed });
    }
    drop(servers);
    summary(&done, start.elapsed(), &closing, tally)
}

/// Runs a command with the addresses of the servers, and without stack traces: the trace of one
/// panic is longer than what all the tests of a crate print, and a log is often cut.
fn at(cargo: Cargo, servers: Option<&ForTests<'_>>) -> Cargo {
    let cargo = cargo.unseen(&[("RUST_BACKTRACE".into(), "0".into())]);
    servers.map_or(cargo.clone(), |servers| cargo.unseen(&servers.variables))
}

fn exit(result: std::io::Result<(bool, String)>) -> Verdict {
    match result {
        Ok((true, remark)) => Verdict::Passed(remark),
        Ok((false, remark)) => Verdict::Failed(remark),
        Err(error) => Verdict::Failed(format!("could not be run: {error}")),
    }
}

/// Prints the table, and then the closing lines of the test runners, so that these lines are the
/// last thing on the screen.
fn summary(done: &[Done], took: Duration, closing: &[String], tally: Tally) -> bool {
    println!("\n{:<12} {:>8}  result", "step", "took");
    for Done { name, verdict, took, .. } in done {
        let (word, remark) = match verdict {
            Verdict::Passed(remark) => ("ok", remark),
            Verdict::Failed(remark) => ("FAILED", remark),
            Verdict::Skipped(remark) => ("SKIPPED", remark),
        };
        let gap = if remark.is_empty() { "" } else { "  " };
        println!("{name:<12} {:>8}  {word}{gap}{remark}", seconds(*took));
    }
    let failed: Vec<&Done> =
        done.iter().filter(|step| matches!(step.verdict, Verdict::Failed(_))).collect();
    for Done { name, repeat, failed, .. } in &failed {
        println!("{name} failed; to repeat: {repeat}");
        failed.iter().for_each(|test| println!("  failed: {test}"));
    }
    println!("{} of {} steps failed\n", failed.len(), done.len());
    closing.iter().for_each(|line| println!("{line}"));
    let Tally { passed, failed: broken, ignored } = tally;
    println!(
        "test result: {}. {passed} passed; {broken} failed; {ignored} ignored; all runners \
         together; finished in {}",
        if failed.is_empty() { "ok" } else { "FAILED" },
        seconds(took)
    );
    failed.is_empty()
}

fn seconds(took: Duration) -> String {
    format!("{:.1}s", took.as_secs_f64())
}

#[expect(
    clippy::disallowed_methods,
    reason = "measures the steps for a person, and no decision depends on the times"
)]
fn now() -> Instant {
    Instant::now()
}
