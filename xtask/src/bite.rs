// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bite`: shows that each layer of the proof fails when a promise is broken. The program
//! `proof/bite` plants the defects; this command builds it and starts the servers.

use std::path::Path;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::services::ForTests;

/// Stores on a server; the service has the same name.
const ON_SERVERS: [&str; 3] = ["postgres", "mariadb", "redis"];

pub(crate) fn run(root: &Path, arguments: &[String]) -> Verdict {
    let needed = needed(arguments);
    let mut servers = None;
    if !needed.is_empty() {
        let (running, up) = ForTests::begin_with(root, |name| needed.contains(&name));
        servers = Some(running);
        if let Verdict::Failed(why) = up {
            return Verdict::Failed(format!("cannot start the servers: {why}"));
        }
    }
    // Build the kill test (`chaos`) too: `bite` runs the executable that is in the same build
    // folder as its own.
    let built = Cargo::new("build --locked -p chaos -p bite").run(root);
    if !matches!(built, Ok(true)) {
        return Verdict::Failed("the programs cannot be built".into());
    }
    let bite = arguments
        .iter()
        .fold(Cargo::new("run --locked -p bite --"), |bite, argument| bite.arg(argument));
    let bite = servers.iter().fold(bite, |bite, servers| bite.unseen(&servers.variables));
    println!("{bite}");
    match bite.run(root) {
        Ok(true) => Verdict::Passed(String::new()),
        Ok(false) => Verdict::Failed("see the rows with `NOTHING`".into()),
        Err(error) => Verdict::Failed(format!("could not be run: {error}")),
    }
}

/// Returns the servers that the kit needs for the stores of this run. The kill test starts its own
/// servers.
fn needed(arguments: &[String]) -> Vec<&'static str> {
    let value = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option)?;
        arguments.get(at + 1).map(|list| list.split(',').collect::<Vec<_>>())
    };
    if value("--layers").is_some_and(|layers| !layers.contains(&"kit")) {
        return Vec::new();
    }
    let wanted = |name: &&str| value("--stores").is_none_or(|stores| stores.contains(name));
    ON_SERVERS.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kit_needs_servers_and_only_those_of_its_stores() {
        let needed = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(String::from).collect();
            needed(&words)
        };
        assert_eq!(needed(""), ON_SERVERS);
        assert_eq!(needed("--stores memory,redis"), ["redis"]);
        assert_eq!(needed("--layers kill,simulation"), [""; 0]);
        assert_eq!(needed("--layers kit,kill --stores sqlite"), [""; 0]);
    }
}
