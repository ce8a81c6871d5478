// SPDX-License-Identifier: MIT OR Apache-2.0
//! `deps-check`: which crate may depend on which, what a published crate may require of its users,
//! and what its package contains.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::tree;

mod package;
mod rust;

/// For each published crate: the crates of ours that it may use, and those that only its tests may
/// use.
const EDGES: [(&str, &[&str], &[&str]); 23] = [
    ("retryproof-duration", &[], &[]),
    ("retryproof-core", &["retryproof-duration"], &[KIT, MEMORY]),
    // The memory store depends only on core. The tests of core and of all adapters may use it.
    (MEMORY, &["retryproof-core"], &[KIT]),
    ("retryproof-macros", &["retryproof-duration"], &[]),
    (KIT, &["retryproof-core", MEMORY], &[]),
    // The stores share these parts, which include no driver and no part of the engine.
    (STORE_KIT, &["retryproof-core"], &[]),
    // The client depends on no other crate, because a caller does not need a service's engine.
    ("retryproof-client", &[], &[]),
    ("retryproof-http", &["retryproof-core"], &[KIT, MEMORY]),
    // The actix adapter uses the protocol that `retryproof-http` implements.
    ("retryproof-actix", &["retryproof-core", "retryproof-http"], &[KIT, MEMORY]),
    // The operators' page runs on axum. It looks up keys in the form that the HTTP filter stores,
    // and prints durations as `retryproof-cli` does.
    ("retryproof-admin", &["retryproof-core", "retryproof-duration", "retryproof-http"], &[MEMORY]),
    ("retryproof-tower", &["retryproof-core"], &[KIT, MEMORY]),
    // Both metrics crates measure the same events, and core contains the parts that they share.
    ("retryproof-metrics", &["retryproof-core"], &[MEMORY]),
    ("retryproof-otel", &["retryproof-core"], &[MEMORY]),
    // Core contains the interface for sealing results. The cipher is in `retryproof-seal`.
    ("retryproof-seal", &["retryproof-core"], &[KIT, MEMORY]),
    ("retryproof-kafka", &["retryproof-core"], &[KIT, MEMORY]),
    ("retryproof-nats", &["retryproof-core"], &[KIT, MEMORY]),
    ("retryproof-sqlite", &["retryproof-core", STORE_KIT], &[KIT]),
    // The keys of sealed results can be in a table in PostgreSQL.
    ("retryproof-postgres", &["retryproof-core", "retryproof-seal", STORE_KIT], &[KIT]),
    ("retryproof-mysql", &["retryproof-core", STORE_KIT], &[KIT]),
    ("retryproof-rabbitmq", &["retryproof-core"], &[KIT, MEMORY]),
    // URLs of Redis contain ISO 8601 durations (CTX-4).
    ("retryproof-redis", &["retryproof-core", "retryproof-duration", STORE_KIT], &[KIT]),
    (
        FACADE,
        &[
            "retryproof-core",
            "retryproof-macros",
            "retryproof-client",
            "retryproof-http",
            "retryproof-actix",
            "retryproof-tower",
            "retryproof-kafka",
            "retryproof-nats",
            MEMORY,
            "retryproof-sqlite",
            "retryproof-postgres",
            "retryproof-mysql",
            "retryproof-rabbitmq",
            "retryproof-redis",
            "retryproof-seal",
        ],
        &[KIT],
    ),
    // The command-line program uses the facade. Its options take ISO 8601 durations (CTX-4).
    ("retryproof-cli", &[FACADE, "retryproof-duration"], &[KIT]),
];
const FACADE: &str = "retryproof";
const KIT: &str = "retryproof-testkit";
/// Published crates that the facade does not re-export, so programs depend on them directly.
const BESIDE_THE_FACADE: [&str; 3] = ["retryproof-admin", "retryproof-metrics", "retryproof-otel"];
/// The crate `fuzz` compiles source files of published crates. These files import other crates of
/// ours.
const FUZZ: &str = "fuzz";
const STORE_KIT: &str = "retryproof-store-kit";
const MEMORY: &str = "retryproof-memory";

