// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: runs the `benches` crate, which measures and writes the results, and starts the servers
//! that its suites measure.

use std::path::Path;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::services::ForTests;

/// Suites with a store on a server, each with its service.
const ON_SERVERS: [(&str, &str); 6] = [
    ("postgres", "postgres"),
    ("plain", "postgres"),
    ("standby", "standby"),
    ("mariadb", "mariadb"),
    ("redis", "redis"),
    ("cluster", "cluster"),
];
/// The services of the suite `growth`.
const GROWING: [&str; 3] = ["postgres", "mariadb", "redis"];

pub(crate) fn run(root: &Path, suites: &[String]) -> Verdict {
    // With options, `growth` measures PostgreSQL only.
    let is_sized = suites.len() > 1 && suites[0] == "growth";
    let is_all = suites.is_empty() || suites.len() == 2 && suites[0] == "--runs";
    let needed = |service: &str| {
        let grows = suites.iter().any(|suite| suite == "growth")
            && GROWING.contains(&service)
            && !(is_sized && service != "postgres");
        grows
            || ON_SERVERS.iter().any(|(suite, on)| {
                *on == service && (is_all || suites.iter().any(|named| named == suite))
            })
    };
    let mut servers = None;
    if ON_SERVERS.iter().any(|(_, service)| needed(service)) {
        let (running, up) = ForTests::begin_with(root, needed);
        servers = Some(running);
        match up {
            Verdict::Failed(why) => {
                return Verdict::Failed(format!("cannot start the servers to measure: {why}"));
            }
            Verdict::Passed(remark) | Verdict::Skipped(remark) => println!("services: {remark}"),
        }
    }
    let bench = Cargo::new("run --release --locked -p retryproof-benches --");
    let bench = suites.iter().fold(bench, |bench, suite| bench.arg(suite));
    println!("{bench}");
    let ended = bench.run(root);
    drop(servers);
    match ended {
        Ok(true) => Verdict::Passed(String::new()),
        Ok(false) => Verdict::Failed("see above".into()),
        Err(error) => Verdict::Failed(format!("could not be run: {error}")),
    }
}
