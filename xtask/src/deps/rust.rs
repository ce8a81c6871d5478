// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust version that a published crate states, against what its dependencies ask for.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Member, Version, version};

const NEWEST_RUST: Version = (1, 95);
/// Crates whose driver asks for a newer Rust than the others promise; whoever does not turn them on does not need it.
const NEWER_RUST: [&str; 2] = ["retryproof-postgres", "retryproof-mysql"];

/// The stated Rust version has to be true of everything that a published crate brings along, and be one we have. It is one
/// for all, but for those in [`NEWER_RUST`]: what only they bring is held to their own.
pub(super) fn problems(metadata: &Value, members: &[Member]) -> Vec<String> {
    let mut problems = Vec::new();
    let is_newer = |member: &&Member| NEWER_RUST.contains(&member.name.as_str());
    let (newer, all): (Vec<&Member>, Vec<&Member>) =
        members.iter().filter(|member| member.published).partition(is_newer);
    let stated = all.iter().filter_map(|member| member.rust).min().unwrap_or((0, 0));
    for member in all.iter().chain(&newer) {
        let fits = member
            .rust
            .is_some_and(|rust| (rust == stated || rust > stated && is_newer(member)) && rust <= NEWEST_RUST);
        if !fits {
            problems.push(format!(
                "{}: rust-version is not one for all, at most {}.{}",
                member.name, NEWEST_RUST.0, NEWEST_RUST.1
            ));
        }
    }
    let mut hold = |roots: &[&Member], without: &[&str], stated: Version| {
        let roots = roots.iter().map(|member| member.name.as_str()).collect();
        let used = normal_closure(metadata, &roots, without);
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let needs = package["rust_version"].as_str().and_then(version);
            if needs.is_some_and(|needs| needs > stated)
                && package["id"].as_str().is_some_and(|id| used.contains(id))
            {
                let (major, minor) = needs.unwrap_or_default();
                problems.push(format!("{} needs Rust {major}.{minor}, more than we state", package["name"]));
            }
        }
    };
    hold(&all, &NEWER_RUST, stated);
    newer.iter().for_each(|member| hold(&[member], &[], member.rust.unwrap_or(stated)));
    problems
}

/// Ids of all packages that normal builds of the `roots` reach, other than through those crates of ours in `without`.
fn normal_closure<'a>(metadata: &'a Value, roots: &BTreeSet<&str>, without: &[&str]) -> BTreeSet<&'a str> {
    let ours = || {
        let packages = metadata["packages"].as_array().into_iter().flatten();
        packages.filter(|package| package["source"].is_null()).filter_map(|package| {
            let (name, id) = (package["name"].as_str()?, package["id"].as_str()?);
            Some((name, id))
        })
    };
    let mut open: Vec<&str> = ours().filter(|(name, _)| roots.contains(name)).map(|(_, id)| id).collect();
    let closed: Vec<&str> = ours().filter(|(name, _)| without.contains(name)).map(|(_, id)| id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if closed.contains(&id) || !seen.insert(id) {
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

    #[test]
    fn the_stated_rust_version_covers_normal_dependencies_only() {
        let package = |name: &str, source: Value, rust: &str| json!({"name": name, "id": name, "source": source, "rust_version": rust});
        let edge = |to: &str, kind: Value| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package(FACADE, Value::Null, "1.89"), package("a", json!("r"), "1.89.1"), package("b", json!("r"), "1.90"), package("c", json!("r"), "1.91")],
            "resolve": {"nodes": [
                {"id": FACADE, "deps": [edge("a", Value::Null), edge("c", json!("dev"))]},
                {"id": "a", "deps": [edge("b", json!("build"))]},
            ]},
        });
        assert_eq!(
            super::problems(&metadata, &members(&metadata)),
            ["\"b\" needs Rust 1.90, more than we state"]
        );
    }

    #[test]
    fn a_driver_that_asks_for_more_raises_its_own_store_only() {
        let (postgres, sqlite) = ("retryproof-postgres", "retryproof-sqlite");
        let package = |name: &str, ours: bool, rust: &str| json!({"name": name, "id": name, "source": if ours { Value::Null } else { json!("r") }, "rust_version": rust});
        let edge = |to: &str| json!({"pkg": to, "dep_kinds": [{"kind": null}]});
        let problems = |postgres_rust: &str, sqlite_uses: &str| {
            let metadata = json!({
                "packages": [
                    package(FACADE, true, "1.89"), package(postgres, true, postgres_rust), package(sqlite, true, "1.89"),
                    package("driver", false, "1.94"),
                ],
                "resolve": {"nodes": [
                    {"id": FACADE, "deps": [edge(postgres), edge(sqlite)]},
                    {"id": postgres, "deps": [edge("driver")]},
                    {"id": sqlite, "deps": [edge(sqlite_uses)]},
                ]},
            });
            super::problems(&metadata, &members(&metadata))
        };
        assert!(problems("1.94", "other").is_empty());
        assert_eq!(problems("1.89", "other"), ["\"driver\" needs Rust 1.94, more than we state"]);
        assert_eq!(problems("1.94", "driver"), ["\"driver\" needs Rust 1.94, more than we state"]);
        assert_eq!(
            problems("1.99", "other"),
            ["retryproof-postgres: rust-version is not one for all, at most 1.95"]
        );
    }
}