/// Drivers, HTTP types and metrics systems, by the beginning of their crates' names; core depends
/// on none of them.
const FOREIGN_TO_CORE: [&str; 18] = [
    "http",
    "hyper",
    "axum",
    "tower",
    "actix",
    "reqwest",
    "rusqlite",
    "libsqlite3",
    "sqlx",
    "tokio-postgres",
    "postgres",
    "deadpool",
    "bb8",
    "mysql",
    "redis",
    "fred",
    "metrics",
    "opentelemetry",
];
const CORE_BELOW: usize = 25;

type Version = (u64, u64);

pub(crate) struct Member {
    pub(crate) name: String,
    manifest: String,
    published: bool,
    rust: Option<Version>,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    /// `normal`, `build` or `dev`.
    kind: String,
    requirement: String,
    optional: bool,
    ours: bool,
}

impl Member {
    /// Returns the crate's folder, from the root.
    pub(crate) fn folder(&self, root: &Path) -> String {
        let folder = Path::new(&self.manifest).parent().unwrap_or(root);
        folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().replace('\\', "/")
    }
}

/// Returns the output of `cargo metadata` for the workspace with all features.
pub(crate) fn metadata(root: &Path) -> Result<Value, String> {
    let cargo = Cargo::new("metadata --format-version 1 --all-features --locked");
    match cargo.capture(root) {
        Ok((true, json, _)) => serde_json::from_str(&json)
            .map_err(|error| format!("cannot parse the output of `{cargo}`: {error}")),
        Ok((false, _, errors)) => Err(format!("`{cargo}` failed: {errors}")),
        Err(error) => Err(format!("cannot run `{cargo}`: {error}")),
    }
}

/// Returns the workspace's own crates.
pub(crate) fn members(metadata: &Value) -> Vec<Member> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages.filter(|package| package["source"].is_null()).map(member).collect()
}

fn member(package: &Value) -> Member {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let dependencies =
        package["dependencies"].as_array().into_iter().flatten().map(|dependency| Dependency {
            name: text(&dependency["name"]),
            kind: dependency["kind"].as_str().unwrap_or("normal").into(),
            requirement: text(&dependency["req"]),
            optional: dependency["optional"] == true,
            ours: !dependency["path"].is_null(),
        });
    Member {
        name: text(&package["name"]),
        manifest: text(&package["manifest_path"]),
        published: !package["publish"].as_array().is_some_and(Vec::is_empty),
        rust: package["rust_version"].as_str().and_then(version),
        dependencies: dependencies.collect(),
    }
}

pub(crate) fn check(root: &Path) -> Verdict {
    let metadata = match metadata(root) {
        Ok(metadata) => metadata,
        Err(why) => return Verdict::Failed(why),
    };
    let members = members(&metadata);
    let published: BTreeSet<&str> =
        members.iter().filter(|m| m.published).map(|m| m.name.as_str()).collect();
    let mut problems: Vec<String> =
        members.iter().flat_map(|member| edge_problems(member, &published)).collect();
    problems.extend(rust::problems(&metadata, &members));
    problems.extend(package::problems(&metadata));
    match tree::files(root, |name| name == "Cargo.toml") {
        Ok(manifests) => {
            problems.extend(manifests.iter().flat_map(|m| weak_features(&m.path, &m.text)))
        }
        Err(error) => problems.push(error.to_string()),
    }
    let core = match core_tree(root) {
        Ok(crates) => crates,
        Err(why) => return Verdict::Failed(why),
    };
    if core.len() >= CORE_BELOW {
        let names: Vec<&str> = core.iter().map(String::as_str).collect();
        problems.push(format!(
            "core depends on {} foreign crates, but fewer than {CORE_BELOW} are allowed: {}",
            core.len(),
            names.join(" ")
        ));
    }
    Verdict::of(
        &problems,
        format!("{} crates of ours; core depends on {} foreign crates", members.len(), core.len()),
    )
}

