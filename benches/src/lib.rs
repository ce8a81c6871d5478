// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmarks. Every figure is compared with a raw floor, which is measured in the same loop of
//! the same run.
//!
//! `cargo xtask bench` runs all suites except `growth`, which takes a long time; `cargo xtask bench
//! memory` runs only the suite `memory`. Each run is added to `docs/bench/runs/<suite>.tsv`. `cargo
//! xtask bench --runs 5 memory` adds runs until there are five of this revision, so the same
//! command continues after an interruption. `BENCHMARKS.md` shows medians and quartiles over all
//! runs of the same revision, and `docs/bench/<suite>.svg` shows the plot of the last run; the exit
//! code says whether the medians meet all goals. `cargo xtask bench growth --records 20000000
//! --partitions 16` measures a PostgreSQL table of another size or form, and only prints figures.
//!
//! # Adding a suite
//! Write `src/<name>.rs` with `run` and, where it measures in child processes, `child`; add
//! `mod <name>;` and a line to `SUITES`. Nothing else is needed:
//! - [`compare::interleave`] runs contenders in turn, the floor first, and gives medians and
//!   ratios;
//! - [`callgrind::instructions`] starts this program under valgrind as `child <suite> ARGS.. COUNT`
//!   with two counts and divides the difference, so set-up cancels out; if valgrind is missing, it
//!   prints a warning and returns `None`;
//! - [`heap::counted`] starts the same child under a counting allocator and reads the figures that
//!   it prints with [`heap::answer`];
//! - `servers` has what the suites of the stores on servers share: concurrent tasks, waiters in
//!   child processes, tables that grow;
//! - [`report::Report`] holds rows, notes and plots, and is what `run` returns.
//!
//! Absolute times depend on the machine and the day. State a goal for a ratio or for a counted
//! figure (instructions, allocations, bytes, round trips), never for a time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub mod callgrind;
pub mod compare;
pub mod heap;
pub mod report;

mod actix;
mod http;
mod mariadb;
mod memory;
mod postgres;
mod redis;
mod sealing;
mod servers;
mod sqlite;
mod telemetry;

use heap::HeapCounter;
use postgres::Form::{Alone, Plain, Standby};
use redis::Nodes::{Cluster, One};
use report::Report;

/// One suite.
struct Suite {
    name: &'static str,
    /// Runs the suite, and returns its report.
    run: fn() -> Result<Report, String>,
    /// The main function of a child process: runs the workload that the arguments after the suite's
    /// name select.
    child: fn(args: &[String], heap: HeapCounter) -> Result<(), String>,
    /// Whether the suite runs only when it is named, because it takes a long time.
    by_name: bool,
}

impl Suite {
    const fn new(
        name: &'static str,
        run: fn() -> Result<Report, String>,
        child: fn(args: &[String], heap: HeapCounter) -> Result<(), String>,
    ) -> Self {
        Self { name, run, child, by_name: false }
    }
}

/// All suites, in the order in which they run.
const SUITES: &[Suite] = &[
    Suite::new("memory", memory::run, memory::child),
    Suite::new("sealing", sealing::run, sealing::child),
    Suite::new("telemetry", telemetry::run, telemetry::child),
    Suite::new("http", http::run, http::child),
    Suite::new("actix", actix::run, actix::child),
    Suite::new("sqlite", sqlite::run, sqlite::child),
    Suite::new(
        "postgres",
        || postgres::run(Alone),
        |args, heap| postgres::child(Alone, args, heap),
    ),
    Suite::new("plain", || postgres::run(Plain), |args, heap| postgres::child(Plain, args, heap)),
    Suite::new(
        "standby",
        || postgres::run(Standby),
        |args, heap| postgres::child(Standby, args, heap),
    ),
    Suite::new("mariadb", mariadb::run, mariadb::child),
    Suite::new("redis", || redis::run(One), |args, heap| redis::child(One, args, heap)),
    Suite::new("cluster", || redis::run(Cluster), |args, heap| redis::child(Cluster, args, heap)),
    Suite { by_name: true, ..Suite::new("growth", servers::long::run, servers::long::child) },
];

/// The main function of both programs: `[SUITE ..]` measures, and `child SUITE ARGS ..` is a child
/// process of a measurement.
#[must_use]
pub fn main(heap: HeapCounter) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.split_first() {
        Some((first, rest)) if first == "child" => child(rest, heap).map(|()| true),
        _ => run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the suites, and returns whether all goals were met.
fn run(names: &[String]) -> Result<bool, String> {
    if cfg!(debug_assertions) {
        return Err(
            "this build is not optimised: use cargo run --release -p retryproof-benches".into()
        );
    }
    if let [suite, options @ ..] = names
        && suite == "growth"
        && !options.is_empty()
    {
        return servers::long::sized(options).map(|()| true);
    }
    let (wanted, names) = match names {
        [option, runs, names @ ..] if option == "--runs" => {
            let runs = runs.parse::<usize>().ok().filter(|runs| *runs > 0);
            (Some(runs.ok_or("--runs: expected a number above 0")?), names)
        }
        names => (None, names),
    };
    let chosen: Vec<&Suite> = match names {
        [] => SUITES.iter().filter(|suite| !suite.by_name).collect(),
        names => names.iter().map(|name| suite(name)).collect::<Result<_, _>>()?,
    };
    let mut met = true;
    for suite in chosen {
        // A failure of one suite must not end an unattended run of the others.
        met &= runs_of(suite, wanted).unwrap_or_else(|problem| {
            eprintln!("bench: {}: {problem}", suite.name);
            false
        });
    }
    Ok(met)
}

/// Runs a suite until its revision has `wanted` runs, or once if `wanted` is `None`. Returns
/// whether the medians meet all goals.
fn runs_of(suite: &Suite, wanted: Option<usize>) -> Result<bool, String> {
    let kept = || {
        report::runs_so_far(&root(), suite.name)
            .map_err(|error| format!("cannot read the runs of {}: {error}", suite.name))
    };
    let wanted = wanted.map_or_else(|| kept().map(|(done, _)| done + 1), Ok)?;
    loop {
        let (done, revision) = kept()?;
        println!("\n== {}: {done} of {wanted} runs of revision {revision} are done ==", suite.name);
        if done >= wanted {
            return report::meets_goals(&root(), suite.name)
                .map_err(|error| format!("cannot read the page of the benchmarks: {error}"));
        }
        let began = compare::now();
        let report = (suite.run)()?;
        print!("{}", report.to_text());
        let met = report
            .write(&root())
            .map_err(|error| format!("cannot write the report of {}: {error}", suite.name))?;
        println!("run {} of {} took {:.0} s", done + 1, suite.name, began.elapsed().as_secs_f64());
        if done + 1 >= wanted {
            return Ok(met);
        }
    }
}

fn child(args: &[String], heap: HeapCounter) -> Result<(), String> {
    let (name, rest) = args.split_first().ok_or("child: the name of a suite is missing")?;
    if name == servers::awake::CHILD {
        return servers::awake::spin(rest);
    }
    (suite(name)?.child)(rest, heap)
}

fn suite(name: &str) -> Result<&'static Suite, String> {
    SUITES.iter().find(|suite| suite.name == name).ok_or_else(|| {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        format!("unknown suite `{name}`: use {}", names.join(", "))
    })
}

/// Returns the workspace's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
