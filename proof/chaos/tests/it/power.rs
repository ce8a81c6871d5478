// SPDX-License-Identifier: MIT OR Apache-2.0
//! Power losses on a SQLite file: every answer that a caller got survives (CMP-1), no result is
//! changed (CMP-6), joined writes and their records survive or are lost together (CMP-7), and
//! tokens grow (ACQ-10). The same run fails on a disk that acknowledges syncs without making them.
//!
//! With `RETRYPROOF_LOSSES=5000`, each run makes that many power losses.

use std::process::Command;

/// Returns how many power losses a run makes.
fn asked(count: u64) -> u64 {
    let asked = std::env::var("RETRYPROOF_LOSSES").ok();
    asked.map_or(count, |asked| asked.parse().expect("RETRYPROOF_LOSSES is a number"))
}

/// Makes a run, and returns its exit code and its output.
fn losses(count: u64, options: &[&str]) -> (Option<i32>, String) {
    let count = asked(count).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command.args(["power", "--losses", &count]).args(options);
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(" power losses of "), "{said}{wrong}");
    (output.status.code(), said)
}

/// Returns the number that the output states before the word `what`.
fn count(said: &str, what: &str) -> u64 {
    let end = said.rfind(&format!(" {what}")).unwrap_or_else(|| panic!("no `{what}` in {said}"));
    let digits = said[..end].rsplit(' ').next().and_then(|count| count.parse().ok());
    digits.unwrap_or_else(|| panic!("no number of `{what}` in {said}"))
}

#[test]
fn cmp_1_cmp_6_cmp_7_acq_10_full_loses_nothing_with_the_power() {
    let (code, said) = losses(200, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(count(&said, "power losses"), asked(200), "{said}");
    assert!(count(&said, "records told") > 100, "{said}");
}

/// With `synchronous = normal`, a power loss may lose the last commits, as the guide says, and
/// nothing else.
#[test]
fn cmp_1_cmp_7_normal_loses_only_the_last_commits() {
    let (code, said) = losses(100, &["--synchronous", "normal"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(count(&said, "power losses"), asked(100), "{said}");
    assert!(count(&said, "lost") > 0, "the losses are too small to lose a commit: {said}");
}

/// A run ends early if a loss damages a file so that no process can continue with it. A run on a
/// busy machine writes so few records that it may lose none of them by chance, as one did in the
/// gate. So the test makes up to ten runs.
#[test]
fn cmp_1_a_disk_that_swallows_syncs_is_noticed() {
    for which in ["all", "folders"] {
        let is_noticed = |_| {
            let (code, said) = losses(32, &["--swallow", which]);
            let is_lost = count(&said, "lost") + count(&said, "damaged files") > 0;
            assert_eq!(code, Some(i32::from(is_lost)), "{said}");
            is_lost
        };
        assert!((0..10).any(is_noticed), "{which}");
    }
}