fn edge_problems(member: &Member, published: &BTreeSet<&str>) -> Vec<String> {
    let name = &member.name;
    let row = EDGES.iter().find(|(row, ..)| row == name);
    let mut problems = Vec::new();
    if member.published && row.is_none() {
        problems.push(format!(
            "{name} is published, but xtask/src/deps.rs does not say what it may depend on"
        ));
        return problems;
    }
    for dependency in &member.dependencies {
        let (to, kind) = (dependency.name.as_str(), dependency.kind.as_str());
        let mut refuse = |why: &str| problems.push(format!("{name} -> {to} ({kind}): {why}"));
        if !dependency.ours {
            match name.as_str() {
                "retryproof-duration" if kind != "dev" => {
                    refuse("this crate must not depend on any crate")
                }
                "retryproof-core"
                    if FOREIGN_TO_CORE.iter().any(|foreign| to.starts_with(foreign)) =>
                {
                    refuse("core must not depend on a database driver or an HTTP crate");
                }
                _ => {}
            }
            continue;
        }
        let Some((_, normal, in_tests)) = row else {
            if name == "xtask" {
                refuse("xtask must not depend on our crates");
            } else if name != FUZZ
                && published.contains(to)
                && ![FACADE, KIT].contains(&to)
                && !BESIDE_THE_FACADE.contains(&to)
            {
                refuse("an unpublished crate must use the facade, which includes this crate");
            }
            continue;
        };
        let test_only = kind == "dev" && in_tests.contains(&to);
        if !published.contains(to) {
            refuse("a published crate must not depend on an unpublished one");
        } else if !test_only && !normal.contains(&to) {
            refuse("xtask/src/deps.rs does not allow this dependency");
        } else if test_only && dependency.requirement != "*" {
            // The testkit depends on core, and core's tests depend on the testkit. If core stated a
            // version of the testkit, neither crate could be released before the other.
            refuse("a dependency on our own test crate must state a path and no version");
        } else if kind != "dev" && !dependency.requirement.starts_with('=') {
            refuse("a dependency on our own crate must state an exact version with `=`");
        } else if name == FACADE && kind != "dev" && to != "retryproof-core" && !dependency.optional
        {
            refuse("the facade's dependencies on its parts must be optional");
        }
    }
    problems
}

