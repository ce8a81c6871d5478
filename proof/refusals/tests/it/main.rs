// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the attribute refuses, and the places at which its messages point (ANN-2); and what it
//! accepts, compiled and run.
//!
//! `tests/ui/fail` has one refused combination per file, beside the compiler's whole output. The
//! type checker refuses `typed_*.rs`. The compiler's words around ours change from release to
//! release, so the output is compared under one release only. After a change, run
//! `TRYBUILD=overwrite cargo test -p refusals` and read the difference.

use std::process::Command;

/// The release whose output is recorded.
const RECORDED: &str = "rustc 1.95.";

#[test]
fn ann_1_ann_2_ann_3_refusals_point_at_their_place() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/[!t]*.rs");
    cases.compile_fail("tests/ui/fail/t[!y]*.rs");
    let version = Command::new("rustc").arg("--version").output().expect("a compiler").stdout;
    if String::from_utf8_lossy(&version).starts_with(RECORDED) {
        cases.compile_fail("tests/ui/fail/typed_*.rs");
    } else {
        println!("SKIPPED: tests/ui/fail/typed_*.rs are recorded for {RECORDED}*");
    }
}
