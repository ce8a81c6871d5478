// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same end-to-end suite on every store, and on the other web framework: this binary runs
//! itself once more for each, with `RETRYPROOF_LAB_STORE` and `RETRYPROOF_LAB_FRAMEWORK` set.
//!
//! The run without that variable is the one in memory, with SQLite where processes share a store.

use std::process::Command;

/// What a suite leaves out: itself, and what does not depend on the store.
const ELSEWHERE: [&str; 5] = [
    "suites::",
    "outage::",
    "refused::",
    "bad_input::cfg_1_sto_1_what_cannot_start_says_why_and_how_it_ends",
    "hostile::id_4_a_refused_store_is_named_without_its_password_wherever_that_stands",
];
/// Of the 1,000 rounds of 100 concurrent duplicates that run in memory: the one test whose length
/// depends on a number. A suite then takes a third of a minute, most of it spent in waiting for
/// leases.
const ROUNDS: usize = 20;
/// Fewer than this many tests are a filter that went wrong.
const LEAST: usize = 30;

/// What actix-web cannot do: it has no place for trailers, in a request or in an answer.
const NOT_ON_ACTIX: [&str; 1] = ["answers::http_9_trailers_come_back_over_both_protocols"];

fn suite_on(store: &str) {
    suite(store, "axum", &[]);
}

fn suite(store: &str, framework: &str, left_out: &[&str]) {
    let mut suite = Command::new(std::env::current_exe().expect("this binary has a path"));
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

/// In memory, and with SQLite where processes share a store.
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
