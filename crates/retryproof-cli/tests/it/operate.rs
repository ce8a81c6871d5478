// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs that list records and change them, on a file and on servers.

use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::support::{Place, code, err, eventually, out, started};

/// Runs a verb, and returns its output.
fn verb(place: &Place, arguments: &[&str]) -> Output {
    place.retryproof(arguments).output().unwrap()
}

pub(crate) fn json(place: &Place, arguments: &[&str]) -> Value {
    let output = place.retryproof(arguments).args(["--output", "json"]).output().unwrap();
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

/// Changes a record without a question, and returns the exit code and stderr.
pub(crate) fn change(place: &Place, arguments: &[&str]) -> (i32, String) {
    let mut command = place.retryproof(arguments);
    let output = command.args(["--reason", "a test", "--yes"]).output().unwrap();
    (code(&output), err(&output))
}

/// Starts a run of `work k`, and returns its token.
pub(crate) fn running(place: &Place, lease: &str) -> (Child, String) {
    let mut command = place.run(&["--lease", lease], "echo > up; read line");
    let run = started(command.stdin(Stdio::piped()));
    eventually("a run", || place.path("up").exists().then_some(()));
    let token = json(place, &["get", "work", "k"])["token"].to_string();
    (run, token)
}

pub(crate) fn killed(mut run: Child) {
    run.kill().unwrap();
    run.wait().unwrap();
}

pub(crate) fn records_are_listed_and_changed(place: &Place) {
    // First, the record has a live lease.
    let (run, token) = running(place, "PT1M");
    let (live, said) = change(place, &["release", "work", "k", "--token", &token]);
    assert!(live == 4 && said.contains("live lease (holder: "), "{live}: {said}");
    let (other, said) = change(place, &["release", "work", "k", "--token", "1", "--even-if-live"]);
    assert!(other == 4 && said.contains(&format!("use its token, {token}")), "{other}: {said}");
    let (unfinished, said) = change(place, &["erase", "work", "k", "--token", &token]);
    assert_eq!(unfinished, 4, "{said}");
    let listed = json(place, &["ls", "--scope", "work", "--state", "in-progress", "--show-keys"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["key"]), (1, &"k".into()));
    assert_eq!(json(place, &["stuck"]), Value::Array(Vec::new()));
    killed(run);

    // The holder is dead, and the operator does not wait for the end of the lease.
    let file = place.path("answer.json");
    std::fs::write(&file, b"{\"id\":1}").unwrap();
    let resolve = [
        "resolve",
        "work",
        "k",
        "--token",
        &token,
        "--status",
        "201",
        "--body",
        file.to_str().unwrap(),
        "--even-if-live",
        "--ttl",
        "P1D",
    ];
    // Run the command twice, as an operator would if the first answer were lost. The second run
    // changes nothing.
    for outcome in ["applied", "already_applied"] {
        let (resolved, said) = change(place, &resolve);
        assert_eq!(resolved, 0, "{said}");
        let audit: Vec<Value> =
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let outcomes: Vec<_> = audit.iter().map(|line| &line["outcome"]).collect();
        assert_eq!(outcomes, ["requested", outcome]);
        assert!(audit.iter().all(|line| line["audit"] == "resolve" && line["reason"] == "a test"));
    }
    let got = json(place, &["get", "work", "k", "--body"]);
    assert_eq!((&got["state"], &got["body"]["status"]), (&"complete".into(), &201.into()));
    assert_eq!(got["body"]["body"]["text"], "{\"id\":1}");
    let (finished, said) = change(place, &["release", "work", "k", "--token", &token]);
    assert!(finished == 4 && said.contains("is complete"), "{finished}: {said}");

    // After an erase, the work still does not run again. After a forget, it can run again.
    assert_eq!(change(place, &["erase", "work", "k", "--token", &token]).0, 0);
    assert_eq!(json(place, &["get", "work", "k", "--body"])["body"]["codec"], "tombstone");
    let again = place.run(&[], "echo again").output().unwrap();
    assert_eq!((code(&again), out(&again)), (125, String::new()), "{}", err(&again));
    assert_eq!(change(place, &["forget", "work", "k", "--token", &token]).0, 0);
    let (absent, said) = change(place, &["forget", "work", "k", "--token", &token]);
    assert!(absent == 1 && said.contains("there is no record of work#"), "{absent}: {said}");
    let again = place.run(&[], "echo again").output().unwrap();
    assert_eq!((code(&again), out(&again)), (0, "again\n".to_owned()), "{}", err(&again));

    let counts = json(place, &["stats", "--by-scope"]);
    let work = counts.as_array().unwrap().iter().find(|scope| scope["scope"] == "work").unwrap();
    assert!(work["complete"].as_u64() >= Some(1) && work["in_progress"] == 0, "{counts}");
}

#[test]
fn ops_3_records_are_listed_and_changed() {
    records_are_listed_and_changed(&Place::sqlite());
}

/// Completes a key, and returns its token.
fn completed(place: &Place) -> String {
    let run = place.run(&[], "echo result").output().unwrap();
    assert_eq!(code(&run), 0, "{}", err(&run));
    json(place, &["get", "work", "k"])["token"].to_string()
}

#[test]
fn ops_3_a_repeated_forget_or_erase_spares_the_next_result() {
    let place = Place::sqlite();
    let first = completed(&place);
    let done = |verb: &str, token: &str| {
        let arguments = [verb, "work", "k", "--token", token, "--reason", "a test", "--yes"];
        let output = place.retryproof(arguments).output().unwrap();
        (code(&output), out(&output), err(&output))
    };

    // Without a token, none of these verbs runs, and the message names the verb that shows the
    // token.
    for verb in ["forget", "erase", "release"] {
        let (missing, said) = change(&place, &[verb, "work", "k"]);
        assert!(missing == 2 && said.contains("`retryproof get` prints the token"), "{said}");
    }

    // If the answer to an erase is lost, the repeated command finds that the erase was done.
    let (applied, said, _) = done("erase", &first);
    assert!(applied == 0 && !said.contains("already"), "{said}");
    let (again, said, audit) = done("erase", &first);
    assert!(again == 0 && said.contains("this was done before, so nothing was changed"), "{said}");
    assert!(audit.contains("already_applied"), "{audit}");

    // If the answer to a forget is lost, the repeated command finds no record.
    assert_eq!(done("forget", &first).0, 0);
    let (absent, _, said) = done("forget", &first);
    assert!(absent == 1 && said.contains("released or forgot it"), "{absent}: {said}");

    // If the work has run again since, its result is not the one that the operator saw.
    let second = completed(&place);
    assert_ne!(first, second);
    for verb in ["forget", "erase"] {
        let (moved, _, said) = done(verb, &first);
        assert!(moved == 4 && said.contains("was granted again"), "{moved}: {said}");
    }
    let replay = place.run(&[], "echo again").output().unwrap();
    assert_eq!(out(&replay), "result\n", "the second result stays");
}

#[test]
fn ops_3_a_repeated_resolve_is_told_from_a_late_holder() {
    let place = Place::sqlite();
    // The holder completes late, but before the operator resolves the record.
    let token = completed(&place);
    let resolve = |code| {
        let resolve = ["resolve", "work", "k", "--token", &token, "--exit-code", code];
        change(&place, &[&resolve[..], &["--ttl", "P1D"]].concat())
    };
    let (taken, said) = resolve("0");
    assert!(taken == 4 && said.contains("complete with another result"), "{taken}: {said}");

    assert_eq!(change(&place, &["forget", "work", "k", "--token", &token]).0, 0);
    std::fs::remove_file(place.path("up")).unwrap_or_default();
    let (run, token) = running(&place, "PT1M");
    killed(run);
    let resolve = |code| {
        let resolve = ["resolve", "work", "k", "--token", &token, "--exit-code", code];
        change(&place, &[&resolve[..], &["--ttl", "P1D", "--even-if-live"]].concat())
    };
    assert_eq!(resolve("7").0, 0);
    let (again, said) = resolve("7");
    assert!(again == 0 && said.contains("already_applied"), "{again}: {said}");
    let (other, said) = resolve("8");
    assert!(other == 4 && said.contains("another `resolve` came first"), "{other}: {said}");
    assert_eq!(code(&place.run(&[], "true").output().unwrap()), 7);
}

#[test]
fn ops_4_a_resolve_without_a_ttl_takes_the_one_of_the_scope() {
    let place = Place::sqlite();
    let (run, token) = running(&place, "PT1M");
    killed(run);
    let resolve = ["resolve", "work", "k", "--token", &token, "--done", "--even-if-live"];

    // A default ttl in the configuration does not count, because it may be shorter than the ttl in
    // the program's code.
    let settings = place.path("app.toml");
    let config = ["--config", settings.to_str().unwrap()];
    std::fs::write(&settings, "[idempotency]\ndefault-ttl = \"P9D\"\n").unwrap();
    for arguments in [&resolve[..], &[&resolve[..], &config].concat()] {
        let (missing, said) = change(&place, arguments);
        assert!(missing == 2 && said.contains("`--ttl` is required"), "{missing}: {said}");
        assert_eq!(json(&place, &["get", "work", "k"])["state"], "in_progress");
    }

    std::fs::write(&settings, "[idempotency.scope.work]\nttl = \"P30D\"\n").unwrap();
    let mut command = place.retryproof([&resolve[..], &config].concat());
    let output = command.args(["--reason", "a test", "--yes"]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).contains("30 d"), "{}", out(&output));
    let kept = json(&place, &["get", "work", "k"])["expires_in_ms"].as_u64().unwrap();
    assert!((29..=30).contains(&(kept.div_ceil(86_400_000))), "{kept}");
}

