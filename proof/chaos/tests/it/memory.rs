// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory store answers at once, so the engine sends acquires to it without a future, and the
//! judge counts them. The run has pauses, lost answers and a wall clock that moves. A fault that
//! cannot happen fails the run.

use std::process::Command;

use crate::{chaos, folder};

#[test]
fn acq_2_acq_9_memory_holds_where_acquires_are_sent_without_a_future() {
    let ran = chaos("memory", &["--store", "memory", "--secs", "10"]);
    ran.holds();
    assert!(ran.count("of them without a future") > 0, "{}", ran.said);
    assert!(ran.count("seen by a process") > 0, "{}", ran.said);
}

#[test]
fn acq_7_a_clock_that_cannot_be_moved_fails_the_run() {
    for (store, fault) in [("memory", "clock"), ("sqlite", "jump")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
        command.env("PATH", "/nonexistent").args(["--store", store, "--secs", "1"]);
        let out = folder("no-compiler");
        let output = command.args(["--faults", fault, "--out"]).arg(&out).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("needs a C compiler"), "{said}");
    }
}
