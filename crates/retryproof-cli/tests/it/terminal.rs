// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user sees on a terminal, with and without colour.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::operate::json;
use crate::support::Place;

/// Runs a command on a terminal, and returns its exit code and everything that it wrote there.
pub(crate) fn on_terminal(command: Command) -> (i32, String) {
    answered(command, "")
}

/// Like [`on_terminal`], for a user who types `input` before the command asks.
pub(crate) fn answered(command: Command, input: &str) -> (i32, String) {
    let (mut child, mut controller) = started_on_terminal(command);
    controller.write_all(input.as_bytes()).unwrap();
    let text = text_until(&mut controller, None);
    (child.wait().unwrap().code().unwrap(), text)
}

/// Starts a command on a terminal. Also returns the terminal's other side.
fn started_on_terminal(mut command: Command) -> (Child, File) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let path = std::ffi::OsStr::from_bytes(name.as_bytes());
    let terminal = || File::options().read(true).write(true).open(path).unwrap();
    let child = command
        .stdin(Stdio::from(terminal()))
        .stdout(Stdio::from(terminal()))
        .stderr(Stdio::from(terminal()))
        .spawn()
        .unwrap();
    // `command` still has the terminal open. Drop it, because a read from the terminal ends only
    // when no process has it open.
    drop(command);
    (child, File::from(controller))
}

/// Reads what a command writes to its terminal, up to and including `end`, or all of it.
fn text_until(controller: &mut File, end: Option<&str>) -> String {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    // On Linux, reading fails when the last process has closed the terminal.
    while let Ok(read @ 1..) = controller.read(&mut part) {
        text.extend_from_slice(&part[..read]);
        if end.is_some_and(|end| String::from_utf8_lossy(&text).contains(end)) {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The second command finds the record by a scan, which catches the signal too.
#[test]
fn ops_3_ctrl_c_ends_a_question_and_changes_nothing() {
    let place = Place::sqlite();
    assert!(place.run(&[], "true").status().unwrap().success());
    let got = json(&place, &["get", "work", "k"]);
    let (token, digits) = (got["token"].to_string(), got["key"].as_str().unwrap().to_owned());
    for record in [&["k"][..], &[&digits, "--digest"]] {
        let mut forget = place.retryproof(["forget", "work"]);
        forget.args(record).args(["--token", &token, "--reason", "a test"]);
        let (mut child, mut controller) = started_on_terminal(forget);
        let asked = text_until(&mut controller, Some("[y/N]"));
        assert!(asked.contains("is complete"), "{asked}");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let said = text_until(&mut controller, None);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{record:?}: {said}");
        assert!(said.contains("nothing was changed: interrupted"), "{record:?}: {said}");
    }
    assert_eq!(json(&place, &["get", "work", "k"])["state"], "complete");
    assert_eq!(json(&place, &["audit"]), serde_json::Value::Array(Vec::new()));
}

#[test]
fn a_terminal_without_colour_gets_none() {
    let place = Place::sqlite();
    let verbs: [&[&str]; 5] = [
        &["get", "no", "record"],
        &["no-verb"],
        &["--help"],
        &["ls"],
        // This command logs a warning.
        &["run", "--lease", "PT0.5S", "work", "k", "--", "true"],
    ];
    let coloured = |verb: &[&str], settings: &[(&str, &str)]| {
        let mut command = place.retryproof(verb);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
            command.env_remove(name);
        }
        command.envs(settings.iter().copied());
        on_terminal(command).1.contains('\u{1b}')
    };
    for verb in verbs {
        let says_no: [&[(&str, &str)]; 2] = [&[("TERM", "dumb")], &[("NO_COLOR", "1")]];
        for settings in says_no {
            assert!(!coloured(verb, settings), "{verb:?} {settings:?}");
        }
    }
    // A terminal that supports colour gets colour.
    for verb in [verbs[0], verbs[4]] {
        assert!(coloured(verb, &[("TERM", "xterm-256color")]), "{verb:?}");
    }
}

#[test]
fn ops_8_top_redraws_a_terminal_that_can_move_its_cursor() {
    let place = Place::sqlite();
    let run = place.run(&[], "true").output().unwrap();
    assert!(run.status.success());
    let top = |term: &str| {
        let mut command = place.retryproof(["top", "--count", "2", "--interval", "PT0.1S"]);
        command.env("TERM", term);
        let (code, text) = on_terminal(command);
        assert_eq!(code, 0, "{text}");
        assert_eq!(text.matches("store: sqlite, scopes: 1").count(), 2, "{text}");
        text.matches("\u{1b}[H").count()
    };
    assert_eq!(top("xterm-256color"), 2);
    assert_eq!(top("dumb"), 0);
}
