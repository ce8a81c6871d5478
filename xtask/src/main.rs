// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask`: the project's own commands. CI runs `cargo xtask test`, and README recommends it.
//!
//! The program uses only std and a JSON reader, so it builds in seconds on a bare machine and
//! installs no tool.

use std::process::ExitCode;

mod alerts;
mod arch;
mod bench;
mod bite;
mod cargo;
mod circles;
mod deps;
mod features;
mod lock;
mod mutants;
mod names;
mod rules;
mod services;
mod size;
mod steps;
mod supply;
mod tally;
mod tree;

const USAGE: &str = "usage: cargo xtask COMMAND

  test           everything below up to lock-check, and format, lints, docs and all tests; what CI runs
  rules-check    every rule of SPEC.md is named by a test, and every rule a test names is in SPEC.md
  size-check     file lengths, long lines and licence lines
  arch-check     crates and files that ARCHITECTURE.md names exist; no import circles
  names-check    no type name of the shipped crates means two things
  deps-check     who may depend on whom, pins, minimum Rust version, size of core
  supply-check   licences, sources and bans of the crates that we depend on
  advisories     known vulnerabilities, by cargo-deny where it is installed and reaches its database
  alerts-check   the alerts of docs/operate by promtool, which is installed first where Debian's package is missing
  features       `cargo check` of the facade: no feature, each alone, all
  lock-check     what the lock files of users come to: one SQLite, both ends of its driver's range
  services up|down|status [NAME...]
                 the servers that stores and listeners are tested against, and the driver of a browser (postgres, pgbouncer,
                 mariadb, redis, sentinel, cluster, chromium, nats, rabbitmq; all of them without a name): private ones on
                 loopback, installed first where Debian's packages are missing
  bench [--runs N] [SUITE]
                 measure (memory, http, sqlite, postgres, mariadb, redis; all of them without a name, but not growth, which
                 takes long) and write BENCHMARKS.md; starts the servers it needs. With --runs, until N runs of the revision
                 are kept: the same command continues after an interruption
  bench growth [--records N] [--partitions N]
                 measure a PostgreSQL table of another size (up to 20000000) or with partitions, and only print the figures
  bite [--stores LIST] [--layers LIST] [--defects LIST] [--secs N]
                 plant each defect in each store (memory, sqlite, postgres, mariadb, redis), and print which test of the kit, of the
                 simulation and of the kill test catches it; fails if a cell of this table is empty. Starts the servers it needs
  mutants [CRATE...] [--seed S] [--count N] [--jobs N] [--quick] [--again]
                 change the code in small ways, and fail if the tests catch fewer than 95 % of the changes
                 (core, http, memory, sqlite, postgres, mysql, redis; all of them without a name; seed 1, 300 of each crate)";

/// The result of a check or a step, with a remark for the summary.
enum Verdict {
    Passed(String),
    Failed(String),
    /// Not run because the machine lacks something optional; reported, never silent.
    Skipped(String),
}

impl Verdict {
    /// Prints each problem; passes with `remark` when there is none.
    fn of(problems: &[String], remark: String) -> Self {
        for problem in problems {
            println!("  error: {problem}");
        }
        match problems.len() {
            0 => Self::Passed(remark),
            1 => Self::Failed("1 problem".into()),
            n => Self::Failed(format!("{n} problems")),
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    if !rest.is_empty() && !["bench", "bite", "mutants", "services"].contains(&command) {
        eprintln!("`{command}` takes no argument, got `{}`\n\n{USAGE}", rest.join(" "));
        return ExitCode::from(2);
    }
    let root = tree::root();
    let verdict = match command {
        // The summary of `test` ends with the totals of the test runners, so print nothing after
        // it.
        "test" => return if steps::run_all(&root) { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        "rules-check" => rules::check(&root),
        "size-check" => size::check(&root),
        "arch-check" => arch::check(&root),
        "names-check" => names::check(&root),
        "deps-check" => deps::check(&root),
        "supply-check" => supply::check(&root),
        "advisories" => supply::advisories(&root),
        "alerts-check" => alerts::check(&root),
        "features" => features::check(&root),
        "lock-check" => lock::check(&root),
        "services" => services::run(&root, rest),
        "bench" => bench::run(&root, rest),
        "bite" => bite::run(&root, rest),
        "mutants" => mutants::run(&root, rest),
        "help" | "-h" | "--help" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("unknown command `{command}`\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match verdict {
        Verdict::Passed(remark) => {
            println!("{command}: ok{}", dash(&remark));
            ExitCode::SUCCESS
        }
        Verdict::Skipped(why) => {
            println!("{command}: SKIPPED{}", dash(&why));
            ExitCode::SUCCESS
        }
        Verdict::Failed(why) => {
            println!("{command}: FAILED{}", dash(&why));
            ExitCode::FAILURE
        }
    }
}

fn dash(remark: &str) -> String {
    if remark.is_empty() { String::new() } else { format!(" - {remark}") }
}
