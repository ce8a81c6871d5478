// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust version that a published crate states, against what its dependencies ask for.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Member, Version, version};

const NEWEST_RUST: Version = (1, 95);

/// The stated Rust version is one for all crates, is one we have, and has to be true of everything
/// that a published crate brings along.
pub(super) fn problems(metadata: &Value, members: &[Member]) -> Vec<String> {
    let mut problems = Vec::new();
    let stated = members.iter().filter_map(|member| member.rust).min().unwrap_or((0, 0));
    for member in members {
        if member.rust != Some(stated) || stated > NEWEST_RUST {
            problems.push(format!(
                "{}: rust-version is not one for all, at most {}.{}",
                member.name, NEWEST_RUST.0, NEWEST_RUST.1
            ));
        }
    }
    let published =
        members.iter().filter(|member| member.published).map(|member| member.name.as_str());
    let used = normal_closure(metadata, &published.collect());
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let needs = package["rust_version"].as_str().and_then(version);
        if needs.is_some_and(|needs| needs > stated)
            && package["id"].as_str().is_some_and(|id| used.contains(id))
        {
            let (major, minor) = needs.unwrap_or_default();
            problems.push(format!(
                "{} needs Rust {major}.{minor}, more than we state",
                package["name"]
            ));
        }
    }
    problems
}

/// Ids of all packages that normal builds of the `roots` reach.
fn normal_closure<'a>(metadata: &'a Value, roots: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let ours = packages.filter(|package| package["source"].is_null()).filter_map(|package| {
        let (name, id) = (package["name"].as_str()?, package["id"].as_str()?);
        roots.contains(name).then_some(id)
    });
    let mut open: Vec<&str> = ours.collect();
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
    fn there_is_one_rust_version_and_it_covers_every_driver() {
        let problems = |ours: &str, of_store: &str| {
            let package = |name: &str, source: Value, rust: &str| json!({"name": name, "id": name, "source": source, "rust_version": rust});
            let metadata = json!({
                "packages": [
                    package(FACADE, Value::Null, ours), package("retryproof-postgres", Value::Null, of_store),
                    package("driver", json!("r"), "1.94"),
                ],
                "resolve": {"nodes": [
                    {"id": "retryproof-postgres", "deps": [{"pkg": "driver", "dep_kinds": [{"kind": null}]}]},
                ]},
            });
            super::problems(&metadata, &members(&metadata))
        };
        let not_one = "rust-version is not one for all, at most 1.95";
        assert!(problems("1.94", "1.94").is_empty());
        assert_eq!(problems("1.89", "1.89"), ["\"driver\" needs Rust 1.94, more than we state"]);
        assert_eq!(problems("1.94", "1.95")[0], format!("retryproof-postgres: {not_one}"));
        assert_eq!(problems("1.99", "1.99").len(), 2);
    }
}
