// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lock-check`: checks the lock files that users get. `libsqlite3-sys` declares `links`, so a lock
//! file can contain only one version.
//!
//! Each case is a throw-away package below the target folder. It starts from our own lock file, so
//! a release of a foreign crate changes no result.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Verdict;
use crate::cargo::{self, Cargo};

struct Case {
    name: &'static str,
    /// `ROOT` stands for the workspace's folder.
    dependencies: &'static str,
    /// A line that has to be in the lock file, or must not be.
    lock: (bool, &'static str),
    /// Whether the package is also compiled.
    compile: bool,
}

const CASES: [Case; 6] = [
    Case {
        name: "without-sqlite",
        dependencies: "retryproof = { path = \"ROOT/crates/retryproof\", features = [\"axum\", \
             \"postgres-tls\", \"mysql-tls\", \"redis-tls\"] }",
        lock: (false, "name = \"libsqlite3-sys\""),
        compile: false,
    },
    Case {
        // sqlx has its own SQLite driver. The default features of sqlx name this driver even for
        // users of another database.
        name: "sqlite-beside-sqlx",
        dependencies: "retryproof-sqlite = { path = \"ROOT/crates/retryproof-sqlite\" }\nsqlx = \"0.9\"",
        lock: (true, "name = \"sqlx-sqlite\""),
        compile: false,
    },
    Case {
        // A user of one store gets no crate that only other stores need, not even in the lock file:
        // Redis does not need sqlx.
        name: "one-server",
        dependencies: "retryproof = { path = \"ROOT/crates/retryproof\", features = [\"redis-tls\"] }",
        lock: (false, "name = \"sqlx-core\""),
        compile: false,
    },
    Case {
        // The stores on servers use sqlx. Its SQLite driver conflicts with the newest rusqlite, so
        // the lock file must not contain this driver.
        name: "servers-beside-sqlite",
        dependencies: "retryproof = { path = \"ROOT/crates/retryproof\", features = [\"full\"] \
             }\nrusqlite = { version = \"0.41\", default-features = false }",
        lock: (false, "name = \"sqlx-sqlite\""),
        compile: false,
    },
    Case {
        // This user joins transactions of the older sqlx, whose default features name a SQLite
        // driver that conflicts with ours.
        name: "servers-beside-sqlx-08",
        dependencies: "retryproof = { path = \"ROOT/crates/retryproof\", features = \
             [\"postgres-sqlx-08\", \"mysql-sqlx-08\"] }\nsqlx = \"0.8\"",
        lock: (true, "name = \"sqlx-sqlite\"\nversion = \"0.8"),
        compile: false,
    },
    Case {
        // The workspace's lock file has the newest driver, so test the oldest one that we allow.
        name: "oldest-driver",
        dependencies: "retryproof-sqlite = { path = \"ROOT/crates/retryproof-sqlite\" \
             }\nrusqlite = { version = \"=0.37.0\", default-features = false }",
        lock: (true, "name = \"rusqlite\"\nversion = \"0.37.0\""),
        compile: true,
    },
];

pub(crate) fn check(root: &Path) -> Verdict {
    let mut problems = Vec::new();
    for case in &CASES {
        println!("  {}", case.name);
        match run(root, case) {
            Ok(None) => {}
            Ok(Some(problem)) => problems.push(format!("{}: {problem}", case.name)),
            Err(error) => problems.push(format!("{}: {error}", case.name)),
        }
    }
    if !problems.is_empty() && problems.iter().all(|problem| is_offline(problem)) {
        return Verdict::Skipped("the crate registry cannot be reached".into());
    }
    Verdict::of(&problems, format!("{} lock files", CASES.len()))
}

fn run(root: &Path, case: &Case) -> io::Result<Option<String>> {
    let folder = write(root, case)?;
    // A user's other dependencies may require older versions of these two crates. All other crates
    // keep the versions of our lock file.
    let (resolved, _, errors) = Cargo::new("update rusqlite libsqlite3-sys").capture(&folder)?;
    if !resolved {
        return Ok(Some(errors));
    }
    let lock = fs::read_to_string(folder.join("Cargo.lock"))?;
    let (wanted, line) = case.lock;
    if lock.contains(line) != wanted {
        let has = if wanted { "lacks" } else { "has" };
        return Ok(Some(format!("its lock file {has} `{}`", line.replace('\n', " "))));
    }
    if case.compile {
        let check = Cargo::new("check --quiet --locked")
            .env("CARGO_TARGET_DIR", root.join(cargo::target()).to_string_lossy());
        let (compiled, _, errors) = check.capture(&folder)?;
        return Ok((!compiled).then_some(errors));
    }
    Ok(None)
}

fn write(root: &Path, case: &Case) -> io::Result<PathBuf> {
    let folder = root.join(cargo::target()).join("lock-check").join(case.name);
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/lib.rs"), "")?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let (name, dependencies) =
        (case.name, case.dependencies.replace("ROOT", &root.to_string_lossy()));
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \
         \"2024\"\n\n[workspace]\n\n[dependencies]\n{dependencies}\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    Ok(folder)
}

/// Returns whether the error says that Cargo could not reach the index or a download. A conflict of
/// versions has another text.
fn is_offline(problem: &str) -> bool {
    ["failed to download", "Unable to update", "failed to query replaced source", "--offline"]
        .iter()
        .any(|sign| problem.contains(sign))
        && !problem.contains("failed to select a version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_never_taken_for_a_missing_network() {
        assert!(is_offline("error: Unable to update registry `crates-io`"));
        assert!(!is_offline("error: failed to select a version for `libsqlite3-sys`"));
        assert!(!is_offline("its lock file has `name = \"libsqlite3-sys\"`"));
    }
}
