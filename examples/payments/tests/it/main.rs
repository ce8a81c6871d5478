// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a newcomer runs it: the demo, a small storm, the checkout page, what operators
//! get, and the errors for bad arguments.

mod admin;
mod board;
mod browser;
mod checkout;
mod http;
mod plot;
mod prometheus;

use std::process::{Command, Output};

fn payments(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_payments")).args(args).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Writes a picture below `target`; with `RETRYPROOF_UPDATE_PICTURE` set, also the one in `docs`.
fn keep_picture(name: &str, picture: &[u8]) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::fs::create_dir_all(format!("{root}/target")).expect("a folder");
    std::fs::write(format!("{root}/target/{name}"), picture).expect("written");
    if std::env::var_os("RETRYPROOF_UPDATE_PICTURE").is_some() {
        std::fs::write(format!("{root}/docs/{name}"), picture).expect("written");
    }
}

#[test]
fn cmp_1_the_demo_shows_a_payment_and_its_replay() {
    let output = payments(&["demo"]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for part in
        ["201 Created   (executed)", "Idempotent-Replayed: true", "422", "The ledger has 1 charge"]
    {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
}

/// Returns the address of a server for tests, from a variable of that name or from the file that
/// `cargo xtask services` wrote.
fn service(variable: &str, name: &str) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
    let variable = format!("RETRYPROOF_TEST_{variable}");
    let written = || {
        let lines = std::fs::read_to_string(file).ok()?;
        lines
            .lines()
            .find_map(|line| Some(line.strip_prefix(&variable)?.strip_prefix('=')?.to_owned()))
    };
    let url = std::env::var(&variable).ok().filter(|url| !url.is_empty()).or_else(written);
    url.unwrap_or_else(|| panic!("no {name} for this test: run `cargo xtask services up {name}`"))
}

fn storm(more: &[&str]) -> String {
    let output =
        payments(&[&["storm", "--keys", "600", "--clients", "32", "--kills", "2"], more].concat());
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.ends_with("every promise held\n"), "{said}");
    assert_eq!(count(&said, "keys (payments)"), 600);
    assert_eq!(count(&said, "killed by SIGKILL"), 2);
    assert_eq!(count(&said, "payments lost"), 0);
    assert_eq!(count(&said, "keys with different answers"), 0);
    assert_eq!(count(&said, "double charges without a known cause"), 0);
    // If nothing had been retried or taken over, the storm would prove nothing.
    assert!(count(&said, "replayed") > 100 && count(&said, "connections cut") > 100, "{said}");
    assert!(count(&said, "taken over") > 0, "{said}");
    said
}

fn count(said: &str, name: &str) -> u64 {
    let row = said.lines().find(|line| line.trim_start().starts_with(name));
    let count = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
    count.unwrap_or_else(|| panic!("no row {name:?} in {said}"))
}

#[test]
fn cmp_7_a_storm_with_kills_charges_no_key_twice() {
    let said = storm(&[]);
    assert_eq!(count(&said, "keys charged more than once"), 0, "{said}");
    assert_eq!(count(&said, "charges"), 600, "{said}");
}

#[test]
fn cmp_7_a_storm_on_postgres_charges_no_key_twice() {
    let url = service("POSTGRES", "postgres");
    let said = storm(&["--store", &url]);
    assert_eq!(count(&said, "keys charged more than once"), 0, "{said}");
    assert_eq!(count(&said, "charges"), 600, "{said}");
}

#[test]
fn acq_2_a_storm_against_two_commits_ends_with_every_double_charge_explained() {
    storm(&["--apart"]);
}

/// A storm whose records are in another store than the ledger, a SQLite file.
fn storm_on(records: &str) {
    let said = storm(&["--records", records]);
    assert!(count(&said, "charges") >= 600, "{said}");
}

#[test]
fn acq_2_a_storm_on_redis_ends_with_every_double_charge_explained() {
    storm_on(&service("REDIS", "redis"));
}

#[test]
fn acq_2_sto_8_a_storm_on_a_cluster_ends_with_every_double_charge_explained() {
    storm_on(&service("CLUSTER", "cluster"));
}

#[test]
fn acq_2_a_storm_on_mariadb_ends_with_every_double_charge_explained() {
    storm_on(&(service("MARIADB", "mariadb") + "?table=storm_records"));
}

#[test]
fn acq_2_sto_7_a_storm_on_a_primary_with_a_standby_ends_with_every_double_charge_explained() {
    storm_on(&(service("STANDBY", "standby") + "?table=storm_records"));
}

#[test]
fn acq_2_sto_9_a_storm_with_the_plain_dialect_ends_with_every_double_charge_explained() {
    storm_on(&(service("POSTGRES", "postgres") + "?table=storm_plain&dialect=plain"));
}

#[test]
fn bad_arguments_name_what_is_wrong() {
    for (args, part) in [
        (&["strom"][..], "strom"),
        (&["serve", "--listen", "nowhere"], "nowhere"),
        (&["storm", "--keys", "0"], "--keys"),
        (&["storm", "--keys"], "needs a value"),
        (&["storm", "--store", "memory:"], "--store takes"),
        (&["demo", "--keys", "3"], "--keys"),
        (&["serve", "--operate", "here"], "here"),
    ] {
        let output = payments(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output).contains(part), "{args:?}: {}", text(&output));
    }
    let nowhere = payments(&["serve", "--listen", "127.0.0.1:0", "--db", "/no/such/folder/p.db"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert_eq!(text(&nowhere).lines().count(), 1, "{}", text(&nowhere));
}
