// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stores with a server, each on a server of the run. The server is killed too, and the
//! connections to it are cut, delayed and stalled at every phase of a call. `cargo xtask services
//! up` installs the servers; if one is missing, the test fails and says so.

use crate::chaos;

fn holds(store: &str) {
    chaos(store, &["--store", store, "--secs", "30"]).holds();
}

#[test]
fn cmp_1_acq_2_postgres_holds_under_kills_pauses_cuts_and_restarts() {
    holds("postgres");
}

#[test]
fn cmp_1_acq_2_mariadb_holds_under_kills_pauses_cuts_and_restarts() {
    holds("mariadb");
}

#[test]
fn cmp_1_acq_2_redis_holds_under_kills_pauses_cuts_and_restarts() {
    holds("redis");
}

#[test]
fn cmp_1_sentinel_holds_outside_of_its_documented_window() {
    chaos("sentinel", &["--store", "sentinel", "--secs", "40"]).holds();
}
