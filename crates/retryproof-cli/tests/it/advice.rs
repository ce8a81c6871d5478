// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the verbs show to an operator who does not know the store: whether the work succeeded,
//! when, why there is no result, and whether a change is needed.

use std::process::Stdio;

use retryproof::clock::wall_clock_micros;
use serde_json::Value;

use crate::operate::{change, json, killed, running};
use crate::support::{Place, bare, code, err, eventually, out};
use crate::terminal::{answered, on_terminal};

fn table(place: &Place, arguments: &[&str]) -> String {
    let output = place.retryproof(arguments).output().unwrap();
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    out(&output)
}

/// Returns the words of the line that begins with `name`.
fn line(table: &str, name: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no line {name}: {table}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// Kills a run of `work k`, and waits until its lease is over. Returns its token.
fn abandoned(place: &Place) -> String {
    let (run, token) = running(place, "PT1S");
    killed(run);
    eventually("the end of the lease", || {
        json(place, &["get", "work", "k"])["is_over"].as_bool().filter(|over| *over)
    });
    token
}

fn now_ms() -> u64 {
    wall_clock_micros() / 1_000
}

#[test]
fn ops_1_get_shows_a_failed_run_without_its_body() {
    let place = Place::sqlite();
    let large = ["--max-output", "1"];
    for (options, ending) in [(&[][..], 3), (&large[..], 4)] {
        let run = place.run(options, &format!("echo out; exit {ending}")).output().unwrap();
        assert_eq!(code(&run), ending, "{}", err(&run));
        let got = json(&place, &["get", "work", "k"]);
        assert_eq!((&got["exit_code"], got.get("body")), (&ending.into(), None));
        let text = table(&place, &["get", "work", "k"]);
        assert_eq!(line(&text, "exit code"), ["exit", "code", &ending.to_string()]);
        assert!(!text.contains("out"), "{text}");
        let token = got["token"].to_string();
        assert_eq!(change(&place, &["forget", "work", "k", "--token", &token]).0, 0);
    }

    // A result that cannot be read does not hide the rest of the record.
    assert_eq!(code(&place.run(&[], "true").output().unwrap()), 0);
    let db = rusqlite::Connection::open(place.db()).unwrap();
    db.execute("UPDATE retryproof_records SET result = x'ff'", []).unwrap();
    let text = table(&place, &["get", "work", "k"]);
    assert!(text.contains("(cannot be read: ") && text.contains("token"), "{text}");
    let body = place.retryproof(["get", "work", "k", "--body"]).output().unwrap();
    assert_eq!((code(&body), out(&body)), (5, String::new()), "{}", err(&body));
}

#[test]
fn ops_1_get_says_why_there_is_no_result() {
    let place = Place::sqlite();
    let why = |key: &str| table(&place, &["get", "work", key, "--body"]);
    let (run, _) = running(&place, "PT1M");
    let live = why("k");
    assert!(live.ends_with("\n(no result yet: the work is in progress)\n"), "{live}");
    killed(run);

    let place = Place::sqlite();
    let why = |key: &str| table(&place, &["get", "work", key, "--body"]);
    abandoned(&place);
    let over = why("k");
    assert!(over.contains("in progress, but its lease is over"), "{over}");
    assert!(over.ends_with("\n(no result: the lease is over)\n"), "{over}");

    let run = ["run", "work", "short", "--ttl", "PT0.001S", "--", "true"];
    assert_eq!(code(&place.retryproof(run).output().unwrap()), 0);
    let expired = why("short");
    assert!(expired.ends_with("\n(no result: it has expired)\n"), "{expired}");
}

#[test]
fn ops_1_get_shows_when_it_happened() {
    let place = Place::sqlite();
    let start = now_ms();
    let (run, _) = running(&place, "PT1M");
    let got = json(&place, &["get", "work", "k"]);
    let text = table(&place, &["get", "work", "k"]);
    let time = |name: &str| got[name].as_u64().unwrap_or_else(|| panic!("{name}: {got}"));
    let (granted, beat) = (time("granted_at_ms"), time("last_beat_at_ms"));
    assert!(start <= granted && granted <= beat && beat <= now_ms(), "{start}: {got}");
    assert_eq!(time("expires_at_ms") - time("expires_in_ms"), granted + time("granted_ago_ms"));
    for name in ["granted", "last beat", "free"] {
        assert!(line(&text, name).iter().any(|word| word.starts_with("UTC")), "{text}");
    }
    killed(run);

    let run = ["run", "done", "k", "--", "true"];
    assert_eq!(code(&place.retryproof(run).output().unwrap()), 0);
    let text = table(&place, &["get", "done", "k"]);
    for name in ["granted", "kept for"] {
        assert!(line(&text, name).contains(&"UTC)".to_owned()), "{text}");
    }
}

/// Checks that an ended lease shows when it ended, and when the last heartbeat was.
pub(crate) fn an_ended_lease_shows_its_end(place: &Place) {
    let start = now_ms();
    abandoned(place);
    for got in [json(place, &["get", "work", "k"]), json(place, &["stuck"])[0].clone()] {
        let time = |name: &str| got[name].as_u64().unwrap_or_else(|| panic!("{name}: {got}"));
        let (beat, ended) = (time("last_beat_at_ms"), time("ended_at_ms"));
        assert!(start <= beat && beat + 1_000 == ended && ended <= now_ms(), "{start}: {got}");
        assert_eq!(time("last_beat_ago_ms"), time("ended_ago_ms") + 1_000);
    }
    let text = table(place, &["get", "work", "k"]);
    for name in ["last beat", "lease ended"] {
        assert!(line(&text, name).iter().any(|word| word.starts_with("UTC")), "{text}");
    }
    let text = table(place, &["stuck"]);
    assert!(text.contains("the next call takes over (lease ended "), "{text}");
}

#[test]
fn rec_2_an_ended_lease_shows_its_end_in_a_file() {
    an_ended_lease_shows_its_end(&Place::sqlite());
}

#[test]
fn http_16_a_missing_record_says_how_to_name_a_key_that_was_sent_over_http() {
    let place = Place::sqlite();
    let hint = "add `--caller CALLER` or `--shared`";
    let forget = ["forget", "work", "k", "--token", "1", "--reason", "a test", "--yes"];
    let digest = ["get", "work", "0123456789abcdef", "--digest"];
    for (arguments, is_hinted) in [
        (&["get", "work", "k"][..], true),
        (&forget, true),
        (&["get", "work", "k", "--shared"], false),
        (&["get", "work", "k", "--caller", "alice"], false),
        (&digest, false),
    ] {
        let output = place.retryproof(arguments).output().unwrap();
        assert_eq!(code(&output), 1, "{}", err(&output));
        assert_eq!(err(&output).contains(hint), is_hinted, "{arguments:?}: {}", err(&output));
    }
}

#[test]
fn ops_1_a_missing_record_says_where_to_look() {
    let place = Place::sqlite();
    let forget = ["forget", "work", "k", "--token", "1", "--reason", "a test", "--yes"];
    for arguments in [&["get", "work", "k"][..], &forget] {
        let said = err(&place.retryproof(arguments).output().unwrap());
        for part in ["an exit code in `--retry-on`", "`stats --by-scope`", "prefix (`config show`)"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // Digits that were passed as a key are not found without `--digest`.
    for key in ["#df8e31284b727053", "df8e31284b727053"] {
        let said = err(&place.retryproof(["get", "work", key]).output().unwrap());
        assert!(said.contains("digits of a key, as `ls` and the logs show them, add `--digest`"));
    }
    let said = err(&place.retryproof(["get", "work", "df8e31284b72705"]).output().unwrap());
    assert!(!said.contains("--digest"), "{said}");
}

#[test]
fn ops_2_an_empty_list_of_stuck_keys_says_how_many_are_in_progress() {
    let place = Place::sqlite();
    let (run, _) = running(&place, "PT1M");
    for (arguments, count) in [(&["stuck"][..], 1), (&["stuck", "--scope", "other"], 0)] {
        let output = place.retryproof(arguments).output().unwrap();
        let said = err(&output);
        let text = format!("no stuck keys; records in progress: {count} (");
        assert!(code(&output) == 0 && said.contains(&text), "{said}");
    }
    killed(run);
    let place = Place::sqlite();
    abandoned(&place);
    let listed = place.retryproof(["stuck"]).output().unwrap();
    assert_eq!(err(&listed), "", "{}", out(&listed));
}

#[test]
fn ops_4_a_run_says_that_an_operator_may_have_released_its_key() {
    let place = Place::sqlite();
    let (mut run, token) = running(&place, "PT1S");
    let _open = run.stdin.take(); // otherwise, the command ends at once
    let release = ["release", "work", "k", "--token", &token, "--even-if-live"];
    assert_eq!(change(&place, &release).0, 0);
    let ended = run.wait_with_output().unwrap();
    assert_eq!(code(&ended), 125, "{}", err(&ended));
    assert!(err(&ended).contains("or an operator released or resolved it"), "{}", err(&ended));
}

#[test]
fn id_4_a_store_that_does_not_answer_is_named_without_its_password() {
    // Nothing listens on the port of a listener that was closed.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for (scheme, database) in [("postgres", "/d"), ("mysql", "/d"), ("redis", "")] {
        let url = format!("{scheme}://u:canary@{address}{database}");
        let named = format!("the configured store is {scheme}://(hidden)@{address}{database}\n");
        for (verb, expected) in [("get", 3), ("run", 125)] {
            let mut command = bare();
            command.env("IDEMPOTENCY_STORE", &url).args([verb, "work", "k"]);
            if verb == "run" {
                command.args(["--", "true"]);
            }
            let output = command.output().unwrap();
            let said = err(&output);
            assert_eq!(code(&output), expected, "{said}");
            assert!(said.ends_with(&named) && !said.contains("canary"), "{said}");
        }
    }
}

#[test]
fn ops_4_a_release_after_the_lease_is_not_needed_and_hides_the_takeover() {
    let place = Place::sqlite();
    let token = abandoned(&place);
    let release = ["release", "work", "k", "--token", &token, "--reason", "a test"];
    let (declined, asked) = answered(place.retryproof(release), "n\n");
    assert_eq!(declined, 4, "{asked}");
    assert!(
        asked.contains("A release is not needed: the next call takes over, and is marked as a"),
        "{asked}"
    );
    assert!(asked.contains("After a release, the next call is a first attempt"), "{asked}");

    // Without a release, the next run is a takeover.
    let script = "echo $RETRYPROOF_ATTEMPT";
    let run = place.run(&[], script).output().unwrap();
    assert_eq!(out(&run), "takeover\n", "{}", err(&run));
    let place = Place::sqlite();
    let token = abandoned(&place);
    let release = ["release", "work", "k", "--token", &token, "--reason", "a test", "--yes"];
    let done = table(&place, &release);
    assert!(done.contains("a first attempt, not a takeover"), "{done}");
    assert_eq!(out(&place.run(&[], script).output().unwrap()), "first\n");

    // Under a live lease, the question must not say that a release is not needed.
    let place = Place::sqlite();
    let (run, live) = running(&place, "PT1M");
    let release = ["release", "work", "k", "--token", &live, "--reason", "x", "--even-if-live"];
    let (_, asked) = answered(place.retryproof(release), "n\n");
    assert!(!asked.contains("is not needed") && asked.contains("as a first attempt"), "{asked}");
    killed(run);
    let help = out(&bare().args(["release", "--help"]).output().unwrap());
    assert!(help.contains("If the lease is over, a release is not needed"), "{help}");
}

#[test]
fn ops_3_a_declined_question_and_a_missing_terminal_change_and_log_nothing() {
    let place = Place::sqlite();
    assert_eq!(code(&place.run(&[], "true").output().unwrap()), 0);
    let token = json(&place, &["get", "work", "k"])["token"].to_string();
    let forget = ["forget", "work", "k", "--token", &token, "--reason", "a test"];
    for answer in ["n\n", "\n", "yess\n"] {
        let (declined, said) = answered(place.retryproof(forget), answer);
        assert!(declined == 4 && said.contains("nothing was changed"), "{declined}: {said}");
        assert!(!said.contains("requested"), "{said}");
    }
    let unasked = place.retryproof(forget).stdin(Stdio::null()).output().unwrap();
    assert_eq!((code(&unasked), out(&unasked)), (2, String::new()), "{}", err(&unasked));
    assert!(!err(&unasked).contains("requested"), "{}", err(&unasked));
    assert_eq!(json(&place, &["get", "work", "k"])["state"], "complete");

    let help = out(&bare().arg("--help").output().unwrap());
    assert!(line(&help, "2 ").join(" ").contains("confirmation"), "{help}");
    assert!(line(&help, "4 ").join(" ").contains("your answer to the question"), "{help}");
    // If the answer is `y`, the record is forgotten.
    let (confirmed, said) = answered(place.retryproof(forget), "y\n");
    assert!(confirmed == 0 && said.contains("requested"), "{confirmed}: {said}");
}

#[test]
fn ops_8_the_counts_of_all_verbs_agree() {
    let place = Place::sqlite();
    abandoned(&place);
    for (key, ttl) in [("short", "PT0.001S"), ("long", "P1D")] {
        let run = ["run", "work", key, "--ttl", ttl, "--", "echo", key];
        assert_eq!(code(&place.retryproof(run).output().unwrap()), 0);
    }
    let all = json(&place, &["stats"]);
    let scope = json(&place, &["stats", "--by-scope"])[0].clone();
    let top = json(&place, &["top", "--count", "1"])["scopes"][0].clone();
    for counts in [&all, &scope, &top] {
        let found = (&counts["in_progress"], &counts["complete"]);
        assert_eq!(found, (&Value::from(1), &Value::from(2)), "{counts}");
    }
    for part in [&scope["lease_over"], &scope["expired"], &top["stuck"]] {
        assert_eq!(part, 1, "{scope} {top}");
    }
    let values = ["short", "long"].map(|key| json(&place, &["get", "work", key]));
    let bytes = values.iter().map(|value| value["value_bytes"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(scope["value_bytes"], bytes);
    assert!(all["store_bytes"].as_u64() > Some(bytes), "{all}");
    assert!(scope["oldest_ms"].is_u64() && top["longest_held_ms"].is_u64(), "{scope} {top}");

    // The help explains each column that the verbs print.
    let help = |verb| out(&bare().args([verb, "--help"]).output().unwrap());
    for (verb, arguments) in [("stats", &["stats", "--by-scope"][..]), ("ls", &["ls"])] {
        let (text, help) = (table(&place, arguments), help(verb));
        let columns = text.lines().next().unwrap().split("  ").map(str::trim);
        for column in columns.filter(|column| !["", "SCOPE", "KEY"].contains(column)) {
            assert!(help.contains(&format!("  {column} ")), "{column}: {help}");
        }
    }
    let (_, shown) = on_terminal(place.retryproof(["top", "--count", "1"]));
    for column in ["IN PROGRESS", "STUCK", "LONGEST HELD", "COMPLETE"] {
        assert!(shown.contains(column) && help("top").contains(column), "{column}: {shown}");
    }
    assert!(help("stuck").contains("only when more than half of the lease has passed"));
    assert!(help("stuck").contains("ps -o pid,stat,lstart,args -p PID"));
}
