// SPDX-License-Identifier: MIT OR Apache-2.0
//! SQLite: workers share one file. And what is planted in it.

use crate::chaos;

#[test]
fn cmp_1_acq_2_sqlite_holds_under_kills_pauses_and_wrong_clocks() {
    chaos("sqlite", &["--store", "sqlite", "--secs", "30"]).holds();
}

/// Leases so short that a holder is overtaken often, for any of the defects many times over.
const PLANTED: [&str; 6] = ["--store", "sqlite", "--secs", "15", "--lease-ms", "40..120"];

fn planted(defect: &str, faults: &str) -> crate::Ran {
    let ran = chaos(defect, &[&PLANTED[..], &["--faults", faults, "--plant", defect]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    ran
}

#[test]
fn cmp_2_a_store_that_does_not_check_owners_is_caught() {
    let ran = planted("no-owner-check", "stop");
    assert!(ran.broken("S3") > 0, "{}", ran.said);
}

#[test]
fn acq_2_a_takeover_before_expiry_is_caught() {
    let ran = planted("early-takeover", "kill,stop");
    assert!(ran.broken("S2") > 0, "{}", ran.said);
}

#[test]
fn acq_2_a_takeover_in_two_steps_is_caught() {
    let ran = planted("get-then-set", "kill,stop");
    assert!(ran.broken("S2") + ran.broken("S3") + ran.broken("S4") > 0, "{}", ran.said);
}

/// Leases so short, and pauses so many, that a process that was stopped in the middle of its work is overtaken.
const BITING: [&str; 8] = ["--store", "sqlite", "--secs", "15", "--faults", "stop", "--lease-ms", "40..120"];

#[test]
fn acq_10_the_faults_bite_where_the_lease_alone_guards_an_effect() {
    let ran = chaos("bite-lease", &[&BITING[..], &["--guard", "lease"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    assert!(ran.broken("ACQ-10") > 0, "{}", ran.said);
    assert_eq!(ran.broken("S2") + ran.broken("S3") + ran.broken("S4"), 0, "the record held: {}", ran.said);
}

#[test]
fn acq_10_they_do_not_where_the_token_guards_it() {
    let ran = chaos("bite-token", &[&BITING[..], &["--guard", "token"]].concat());
    ran.holds();
    assert_eq!(ran.broken("ACQ-10"), 0);
    assert!(ran.count("refused there for an older token") > 0, "{}", ran.said);
}
