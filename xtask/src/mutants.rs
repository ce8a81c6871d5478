// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mutants`: changes the code in small ways, and counts how many of these changes the tests of the
//! changed crate catch. The program `proof/mutants` does this; this command builds it and starts
//! the servers.

use std::path::Path;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::services::ForTests;

/// The servers that the tests of a crate need.
const SERVERS: [(&str, &[&str]); 3] = [
    ("postgres", &["postgres", "pgbouncer"]),
    ("mysql", &["mariadb"]),
    ("redis", &["redis", "sentinel", "cluster"]),
];

/// Crates whose tests need no server.
const ALONE: [&str; 4] = ["core", "http", "memory", "sqlite"];

pub(crate) fn run(root: &Path, arguments: &[String]) -> Verdict {
    if !matches!(Cargo::new("mutants --version").capture(root), Ok((true, ..))) {
        let install = "install it with `cargo install cargo-mutants --locked`";
        return Verdict::Failed(format!("cargo-mutants is missing; {install}"));
    }
    let needed = needed(arguments);
    // The servers run until all crates are done.
    let servers = ForTests::begin_with(root, |name| needed.contains(&name));
    if let (_, Verdict::Failed(why)) = &servers {
        return Verdict::Failed(format!("cannot start the servers: {why}"));
    }
    let mutants = arguments
        .iter()
        .fold(Cargo::new("run --locked -p mutants --"), |line, argument| line.arg(argument))
        .unseen(&servers.0.variables);
    println!("{mutants}");
    match mutants.run(root) {
        Ok(true) => Verdict::Passed(String::new()),
        Ok(false) => Verdict::Failed("see the lines with `error`".into()),
        Err(error) => Verdict::Failed(format!("could not be run: {error}")),
    }
}

/// Returns the servers of the named crates, or of all crates if none is named.
fn needed(arguments: &[String]) -> Vec<&'static str> {
    let named = |name: &str| {
        let short = |argument: &String| argument.trim_start_matches("retryproof-") == name;
        arguments.iter().any(short)
    };
    let any = ALONE.iter().any(|name| named(name)) || SERVERS.iter().any(|(name, _)| named(name));
    let wanted = SERVERS.iter().filter(|(name, _)| !any || named(name));
    wanted.flat_map(|(_, servers)| servers.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_of_the_named_crates_are_needed() {
        let needed = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(String::from).collect();
            needed(&words)
        };
        assert_eq!(needed("--seed 7").len(), 6, "all crates");
        assert_eq!(needed("core --count 20"), [""; 0]);
        assert_eq!(needed("core retryproof-redis"), ["redis", "sentinel", "cluster"]);
    }
}
