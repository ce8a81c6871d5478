// SPDX-License-Identifier: MIT OR Apache-2.0
//! `top` without a terminal.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Place, code, err, eventually, out, started};

/// Checks that two snapshots of `top` count a result and a run in progress.
pub(crate) fn scopes_are_counted(place: &Place) {
    let done = place.retryproof(["run", "done", "k", "--", "true"]).output().unwrap();
    assert_eq!(code(&done), 0, "{}", err(&done));
    let mut run = place.run(&["--lease", "PT1M"], "echo > up; read line");
    let mut run = started(run.stdin(Stdio::piped()));
    eventually("a run", || place.path("up").exists().then_some(()));

    let top = place.retryproof(["top", "--count", "2", "--interval", "PT0.1S"]).output().unwrap();
    assert_eq!(code(&top), 0, "{}", err(&top));
    let snapshots: Vec<Value> =
        out(&top).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(snapshots.len(), 2, "{}", out(&top));
    for snapshot in &snapshots {
        let scopes = snapshot["scopes"].as_array().unwrap();
        let counts: Vec<_> = scopes
            .iter()
            .map(|scope| {
                let count = |name: &str| scope[name].as_u64().unwrap();
                (scope["scope"].as_str().unwrap(), count("in_progress"), count("complete"))
            })
            .collect();
        assert_eq!(counts, [("work", 1, 0), ("done", 0, 1)], "{snapshot}");
        assert!(scopes[0]["longest_held_ms"].is_u64() && scopes[0]["stuck"] == 0, "{snapshot}");
    }
    assert!(snapshots[0]["at_ms"].as_u64() < snapshots[1]["at_ms"].as_u64());
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn ops_8_top_counts_again_and_again() {
    scopes_are_counted(&Place::sqlite());
}

#[test]
fn ops_8_a_closed_pipe_or_ctrl_c_ends_top() {
    let place = Place::sqlite();
    let top = || started(&mut place.retryproof(["top", "--interval", "PT0.1S"]));
    let mut closed = top();
    drop(closed.stdout.take());
    let closed = closed.wait_with_output().unwrap();
    assert_eq!((code(&closed), err(&closed)), (0, String::new()));

    let mut interrupted = top();
    let mut reader = BufReader::new(interrupted.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    let pid = interrupted.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let interrupted = interrupted.wait_with_output().unwrap();
    assert_eq!((code(&interrupted), err(&interrupted)), (0, String::new()));
}

#[test]
fn ops_8_a_short_interval_is_a_usage_error() {
    let place = Place::sqlite();
    for wrong in [["--interval", "PT0S"], ["--interval", "PT0.09S"], ["--count", "0"]] {
        let output = place.retryproof(["top"]).args(wrong).output().unwrap();
        assert_eq!(code(&output), 2, "{wrong:?}: {}", err(&output));
    }
}
