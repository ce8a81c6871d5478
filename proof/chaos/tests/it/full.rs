// SPDX-License-Identifier: MIT OR Apache-2.0
//! A disk that is full while a holder works (STO-1, CMP-3, RUN-1).

use std::process::Command;

/// Runs the test on a store, and returns what the test prints.
fn met(store: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let output = command.args(["full", "--store", store]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{wrong}");
    assert!(said.contains("nothing was lost or half done, and the store served again"), "{said}");
    said
}

#[test]
fn sto_1_cmp_3_run_1_sqlite_survives_a_full_disk() {
    let said = met("sqlite");
    for call in ["acquire", "extend", "complete", "release", "purge"] {
        assert!(said.contains(&format!("{call}: Full")), "{said}");
    }
}

#[test]
fn sto_1_cmp_3_run_1_postgres_survives_a_full_disk() {
    let said = met("postgres");
    assert!(said.contains("a new key: Full"), "{said}");
}

#[test]
fn sto_1_cmp_3_run_1_mariadb_survives_a_full_disk() {
    let said = met("mariadb");
    assert!(said.contains("a new key: Full"), "{said}");
}
