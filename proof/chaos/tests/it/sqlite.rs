// SPDX-License-Identifier: MIT OR Apache-2.0
//! SQLite: workers share one file. The tests also check what the faults do to an effect outside of
//! the file.

use crate::chaos;

#[test]
fn cmp_1_acq_2_sqlite_holds_under_kills_pauses_and_wrong_clocks() {
    chaos("sqlite", &["--store", "sqlite", "--secs", "30"]).holds();
}

/// Options with leases so short, and pauses so frequent, that another owner takes over from a
/// process that was stopped in the middle of its work.
const BITING: [&str; 8] =
    ["--store", "sqlite", "--secs", "15", "--faults", "stop", "--lease-ms", "40..120"];

#[test]
fn acq_10_the_faults_bite_where_the_lease_alone_guards_an_effect() {
    let ran = chaos("bite-lease", &[&BITING[..], &["--guard", "lease"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    assert!(ran.broken("ACQ-10") > 0, "{}", ran.said);
    assert_eq!(
        ran.broken("S2") + ran.broken("S3") + ran.broken("S4"),
        0,
        "the record held: {}",
        ran.said
    );
}

#[test]
fn acq_10_they_do_not_where_the_token_guards_it() {
    let ran = chaos("bite-token", &[&BITING[..], &["--guard", "token"]].concat());
    ran.holds();
    assert_eq!(ran.broken("ACQ-10"), 0);
    assert!(ran.count("refused there for an older token") > 0, "{}", ran.said);
}