#[cfg(target_os = "linux")]
#[test]
fn ops_3_nothing_changes_if_the_audit_line_cannot_be_written() {
    let place = Place::sqlite();
    let token = completed(&place);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let forget = ["forget", "work", "k", "--token", &token, "--reason", "a test", "--yes"];
    let output = place.retryproof(forget).stderr(full).output().unwrap();
    assert_eq!((code(&output), out(&output)), (5, String::new()));
    assert_eq!(json(&place, &["get", "work", "k"])["state"], "complete");
}

#[test]
fn ops_4_a_dead_holder_is_stuck_until_its_key_is_released() {
    let place = Place::sqlite();
    let (run, token) = running(&place, "PT2S");
    killed(run);
    let stuck = eventually("a stuck key", || {
        let stuck = json(&place, &["stuck", "--scope", "work"]);
        stuck[0]["is_over"].as_bool().filter(|over| *over).map(|_| stuck)
    });
    assert_eq!(stuck[0]["token"].to_string(), token);
    let table = out(&verb(&place, &["stuck"]));
    assert!(table.contains("the next call takes over"), "{table}");
    assert_eq!(change(&place, &["release", "work", "k", "--token", &token]).0, 0);
    assert_eq!(json(&place, &["stuck"]), Value::Array(Vec::new()));
    let fresh = place.run(&[], "echo $RETRYPROOF_ATTEMPT").output().unwrap();
    assert_eq!(out(&fresh), "first\n", "{}", err(&fresh));
}

