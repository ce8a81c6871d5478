// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of the table that `cargo xtask test` runs: the kit on the embedded stores. The other
//! parts would take too long.

use std::process::Command;

fn bite(options: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_bite")).args(options).output();
    let output = output.expect("the program should start");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("it should print text"))
}

#[test]
fn sto_2_the_kit_catches_each_defect_of_an_embedded_store() {
    let (code, said) = bite(&["--layers", "kit", "--stores", "memory,sqlite"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no-wake-up           sqlite    kit         acq_4_"), "{said}");
    assert!(said.contains("0 empty cells"), "{said}");
}

#[test]
fn a_store_that_cannot_be_opened_has_caught_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bite"));
    command.args(["--layers", "kit", "--stores", "redis", "--defects", "deaf"]);
    let output = command.env("RETRYPROOF_TEST_REDIS", "redis://127.0.0.1:1").output();
    let output = output.expect("the program should start");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("2 empty cells"), "{said}");
}
