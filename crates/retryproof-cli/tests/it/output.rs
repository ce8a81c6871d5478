// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats, colour and closed pipes.

use std::io::{BufRead as _, BufReader};

use crate::support::{Place, bare, code, err, eventually, out, started};

/// Returns a pipe whose reading end is closed, so that even a short text cannot be written.
fn closed_pipe() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

/// Creates a store with a result, a dead holder, and an entry in the audit table.
fn with_something_to_print() -> Place {
    let place = Place::sqlite();
    for (key, script) in [("k", "echo out; echo err >&2"), ("stuck", "kill -9 $$")] {
        let mut run = place.retryproof(["run", "--lease", "PT0.2S", "work", key, "--", "sh", "-c"]);
        run.arg(script).output().unwrap();
    }
    eventually("the end of the lease", || {
        let stuck = place.retryproof(["stuck", "--output", "jsonl"]).output().unwrap();
        (out(&stuck).lines().count() == 1).then_some(())
    });
    let refused = ["forget", "work", "k", "--token", "1", "--reason", "a test", "--yes"];
    assert_eq!(code(&place.retryproof(refused).output().unwrap()), 4);
    place
}

#[test]
fn json_has_no_control_character_that_a_terminal_obeys() {
    let place = Place::sqlite();
    assert_eq!(code(&place.run(&[], r"printf 'a\302\2332Jb\177'").output().unwrap()), 0);
    for format in ["json", "jsonl"] {
        let get = ["get", "work", "k", "--body", "--output", format];
        let got = place.retryproof(get).output().unwrap().stdout;
        let raw = got.windows(2).any(|two| two == [0xc2, 0x9b]) || got.contains(&0x7f);
        assert!(!raw, "{}", String::from_utf8_lossy(&got).escape_debug());
        let value: serde_json::Value = serde_json::from_slice(&got).unwrap();
        assert!(value.to_string().contains("a\u{9b}2Jb\u{7f}"), "{value}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let place = with_something_to_print();
    let verbs: [&[&str]; 22] = [
        &["get", "work", "k"],
        &["get", "work", "k", "--body"],
        &["get", "work", "k", "--body", "--output", "json"],
        &["ls"],
        &["ls", "--output", "json"],
        &["ls", "--output", "jsonl"],
        &["stuck"],
        &["stats"],
        &["stats", "--output", "json"],
        &["stats", "--by-scope"],
        &["top", "--count", "1"],
        &["doctor"],
        &["doctor", "--output", "jsonl"],
        &["audit"],
        &["export"],
        &["migrate"],
        &["migrate", "--print"],
        &["purge"],
        &["config", "show"],
        &["man"],
        &["completions", "bash"],
        &["--help"],
    ];
    for verb in verbs {
        let output = place.retryproof(verb).stdout(closed_pipe()).output().unwrap();
        let said = err(&output);
        assert_eq!(code(&output), 0, "{verb:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{verb:?}: {said}");
        // Close stderr too, because remarks and warnings are written to it.
        let mut silent = place.retryproof(verb);
        silent.stdout(closed_pipe()).stderr(closed_pipe()).env("RUST_LOG", "debug");
        assert_eq!(silent.status().unwrap().code(), Some(0), "{verb:?}");
    }
    // This run logs a warning.
    let short = ["run", "--lease", "PT0.5S", "work", "warned", "--", "true"];
    let warned = place.retryproof(short).stderr(closed_pipe()).status().unwrap();
    assert_eq!(warned.code(), Some(0));
    let mut closed = started(&mut place.retryproof(["get", "no", "record"]));
    drop(closed.stderr.take());
    assert_eq!(closed.wait().unwrap().code(), Some(1));
}

/// The reader takes the first line of a long output, as `head -1` does.
#[test]
fn a_pipe_that_closes_early_ends_a_long_output() {
    let place = with_something_to_print();
    let large = ["run", "work", "large", "--", "seq", "1", "100000"];
    assert_eq!(code(&place.retryproof(large).output().unwrap()), 0);
    for verb in [&["export"][..], &["get", "work", "large", "--body"]] {
        let mut child = started(&mut place.retryproof(verb));
        let mut first = String::new();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        reader.read_line(&mut first).unwrap();
        drop(reader);
        let ended = child.wait_with_output().unwrap();
        assert_eq!((code(&ended), err(&ended)), (0, String::new()), "{verb:?}");
        assert!(!first.is_empty(), "{verb:?}");
    }
}

/// A change is made and audited even if stdout is a closed pipe.
#[test]
fn ops_3_a_change_is_made_although_its_answer_meets_a_closed_pipe() {
    let place = with_something_to_print();
    let got = place.retryproof(["get", "work", "k", "--output", "json"]).output().unwrap();
    let got: serde_json::Value = serde_json::from_str(&out(&got)).unwrap();
    let token = got["token"].to_string();
    let erase = ["erase", "work", "k", "--token", &token, "--reason", "a test", "--yes"];
    let erased = place.retryproof(erase).stdout(closed_pipe()).output().unwrap();
    assert_eq!(code(&erased), 0, "{}", err(&erased));
    assert!(err(&erased).contains("\"outcome\":\"applied\""), "{}", err(&erased));

    // Without stderr, the first audit line cannot be written, so nothing changes.
    let forget = ["forget", "work", "k", "--token", &token, "--reason", "a test", "--yes"];
    let mut unread = place.retryproof(forget);
    assert_eq!(unread.stderr(closed_pipe()).status().unwrap().code(), Some(5));
    let stays = place.retryproof(["get", "work", "k"]).output().unwrap();
    assert_eq!(code(&stays), 0, "{}", err(&stays));
}

#[test]
fn pipes_get_no_colour() {
    let place = Place::sqlite();
    for verb in [&["--help"][..], &["get", "no", "record"], &["no-verb"], &["stats"]] {
        let output = place.retryproof(verb).output().unwrap();
        assert!(!format!("{}{}", out(&output), err(&output)).contains('\u{1b}'), "{verb:?}");
    }
}

#[test]
fn json_is_one_document_and_jsonl_one_value_per_line() {
    let settings = |format| {
        let output = bare().args(["config", "show", "--output", format]).output().unwrap();
        assert_eq!(code(&output), 0, "{}", err(&output));
        out(&output)
    };
    let json: serde_json::Value = serde_json::from_str(&settings("json")).unwrap();
    let count = json.as_array().unwrap().len();
    assert!(count > 20);
    let lines = settings("jsonl");
    assert_eq!(lines.lines().count(), count);
    for (line, value) in lines.lines().zip(json.as_array().unwrap()) {
        assert_eq!(&serde_json::from_str::<serde_json::Value>(line).unwrap(), value);
    }
}

#[test]
fn usage_errors_have_the_code_2() {
    for arguments in [&["no-verb"][..], &["get", "one"], &["get", "a", ""], &["stats"]] {
        let output = bare().args(arguments).output().unwrap();
        assert_eq!(code(&output), 2, "{arguments:?}: {}", err(&output));
    }
    let output = bare().args(["stats", "--store", "canary"]).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(!err(&output).contains("canary"), "{}", err(&output));
}
