// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: runs the `benches` crate, which measures and writes the results, and starts the servers
//! that its suites measure.

use std::path::Path;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::services::ForTests;

/// Suites with a store on a server; the service has the same name.
const ON_SERVERS: [&str; 3] = ["postgres", "mariadb", "redis"];

pub(crate) fn run(root: &Path, suites: &[String]) -> Verdict {
    // With options, `growth` measures PostgreSQL only.
    let is_sized = suites.len() > 1 && suites[0] == "growth";
    let needed = |service: &str| {
        ON_SERVERS.contains(&service)
            && !(is_sized && service != "postgres")
            && (suites.is_empty()
                || suites.len() == 2 && suites[0] == "--runs"
                || suites.iter().any(|suite| suite == service || suite == "growth"))
    };
    let mut servers = None;
    if ON_SERVERS.into_iter().any(needed) {
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
