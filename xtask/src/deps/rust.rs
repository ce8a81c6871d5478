// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust version that each published crate states: the lowest one that its dependencies allow.
//!
//! clippy's `incompatible_msrv` checks that the crate's own code needs no newer version.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Member, Version, version};

/// The version that our own code requires: edition 2024 and `if let` chains.
const LANGUAGE: Version = (1, 88);
const NEWEST_RUST: Version = (1, 95);

/// Checks that each published crate states the highest version that a package of its normal builds
/// requires, and at least [`LANGUAGE`]. The stated version must not be above [`NEWEST_RUST`].
pub(super) fn problems(metadata: &Value, members: &[Member]) -> Vec<String> {
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let mut problems = Vec::new();
    for member in members.iter().filter(|member| member.published) {
        let used = normal_closure(metadata, &member.name);
        let foreign = packages.iter().filter(|package| !package["source"].is_null());
        let needs = foreign
            .filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)))
            .filter_map(|package| Some((version(package["rust_version"].as_str()?)?, *package)))
            .max_by_key(|(version, _)| *version);
        let lowest = needs.map_or(LANGUAGE, |(version, _)| version.max(LANGUAGE));
        let because = match needs {
            Some((version, package)) if version > LANGUAGE => {
                format!("{} requires it", package["name"])
            }
            _ => "our own code requires it".into(),
        };
        if member.rust != Some(lowest) || lowest > NEWEST_RUST {
            let (major, minor) = lowest;
            problems.push(format!(
                "{}: rust-version must be {major}.{minor}, because {because}",
                member.name
            ));
        }
    }
    problems
}

/// Returns the ids of all packages in the normal builds of the member `root`.
fn normal_closure<'a>(metadata: &'a Value, root: &str) -> BTreeSet<&'a str> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let is_root = |package: &&Value| package["source"].is_null() && package["name"] == root;
    let mut open: Vec<&str> =
        packages.filter(is_root).filter_map(|package| package["id"].as_str()).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
        for dependency in nodes
            .filter(|node| node["id"] == id)
            .flat_map(|node| node["deps"].as_array().into_iter().flatten())
        {
            let kinds = dependency["dep_kinds"].as_array();
            if kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev")) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::super::{FACADE, members};
    use super::*;
    use serde_json::json;

    const CORE: &str = "retryproof-core";

    /// Returns the problems if the facade and core state these versions. The facade depends on core
    /// and `a`, whose build needs `b`; core's tests need `c`.
    fn stated(facade: &str, core: &str) -> Vec<String> {
        let package = |name: &str, source: Value, rust: &str| json!({"name": name, "id": name, "source": source, "rust_version": rust});
        let edge = |to: &str, kind: Value| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package(FACADE, Value::Null, facade), package(CORE, Value::Null, core),
                package("a", json!("r"), "1.89.1"), package("b", json!("r"), "1.90"),
                package("c", json!("r"), "1.91"),
            ],
            "resolve": {"nodes": [
                {"id": FACADE, "deps": [edge("a", Value::Null), edge(CORE, Value::Null)]},
                {"id": "a", "deps": [edge("b", json!("build"))]},
                {"id": CORE, "deps": [edge("c", json!("dev"))]},
            ]},
        });
        problems(&metadata, &members(&metadata))
    }

    #[test]
    fn each_crate_states_what_its_own_normal_dependencies_ask_for() {
        assert!(stated("1.90", "1.88").is_empty());
        let facade = "retryproof: rust-version must be 1.90, because \"b\" requires it";
        assert_eq!(stated("1.89", "1.88"), [facade]);
        assert_eq!(stated("1.91", "1.88"), [facade]);
        let core = "retryproof-core: rust-version must be 1.88, because our own code requires it";
        assert_eq!(stated("1.90", "1.90"), [core]);
    }
}