#[test]
fn ops_3_nothing_changes_without_a_reason_and_a_confirmation() {
    let place = Place::sqlite();
    assert_eq!(code(&place.run(&[], "true").output().unwrap()), 0);
    let unasked = place
        .retryproof(["forget", "work", "k", "--token", "1", "--reason", "x"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(code(&unasked), 2, "{}", err(&unasked));
    assert!(err(&unasked).contains("--yes"), "{}", err(&unasked));
    for wrong in [
        &["forget", "work", "k", "--token", "1", "--yes"][..],
        &["forget", "work", "k", "--token", "1", "--yes", "--reason", ""],
        &[
            "resolve", "work", "k", "--yes", "--reason", "x", "--token", "1", "--done", "--ttl",
            "PT0S",
        ],
        &["release", "work", "k", "--yes", "--reason", "x"],
        &["resolve", "work", "k", "--yes", "--reason", "x", "--token", "1"],
        &[
            "resolve", "work", "k", "--yes", "--reason", "x", "--token", "1", "--done", "--status",
            "200",
        ],
        &["resolve", "work", "k", "--yes", "--reason", "x", "--token", "1", "--status", "99"],
        &["resolve", "work", "k", "--yes", "--reason", "x", "--token", "1", "--json", "missing"],
    ] {
        let output = verb(&place, wrong);
        assert_eq!(code(&output), 2, "{wrong:?}: {}", err(&output));
    }
    assert_eq!(json(&place, &["get", "work", "k"])["state"], "complete");
}

#[test]
fn ops_2_a_list_has_a_limit_and_masks_keys() {
    let place = Place::sqlite();
    for key in ["canary-1", "canary-2", "canary-3"] {
        let run = verb(&place, &["run", "work", key, "--", "true"]);
        assert_eq!(code(&run), 0, "{}", err(&run));
    }
    let cut = verb(&place, &["ls", "--limit", "2", "--output", "jsonl"]);
    assert_eq!((out(&cut).lines().count(), code(&cut)), (2, 0));
    assert!(err(&cut).contains("the list ends at `--limit` 2"), "{}", err(&cut));
    let all = verb(&place, &["ls"]);
    assert!(!format!("{}{}", out(&all), err(&all)).contains("canary"), "{}", out(&all));
    assert_eq!(json(&place, &["ls", "--show-keys"]).as_array().unwrap().len(), 3);
    assert_eq!(json(&place, &["ls", "--holder", "no such holder"]), Value::Array(Vec::new()));
    assert_eq!(json(&place, &["ls", "--older-than", "P1D"]), Value::Array(Vec::new()));
}
