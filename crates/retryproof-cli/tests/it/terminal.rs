// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user sees on a terminal, with and without colour.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::Place;

/// Runs a command on a terminal, and returns its exit code and everything that it wrote there.
pub(crate) fn on_terminal(command: Command) -> (i32, String) {
    answered(command, "")
}

/// Like [`on_terminal`], for a user who types `input` before the command asks.
pub(crate) fn answered(mut command: Command, input: &str) -> (i32, String) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let path = std::ffi::OsStr::from_bytes(name.as_bytes());
    let terminal = || File::options().read(true).write(true).open(path).unwrap();
    let mut child = command
        .stdin(Stdio::from(terminal()))
        .stdout(Stdio::from(terminal()))
        .stderr(Stdio::from(terminal()))
        .spawn()
        .unwrap();
    // `command` still has the terminal open. Drop it, because a read from the terminal ends only
    // when no process has it open.
    drop(command);
    let mut controller = File::from(controller);
    controller.write_all(input.as_bytes()).unwrap();
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    // On Linux, reading fails when the last process has closed the terminal.
    while let Ok(read @ 1..) = controller.read(&mut part) {
        text.extend_from_slice(&part[..read]);
    }
    let code = child.wait().unwrap().code().unwrap();
    (code, String::from_utf8_lossy(&text).into_owned())
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
