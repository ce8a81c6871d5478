// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats, colour and closed pipes.

use crate::support::{Place, bare, code, err, out, started};

#[test]
fn a_closed_pipe_is_no_failure() {
    let place = Place::sqlite();
    let verbs: [&[&str]; 5] = [
        &["config", "show"],
        &["man"],
        &["completions", "bash"],
        &["stats", "--output", "json"],
        &["--help"],
    ];
    for verb in verbs {
        // The reading end is closed first, so that even a short text is written to a closed pipe.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = place.retryproof(verb).stdout(writer).output().unwrap();
        assert_eq!((code(&output), err(&output)), (0, String::new()), "{verb:?}");
    }
    let mut closed = started(&mut place.retryproof(["get", "no", "record"]));
    drop(closed.stderr.take());
    assert_eq!(closed.wait().unwrap().code(), Some(1));
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
