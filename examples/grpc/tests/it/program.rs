// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program as a newcomer runs it.

use std::process::Command;

#[test]
fn cmp_1_the_demo_shows_a_payment_and_its_replay() {
    let output = Command::new(env!("CARGO_BIN_EXE_grpc-payments"))
        .arg("demo")
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "first: receipt 1",
        "retry: receipt 1 of 4200 cents, replayed",
        "InvalidArgument",
        "ledger has 1 entry",
    ] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
}

#[test]
fn cfg_1_bad_arguments_are_told_how_it_is_used() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_grpc-payments")).output().expect("the program starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage"), "{output:?}");
}
