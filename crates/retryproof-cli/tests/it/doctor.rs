// SPDX-License-Identifier: MIT OR Apache-2.0
//! `doctor` names planted faults. Faults of a server's settings and of privileges are planted in
//! the tests of each store.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::servers::{hashed_on_servers, mariadb, postgres, redis};
use crate::support::{Place, SECRET_VARIABLE, bare, code, err, out};

/// Runs `doctor`, and returns its findings and its exit code.
fn findings(command: &mut Command) -> (Vec<Value>, i32) {
    let output = command.args(["doctor", "--output", "json"]).output().expect("it runs");
    let parsed = serde_json::from_str(&out(&output));
    (parsed.unwrap_or_else(|error| panic!("{error}: {}", err(&output))), code(&output))
}

fn ids(findings: &[Value]) -> Vec<&str> {
    findings.iter().filter_map(|finding| finding["finding"].as_str()).collect()
}

/// Returns the problem that the finding `id` names.
fn problem<'a>(findings: &'a [Value], id: &str) -> &'a str {
    let found = findings.iter().find(|finding| finding["finding"] == id);
    found.unwrap_or_else(|| panic!("no {id}: {findings:#?}"))["problem"].as_str().expect("a text")
}

/// Returns the command with a clock that differs by `offset`, such as `-5s`. The Debian package
/// `faketime` has the program; `cargo xtask services up postgres` installs it.
fn with_clock(place: &Place, offset: &str) -> Command {
    let mut command = Command::new("faketime");
    command.args(["-f", offset, env!("CARGO_BIN_EXE_retryproof")]);
    command.env("IDEMPOTENCY_STORE", &place.url).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

fn doctor(place: &Place) -> Output {
    place.retryproof(["doctor"]).output().expect("it runs")
}

#[test]
fn ops_5_a_healthy_store_has_notes_only() {
    let place = Place::sqlite();
    let (found, code) = findings(&mut place.retryproof([""; 0]));
    assert_eq!((ids(&found), code), (vec!["latency", "identities", "backup"], 0), "{found:#?}");
    assert!(problem(&found, "latency").contains("ms (p99)"));
    assert!(problem(&found, "backup").contains("restore"));
    for finding in &found {
        assert_eq!(finding["severity"], "note");
        assert!(finding["advice"].as_str().is_some_and(|advice| advice.ends_with('.')));
    }
    let shown = doctor(&place);
    assert!(out(&shown).starts_with("note     latency\n  10 reads took "), "{}", out(&shown));
    assert!(err(&shown).contains("errors: 0, warnings: 0, notes: 3"), "{}", err(&shown));
    let examined = format!("retryproof: examining {} (table: retryproof_records)\n", place.url);
    assert!(err(&shown).starts_with(&examined), "{}", err(&shown));
    let lines = place.retryproof(["doctor", "--output", "jsonl"]).output().expect("it runs");
    assert_eq!(out(&lines).lines().count(), 3);

    let memory = bare().args(["doctor", "--store", "memory:"]).output().expect("it runs");
    assert!(out(&memory).contains("note     memory\n"), "{}", out(&memory));
    assert_eq!(memory.status.code(), Some(0));
}

#[test]
fn ops_5_planted_faults_of_a_file_are_named() {
    let place = Place::sqlite();
    // The clock of the program that writes this record is two days behind.
    let run = ["run", "work", "k", "--ttl", "PT1H", "--", "true"];
    let ran = with_clock(&place, "-2d").args(run).output().expect("it runs");
    assert_eq!(code(&ran), 0, "{}", err(&ran));
    let url = format!("{}?synchronous=normal", place.url);
    let (found, code) = findings(bare().args(["--store", &url]));
    assert_eq!(
        ids(&found),
        ["synchronous", "purge", "latency", "identities", "backup"],
        "{found:#?}"
    );
    assert!(problem(&found, "purge").contains("47 h"), "{found:#?}");
    assert_eq!(code, 0, "warnings only");

    // The clock of the program that writes this record is 5 s ahead of the clock of the diagnosis.
    let ran = place.retryproof(["run", "work", "now", "--", "true"]).output().expect("it runs");
    assert_eq!(ran.status.code(), Some(0), "{}", err(&ran));
    let (found, _) = findings(&mut with_clock(&place, "-5s"));
    assert!(problem(&found, "clock").contains("s behind the last grant"), "{found:#?}");

    let db = rusqlite::Connection::open(place.db()).expect("opened");
    db.query_row("PRAGMA journal_mode=DELETE", [], |_| Ok(())).expect("changed");
    drop(db);
    for _ in 0..2 {
        // Diagnose twice, to check that the first diagnosis does not change the setting back.
        let (found, _) = findings(&mut place.retryproof([""; 0]));
        assert!(problem(&found, "journal_mode").contains("`delete`"), "{found:#?}");
    }
}

#[test]
fn ops_5_a_log_that_is_not_emptied_is_named() {
    let place = Place::sqlite();
    let log = std::fs::File::create(place.path("records.db-wal")).expect("a log");
    log.set_len(65 << 20).expect("extended");
    let (found, _) = findings(&mut place.retryproof([""; 0]));
    assert!(problem(&found, "wal").contains("65 MiB"), "{found:#?}");
}

#[test]
fn ops_5_missing_tables_are_an_error() {
    let place = Place::sqlite();
    let missing = format!("sqlite:{}", place.path("new.db").display());
    let (found, code) = findings(bare().args(["--store", &missing]));
    assert_eq!((ids(&found), code), (vec!["schema", "backup"], 4), "{found:#?}");
    assert!(!place.path("new.db").exists(), "it changes nothing");
    let other = format!("{}?table=other", place.url);
    let (found, code) = findings(bare().args(["--store", &other]));
    assert_eq!((ids(&found), code), (vec!["schema", "backup"], 4), "{found:#?}");
    for place in [postgres(), mariadb()] {
        let other = format!("{}_other", place.url);
        let (found, code) = findings(bare().args(["--store", &other]));
        assert_eq!(found[0]["finding"], "schema", "{found:#?}");
        assert_eq!(code, 4, "{found:#?}");
    }
}

#[test]
fn ops_5_a_clock_that_is_5_s_off_is_named_on_every_server() {
    for place in [postgres(), mariadb(), redis()] {
        let (found, _) = findings(&mut place.retryproof([""; 0]));
        assert!(!ids(&found).contains(&"clock"), "{found:#?}");
        for (offset, which) in [("+5s", "s behind the clock"), ("-5s", "s ahead of the clock")] {
            let (found, code) = findings(&mut with_clock(&place, offset));
            let clock = problem(&found, "clock");
            assert!(clock.contains(which), "{clock}");
            let tenths = ["5.0 s", "4.9 s", "5.1 s"];
            assert!(tenths.iter().any(|by| clock.contains(by)), "{clock}");
            assert_eq!(code, 0, "{found:#?}");
        }
    }
}

#[test]
fn ops_5_id_5_the_form_of_the_keys_and_another_secret_are_named_on_every_store() {
    let plain = [Place::sqlite(), postgres(), mariadb(), redis()];
    let [postgres, mariadb, redis] = hashed_on_servers();
    let hashed = [Place::hashed_sqlite(), postgres, mariadb, redis];
    for (places, kept, other) in [
        (plain, "keeps keys as they are sent", "set up without an identity secret"),
        (hashed, "keeps digests", "set up with another identity secret"),
    ] {
        for place in places {
            let (found, code) = findings(&mut place.retryproof([""; 0]));
            assert!(problem(&found, "identities").contains(kept), "{found:#?}");
            assert_eq!(code, 0, "{found:#?}");

            let secret = "canary-".repeat(5);
            let mut command = place.retryproof([""; 0]);
            let (found, code) = findings(command.env(SECRET_VARIABLE, secret));
            assert_eq!((found[0]["finding"].as_str(), code), (Some("identities"), 4), "{found:#?}");
            assert_eq!(found[0]["severity"], "error");
            let said = problem(&found, "identities");
            assert!(said.contains(other) && !said.contains("canary"), "{said}");
            assert!(!ids(&found).contains(&"connect"), "named once: {found:#?}");
        }
    }
}

#[test]
fn ops_5_asynchronous_commits_are_named() {
    let place = postgres();
    let url = format!("{}&options=-c%20synchronous_commit=off", place.url);
    let (found, code) = findings(bare().args(["--store", &url]));
    assert!(problem(&found, "synchronous_commit").contains("last commits"), "{found:#?}");
    assert_eq!(code, 0);
}

#[test]
fn ops_5_a_server_that_is_away_or_a_wrong_setting_has_its_exit_code() {
    for (url, expected) in [
        ("postgres://app:canary@127.0.0.1:1/shop", 3),
        ("mysql://app:canary@127.0.0.1:1/shop", 3),
        ("redis://:canary@127.0.0.1:1", 3),
        ("canary", 2),
    ] {
        let mut command = bare();
        let output = command.args(["doctor", "--store", url]).stdin(Stdio::null()).output();
        let output = output.expect("it runs");
        assert_eq!((code(&output), out(&output)), (expected, String::new()), "{}", err(&output));
        assert!(!err(&output).contains("canary"), "{}", err(&output));
    }
}

/// The user `nobody`, whom file permissions restrict even if the tests run as root.
const NOBODY: u32 = 65_534;

/// Returns the command, run as a user whom the permissions of `place` restrict: the current user,
/// or `nobody` if the current user is root. Because `nobody` may be unable to read the command's
/// own file, the command is copied.
fn as_a_user_without_rights(place: &Place) -> Command {
    let mut command = place.retryproof([""; 0]);
    if rustix::process::geteuid().is_root() {
        let program = place.path("retryproof");
        if !program.exists() {
            let original = env!("CARGO_BIN_EXE_retryproof");
            std::fs::hard_link(original, &program)
                .or_else(|_| std::fs::copy(original, &program).map(drop))
                .expect("a link or a copy");
        }
        let mut other = Command::new(program);
        other.env_clear().env("IDEMPOTENCY_STORE", &place.url).uid(NOBODY).gid(NOBODY);
        command = other;
    }
    command
}

#[test]
fn ops_5_a_missing_privilege_on_the_file_or_its_folder_is_named() {
    let place = Place::sqlite();
    let ran = place.run(&[], "true").output().expect("it runs");
    assert_eq!(code(&ran), 0, "{}", err(&ran));
    let (folder, file) = (place.path(""), place.db());
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    };
    let is_root = rustix::process::geteuid().is_root();
    let owned_by = |path: &Path, user| {
        if is_root {
            std::os::unix::fs::chown(path, Some(user), Some(user)).expect("an owner");
        }
    };
    let without_log = || {
        for name in ["records.db-wal", "records.db-shm"] {
            let _ = std::fs::remove_file(place.path(name));
        }
    };
    let examined = || findings(&mut as_a_user_without_rights(&place));
    let faulty = |expected: &str| {
        without_log();
        let state = || {
            let file = std::fs::metadata(&file).expect("the file");
            (file.len(), file.modified().expect("a time"))
        };
        let before = state();
        let (found, code) = examined();
        assert_eq!((found[0]["finding"].as_str(), code), (Some("privilege"), 4), "{found:#?}");
        assert_eq!(found[0]["severity"], "error");
        let said = problem(&found, "privilege");
        assert!(said.contains(expected), "{expected}: {said}");
        let advice = found[0]["advice"].as_str().expect("a text");
        assert!(advice.contains("write to the file, to the files beside it and to their folder"));
        assert!(!ids(&found).contains(&"connect"), "{found:#?}");
        assert_eq!(state(), before, "it changes nothing");
    };

    // Everything is allowed.
    mode(&folder, 0o777);
    owned_by(&file, NOBODY);
    let (found, code) = examined();
    assert_eq!((ids(&found), code), (vec!["latency", "identities", "backup"], 0), "{found:#?}");

    // First the file can only be read, and then not even that.
    mode(&file, 0o444);
    faulty(&format!("write to {}", file.display()));
    owned_by(&file, 0);
    mode(&file, if is_root { 0o600 } else { 0 });
    faulty(&format!("read and write {}", file.display()));

    // No file can be created beside the store's file.
    owned_by(&file, NOBODY);
    mode(&file, 0o644);
    mode(&folder, 0o555);
    faulty(&format!("create and write {}-wal and {}-shm", file.display(), file.display()));

    // Neither.
    mode(&file, 0o444);
    faulty("-shm");
    mode(&file, 0o644);
    mode(&folder, 0o755);
}
