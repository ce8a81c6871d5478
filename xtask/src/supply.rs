// SPDX-License-Identifier: MIT OR Apache-2.0
//! `supply-check`: the licences and sources of the crates that we depend on, and crates that may
//! not be among them. It reads `cargo metadata` alone, so it runs on every machine.
//!
//! [`advisories`] looks up known vulnerabilities. That needs a tool and a fresh database, so it can
//! be impossible; the step then reports that it looked up nothing, and why.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::deps;

mod licence;

/// The licences that a crate in the graph may have. BSD-3-Clause is for the Redis driver and for
/// matchit, the router inside axum. BSL-1.0 is for a hash in the Redis driver, ISC for rustls,
/// which only the TLS features use, Unicode-3.0 for tables of letters, and Zlib for hash maps.
const LICENCES: [&str; 8] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC", "Unicode-3.0", "Zlib"];

/// Crates that may not be in the graph: name, the beginning of the version, reason.
const BANNED: [(&str, &str, &str); 3] = [
    ("bincode", "3.", "the last release refuses to compile"),
    ("openssl-sys", "", "TLS is the user's choice"),
    ("sqlx-sqlite", "", "a dependency graph can have only one SQLite driver (`links`)"),
];

pub(crate) fn check(root: &Path) -> Verdict {
    let metadata = match deps::metadata(root) {
        Ok(metadata) => metadata,
        Err(why) => return Verdict::Failed(why),
    };
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let foreign = packages.iter().filter(|package| !package["source"].is_null()).count();
    if foreign == 0 {
        return Verdict::Failed("`cargo metadata` lists no foreign crate".into());
    }
    Verdict::of(
        &problems(packages),
        format!("{foreign} foreign crates, {} licences", LICENCES.len()),
    )
}

fn problems(packages: &[Value]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut registries: BTreeMap<&str, String> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let version = package["version"].as_str().unwrap_or_default();
        let named = format!("{name} {version}");
        match package["source"].as_str() {
            None => problems.extend(requirements(name, package)),
            Some(source) if source.starts_with("registry+") || source.starts_with("sparse+") => {
                registries.entry(source).or_insert(named.clone());
            }
            Some(_) => problems.push(format!("{named} does not come from a registry")),
        }
        if let Some(why) = licence::refusal(package["license"].as_str(), &LICENCES) {
            problems.push(format!("{named}: {why}"));
        }
        for (banned, from, why) in BANNED {
            if name == banned && version.starts_with(from) {
                problems.push(format!("{named} is banned: {why}"));
            }
        }
    }
    if registries.len() > 1 {
        let examples: Vec<&str> = registries.values().map(String::as_str).collect();
        problems.push(format!(
            "the crates come from {} registries, for example: {}",
            registries.len(),
            examples.join(", ")
        ));
    }
    problems
}

/// Checks that our own crates depend only on foreign crates of the default registry, and state the
/// versions.
fn requirements(name: &str, package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
    let foreign = dependencies.iter().filter(|dependency| dependency["path"].is_null());
    foreign
        .filter_map(|dependency| {
            let to = dependency["name"].as_str().unwrap_or_default();
            if !dependency["registry"].is_null() {
                Some(format!("{name} -> {to}: not from the default registry"))
            } else if dependency["req"] == "*" {
                Some(format!("{name} -> {to}: any version is allowed; state the version it needs"))
            } else {
                None
            }
        })
        .collect()
}

/// Looks up known vulnerabilities and yanked releases with cargo-deny, if it is installed and
/// reaches its database.
pub(crate) fn advisories(root: &Path) -> Verdict {
    let deny = Cargo::new("deny --all-features check --hide-inclusion-graph advisories");
    let installed = Cargo::new("deny --version").capture(root);
    if !matches!(installed, Ok((true, ..))) {
        return Verdict::Skipped(
            "nothing was looked up, because cargo-deny is not installed".into(),
        );
    }
    match deny.capture(root) {
        Ok((true, ..)) => Verdict::Passed("no known vulnerability".into()),
        Ok((false, _, errors)) => judged(&errors),
        Err(error) => Verdict::Failed(format!("cannot run `{deny}`: {error}")),
    }
}

/// Judges the errors of cargo-deny. If the database could not be fetched, nothing is known about
/// the crates; any other failure is a finding.
fn judged(errors: &str) -> Verdict {
    if errors.contains("failed to fetch advisory database") {
        return Verdict::Skipped(
            "nothing was looked up, because the database of advisories cannot be fetched".into(),
        );
    }
    print!("{errors}");
    Verdict::Failed("the findings are above".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, version: &str, licence: &str) -> Value {
        json!({
            "name": name, "version": version, "license": licence,
            "source": "registry+https://registry.example/index",
        })
    }

    #[test]
    fn allowed_crates_pass() {
        let ours = json!({
            "name": "retryproof-core", "version": "0.1.0", "license": "MIT OR Apache-2.0",
            "source": null,
            "dependencies": [
                {"name": "serde", "req": "^1", "path": null, "registry": null},
                {"name": "retryproof-testkit", "req": "*", "path": "/w/kit", "registry": null},
            ],
        });
        let all = [ours, package("serde", "1.0.0", "MIT"), package("bincode", "2.0.1", "MIT")];
        assert_eq!(problems(&all), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_named() {
        let git = json!({
            "name": "fork", "version": "1.0.0", "license": "MIT",
            "source": "git+https://example.org/fork#abc",
        });
        let elsewhere = json!({
            "name": "other", "version": "1.0.0", "license": "MIT",
            "source": "registry+https://other.example/index",
        });
        let asks = |registry: Value, req: &str| {
            json!({
                "name": "retryproof-http", "version": "0.1.0", "license": "MIT", "source": null,
                "dependencies": [{"name": "x", "req": req, "path": null, "registry": registry}],
            })
        };
        let unlicensed = json!({
            "name": "bare", "version": "1.0.0", "license": null,
            "source": "registry+https://registry.example/index",
        });
        let planted = [
            (vec![package("viral", "3.0.0", "GPL-3.0-only")], "viral 3.0.0: the licence"),
            (vec![unlicensed], "bare 1.0.0: no licence expression"),
            (vec![package("openssl-sys", "0.9.1", "MIT")], "openssl-sys 0.9.1 is banned"),
            (vec![package("bincode", "3.0.0", "MIT")], "bincode 3.0.0 is banned"),
            (vec![package("sqlx-sqlite", "0.9.0", "MIT")], "sqlx-sqlite 0.9.0 is banned"),
            (vec![git], "fork 1.0.0 does not come from a registry"),
            (vec![package("a", "1.0.0", "MIT"), elsewhere], "the crates come from 2 registries"),
            (vec![asks(Value::Null, "*")], "retryproof-http -> x: any version"),
            (vec![asks(json!("https://other.example"), "^1")], "not from the default registry"),
        ];
        for (packages, expected) in planted {
            let found = problems(&packages);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(expected), "{} instead of {expected}", found[0]);
        }
    }

    #[test]
    fn a_database_that_cannot_be_fetched_is_told_from_a_finding() {
        let away = "error: failed to fetch advisory database: connection refused";
        assert!(matches!(judged(away), Verdict::Skipped(_)));
        assert!(matches!(judged("error[vulnerability]: a crate"), Verdict::Failed(_)));
    }
}
