// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wall clock of a store jumps while leases are held (ACQ-7, ACQ-10, CMP-2, STO-4, RUN-1).

use std::process::Command;

#[track_caller]
fn ends(code: i32, said: &str, options: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let output = command.arg("jumps").args(options).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{options:?}: {text}{wrong}");
    assert!(text.contains(said), "{options:?}: {text}{wrong}");
}

#[test]
fn acq_10_cmp_2_sto_4_stores_that_break_their_promises_are_caught() {
    for defect in ["no-owner-check", "time-fenced", "early-purge", "repeated-token"] {
        ends(1, "WRONG: ", &["--store", "sqlite", "--plant", defect]);
    }
}

macro_rules! stores {
    ($($test:ident: $store:literal;)*) => {$(
        #[test]
        fn $test() {
            ends(0, " jumps of the clock", &["--store", $store]);
        }
    )*};
}

stores! {
    acq_7_acq_10_sto_4_sqlite_keeps_its_fencing_when_the_clock_jumps: "sqlite";
    acq_7_acq_10_sto_4_postgres_keeps_its_fencing_when_the_clock_jumps: "postgres";
    acq_7_acq_10_sto_4_mariadb_keeps_its_fencing_when_the_clock_jumps: "mariadb";
    acq_7_acq_10_sto_4_redis_keeps_its_fencing_when_the_clock_jumps: "redis";
}