/// Returns one problem for each weak feature. A weak feature `x?/y` adds `x` to the lock file even
/// if `x` is off. With `links = "sqlite3"`, that breaks the build of users who have another SQLite
/// driver.
fn weak_features(path: &str, manifest: &str) -> Vec<String> {
    let code = manifest
        .lines()
        .enumerate()
        .map(|(n, line)| (n, line.split('#').next().unwrap_or_default()));
    code.filter(|(_, line)| line.contains("?/"))
        .map(|(n, _)| format!("{path}:{}: weak feature `?/`", n + 1))
        .collect()
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// Returns the foreign crates in the build of a program that uses core alone.
fn core_tree(root: &Path) -> Result<BTreeSet<String>, String> {
    let cargo = Cargo::new("tree -p retryproof-core -e normal --prefix none --locked --format {p}");
    match cargo.capture(root) {
        Ok((true, tree, _)) => Ok(foreign_crates(&tree)),
        Ok((false, _, errors)) => Err(format!("`{cargo}` failed: {errors}")),
        Err(error) => Err(format!("cannot run `{cargo}`: {error}")),
    }
}

fn foreign_crates(tree: &str) -> BTreeSet<String> {
    let names = tree
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join("@"));
    names.filter(|name| !name.starts_with("retryproof-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(name: &str, publish: &Value, dependency: &Value) -> Vec<String> {
        let package = json!({"name": name, "publish": publish, "manifest_path": "/w/x/Cargo.toml", "dependencies": [dependency]});
        let published = EDGES.iter().map(|(name, ..)| *name).collect();
        edge_problems(&member(&package), &published)
    }

    fn ours(name: &str, requirement: &str, kind: &Value) -> Value {
        json!({"name": name, "req": requirement, "kind": kind, "optional": false, "path": "/w/y"})
    }

    #[test]
    fn allowed_edges_pass() {
        let (all, none, normal, dev) = (Value::Null, json!([]), Value::Null, json!("dev"));
        assert!(
            problems("retryproof-core", &all, &ours("retryproof-duration", "=0.1.0", &normal))
                .is_empty()
        );
        assert!(problems("retryproof-core", &all, &ours(KIT, "*", &dev)).is_empty());
        assert!(problems("retryproof-redis", &all, &ours(KIT, "*", &dev)).is_empty());
        for name in [FACADE, "retryproof-otel"] {
            assert!(problems("lab", &none, &ours(name, "=0.1.0", &normal)).is_empty());
        }
        assert!(problems(FUZZ, &none, &ours("retryproof-core", "=0.1.0", &normal)).is_empty());
        // Unpublished crates may use each other: the proof's programs share the model.
        assert!(problems("chaos", &none, &ours("model", "*", &normal)).is_empty());
    }

    #[test]
    fn forbidden_edges_are_refused() {
        let (all, none, normal, dev) = (Value::Null, json!([]), Value::Null, json!("dev"));
        let refused = [
            ("retryproof-core", &all, ours("retryproof-http", "=0.1.0", &normal)),
            ("retryproof-core", &all, ours(KIT, "=0.1.0", &normal)),
            ("retryproof-core", &all, ours(KIT, "=0.1.0", &dev)),
            ("retryproof-core", &all, ours(STORE_KIT, "=0.1.0", &normal)),
            ("retryproof-core", &all, ours("retryproof-duration", "^0.1.0", &normal)),
            ("retryproof-macros", &all, ours("retryproof-core", "=0.1.0", &normal)),
            ("retryproof-http", &all, ours("retryproof-sqlite", "=0.1.0", &dev)),
            ("retryproof-sqlite", &all, ours("model", "*", &dev)),
            ("retryproof-postgres", &all, ours("retryproof-sqlite", "=0.1.0", &normal)),
            ("chaos", &none, ours("retryproof-redis", "=0.1.0", &normal)),
            (FACADE, &all, ours("retryproof-http", "=0.1.0", &normal)),
            ("lab", &none, ours("retryproof-core", "=0.1.0", &normal)),
            ("xtask", &none, ours(FACADE, "=0.1.0", &normal)),
            ("retryproof-new", &all, ours("retryproof-core", "=0.1.0", &normal)),
            (
                "retryproof-core",
                &all,
                json!({"name": "http-body", "req": "^1", "kind": null, "path": null}),
            ),
            (
                "retryproof-duration",
                &all,
                json!({"name": "serde", "req": "^1", "kind": null, "path": null}),
            ),
        ];
        for (name, publish, dependency) in refused {
            assert_eq!(problems(name, publish, &dependency).len(), 1, "{name} -> {dependency}");
        }
    }

    #[test]
    fn weak_features_are_found_outside_comments() {
        assert_eq!(weak_features("x", "a = [\"b?/c\"]\n# d?/e\n"), ["x:1: weak feature `?/`"]);
    }

    #[test]
    fn a_crate_counts_once_and_ours_do_not() {
        let tree = "retryproof-core v0.1.0 (/w)\nbytes v1.0.0\nserde v1.0.0\nbytes v1.0.0 \
             (*)\nsyn v2.0.0\nsyn v3.0.0\n\n";
        assert_eq!(foreign_crates(tree).len(), 4);
    }
}
