// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the end-to-end suite on every store, and on the other web framework: this binary runs
//! itself again for each of them, with `RETRYPROOF_LAB_STORE` and `RETRYPROOF_LAB_FRAMEWORK` set.
//!
//! Without these variables, the suite uses the memory store, and SQLite in tests whose processes
//! share a store.

use std::process::Command;

/// The tests that a suite leaves out: the suites, and tests that do not depend on the store.
const ELSEWHERE: [&str; 5] = [
    "suites::",
    "outage::",
    "refused::",
    "bad_input::cfg_1_sto_1_what_cannot_start_says_why_and_how_it_ends",
    "hostile::id_4_a_refused_store_is_named_without_its_password_wherever_that_stands",
];
/// How many rounds of 100 concurrent duplicates a suite runs, in `duplicates.rs`. The suite in
/// memory runs 1,000 rounds. With this number, a suite takes 20 seconds, and mostly waits for
/// leases.
const ROUNDS: usize = 20;
/// If fewer tests than this have passed, the `--skip` options leave out too many.
const LEAST: usize = 30;

/// The tests that actix-web cannot pass: it supports no trailers, in a request or in an answer.
const NOT_ON_ACTIX: [&str; 1] = ["answers::http_9_trailers_come_back_over_both_protocols"];

fn suite_on(store: &str) {
    suite(store, "axum", &[]);
}

fn suite(store: &str, framework: &str, left_out: &[&str]) {
    let mut suite = Command::new(std::env::current_exe().expect("this program's path"));
    // The tests mostly wait, so run four at a time.
    suite
        .arg("--test-threads=4")
        .args(ELSEWHERE.iter().chain(left_out).flat_map(|name| ["--skip", *name]));
    suite.env("RETRYPROOF_LAB_FRAMEWORK", framework);
    suite.env("RETRYPROOF_LAB_STORE", store).env("LAB_ROUNDS", ROUNDS.to_string());
    let ran = suite.output().expect("this binary runs once more");
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{framework} on {store}:\n{said}\n{errors}");
    let passed = said.split(" passed;").next().and_then(|head| head.rsplit(' ').next());
    let passed: usize = passed.and_then(|number| number.parse().ok()).unwrap_or_default();
    assert!(passed >= LEAST, "{passed} tests of {framework} on {store}:\n{said}");
    println!("{passed} tests of {framework} passed on {store}");
}

/// The suite runs in memory, and with SQLite if processes share a store.
#[test]
fn http_17_the_suite_passes_on_actix() {
    suite("memory", "actix", &NOT_ON_ACTIX);
}

#[test]
fn http_17_the_suite_passes_on_actix_with_sqlite() {
    suite("sqlite", "actix", &NOT_ON_ACTIX);
}

#[test]
fn sto_1_the_suite_passes_on_sqlite() {
    suite_on("sqlite");
}

#[test]
fn sto_1_the_suite_passes_on_postgresql() {
    suite_on("postgres");
}

#[test]
fn sto_1_the_suite_passes_on_postgresql_behind_pgbouncer() {
    suite_on("pgbouncer");
}

#[test]
fn sto_7_the_suite_passes_on_a_primary_with_a_standby() {
    suite_on("standby");
}

#[test]
fn sto_9_the_suite_passes_with_the_plain_dialect() {
    suite_on("plain");
}

#[test]
fn sto_1_the_suite_passes_on_mariadb() {
    suite_on("mariadb");
}

#[test]
fn sto_1_the_suite_passes_on_redis() {
    suite_on("redis");
}

#[test]
fn sto_1_the_suite_passes_on_redis_behind_sentinel() {
    suite_on("sentinel");
}

#[test]
fn sto_8_the_suite_passes_on_a_redis_cluster() {
    suite_on("cluster");
}
