// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stores with a server. Each run starts its own server, and kills it and shuts it down, while
//! workers are killed and stopped, the server's clock jumps, and the connections to it are cut,
//! delayed, stalled, one-way and half-open at every phase of a call. `cargo xtask services up`
//! installs what the tests need. If something is missing, the test fails and names it.

use crate::{Ran, chaos};

/// Checks that the run found nothing wrong, that other faults happened while a server was down,
/// that a jump of the clock showed in answers, and that clients used half-open connections.
#[track_caller]
fn meets_all(ran: &Ran) {
    ran.holds();
    for count in ["other faults meanwhile", "answers that only they explain"] {
        assert!(ran.count(count) > 0, "{count}: {}", ran.said);
    }
    let left = ran.said.lines().find_map(|line| line.strip_prefix("half-open connections: "));
    let left = left.is_some_and(|left| !left.starts_with("0 given up"));
    assert!(left, "no client met a half-open connection: {}", ran.said);
}

fn holds(store: &str) {
    meets_all(&chaos(store, &["--store", store, "--secs", "30"]));
}

#[test]
fn cmp_1_acq_2_postgres_holds_under_kills_pauses_cuts_and_restarts() {
    holds("postgres");
}

#[test]
fn sto_9_cmp_1_acq_2_the_plain_dialect_holds_under_kills_pauses_cuts_and_restarts() {
    holds("postgres-plain");
}

#[test]
fn cmp_1_acq_2_mariadb_holds_under_kills_pauses_cuts_and_restarts() {
    holds("mariadb");
}

#[test]
fn cmp_1_acq_2_redis_holds_under_kills_pauses_cuts_and_restarts() {
    holds("redis");
}

/// Makes failovers of a group. Workers are not killed, because they would need most of
/// the time of a busy machine to start again. The long runs kill them too.
#[track_caller]
fn fails_over(store: &str) -> Ran {
    let faults = "stop,cut,failover";
    let ran = chaos(store, &["--store", store, "--secs", "40", "--faults", faults]);
    ran.holds();
    assert!(ran.count("fail-overs") > 0, "{}", ran.said);
    ran
}

/// Each failover kills the primary or shuts it down, and promotes a synchronous standby. A killed
/// primary starts again beside the new one. Nothing that was acknowledged is lost.
#[test]
fn cmp_1_sto_7_a_synchronous_standby_loses_nothing() {
    let ran = fails_over("standby");
    assert!(!ran.said.contains("lost inside documented windows"), "{}", ran.said);
}

/// The link to the standby is slow, so a killed primary takes acknowledged writes with it. Only
/// writes that were acknowledged less than the link's delay before the kill, plus a slack, may be
/// lost, and a primary that is shut down loses nothing.
#[test]
fn cmp_1_sto_7_an_asynchronous_standby_loses_only_what_was_under_way_to_it() {
    fails_over("standby-async");
}

/// Each failover kills the primary or demotes it, and promotes the semi-synchronous replica behind
/// the store's one address. A primary that was killed comes back without its data. Nothing that was
/// acknowledged is lost.
#[test]
fn cmp_1_sto_10_a_semi_synchronous_replica_of_mariadb_loses_nothing() {
    let ran = fails_over("mariadb-standby");
    assert!(!ran.said.contains("lost inside documented windows"), "{}", ran.said);
}

#[test]
fn cmp_1_sentinel_holds_outside_of_its_documented_window() {
    meets_all(&chaos("sentinel", &["--store", "sentinel", "--secs", "40"]));
}

#[test]
fn cmp_1_sto_8_a_cluster_holds_outside_of_its_documented_windows() {
    let ran = chaos("cluster", &["--store", "cluster", "--secs", "40"]);
    ran.holds();
    for count in ["other faults meanwhile", "moves of slots, per identity", "interrupted by"] {
        assert!(ran.count(count) > 0, "{count}: {}", ran.said);
    }
}

/// Without a failover, a slot that moves loses nothing.
#[test]
fn cmp_1_sto_8_slots_of_a_cluster_move_without_a_loss() {
    let ran =
        chaos("slots", &["--store", "cluster", "--secs", "15", "--faults", "kill,stop,slots"]);
    ran.holds();
    assert!(!ran.said.contains("lost inside documented windows"), "{}", ran.said);
}
