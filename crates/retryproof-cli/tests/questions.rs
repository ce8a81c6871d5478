// SPDX-License-Identifier: MIT OR Apache-2.0
//! The five questions of an operator: the guide's own commands answer each of them within half a
//! minute, on a SQLite file with 200,000 records. The commands are read from the guide, so a change
//! of the guide that breaks one of them fails here.
#![cfg(unix)]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use support::{Place, code, err, eventually, out, started};

#[path = "it/support.rs"]
#[expect(dead_code, reason = "the tests of the command use the rest")]
mod support;

const PAGE: &str = include_str!("../../retryproof/src/guide/operating.md");
const RECORDS: u64 = 200_000;
/// How many records have a dead holder and are therefore never finished.
const STUCK: usize = 25;
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the guide's part under a heading of the second level.
fn part(heading: &str) -> String {
    let after = PAGE.split_once(&format!("\n## {heading}\n"));
    let (_, after) = after.unwrap_or_else(|| panic!("the guide has no part `{heading}`"));
    after.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Returns the commands in the shell blocks of a part. A command continues after a backslash.
fn commands(part: &str) -> Vec<String> {
    let blocks = part.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(|block| {
        let block = block.replace("\\\n", " ");
        block.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines.filter(|line| !line.trim().is_empty()).collect()
}

/// Returns the command that begins with `begin`, from the text of a part.
fn in_text(part: &str, begin: &str) -> String {
    let found = part.split('`').find(|code| code.starts_with(begin));
    let words: Vec<_> =
        found.unwrap_or_else(|| panic!("no `{begin}`")).split_whitespace().collect();
    words.join(" ")
}

/// Returns the word after `--token`.
fn token(command: &str) -> &str {
    let (_, after) = command.split_once("--token ").expect("a token");
    after.split_whitespace().next().expect("a token")
}

/// Runs a line of the guide in a shell. The line has to end within [`LIMIT`].
#[expect(clippy::disallowed_methods, reason = "the time that an operator waits")]
fn answered(place: &Place, line: &str) -> Output {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_retryproof"));
    let folder = program.parent().expect("a folder").display();
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).env_clear().current_dir(place.path("")).stdin(Stdio::null());
    shell.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap_or_default()));
    let began = Instant::now();
    let output = shell.env("IDEMPOTENCY_STORE", &place.url).output().expect("a shell");
    let took = began.elapsed();
    println!("{:6} ms  {line}", took.as_millis());
    assert!(took < LIMIT, "`{line}` took {took:?}");
    output
}

/// Like [`answered`], for a line that succeeds. Returns what the line prints on stdout and on
/// stderr.
fn done(place: &Place, line: &str) -> (String, String) {
    let output = answered(place, line);
    assert_eq!(code(&output), 0, "`{line}`: {}{}", out(&output), err(&output));
    (out(&output), err(&output))
}

fn db(place: &Place) -> Connection {
    Connection::open(place.db()).expect("the file")
}

/// Creates a record, as a copy of the one that `backup 2026-11-22` left. The lease of a record in
/// progress ended a second ago, as if its holder had died.
fn plant(place: &Place, scope: &str, key: &str, state: u8, token: &str) {
    let copied = db(place).execute(
        "INSERT OR REPLACE INTO retryproof_records (scope, key, state, owner, token, takeovers, \
         expires_at, purge_after, holder, fp, result) \
         SELECT CAST(?1 AS BLOB), CAST(?2 AS BLOB), ?3, owner, CAST(?4 AS INTEGER), takeovers, \
         CASE ?3 WHEN 0 THEN unixepoch() * 1000000 - 1000000 ELSE expires_at END, purge_after, \
         holder, fp, CASE ?3 WHEN 0 THEN NULL ELSE result END FROM template",
        (scope, key, state, token),
    );
    assert_eq!(copied.expect("a copy"), 1);
}

/// Creates a store in which a scan has to read many other records before it reaches those that the
/// guide names.
fn filled() -> Place {
    let place = Place::sqlite();
    // This run seems to have begun two hours ago.
    let mut old = Command::new("faketime");
    old.args(["-f", "-2h", env!("CARGO_BIN_EXE_retryproof"), "run", "backup", "old", "--", "true"]);
    old.env("IDEMPOTENCY_STORE", &place.url).env("IDEMPOTENCY_INSTANCE", "pod-7");
    let old = old.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").output().expect("`faketime`");
    assert_eq!(code(&old), 0, "{}", err(&old));
    let begin = part("Run a command once per key");
    let first = commands(&begin).into_iter().next().expect("a first command");
    done(&place, &first);
    let db = db(&place);
    db.execute_batch(&format!(
        "CREATE TABLE template AS SELECT * FROM retryproof_records WHERE key <> CAST('old' AS BLOB);
         BEGIN;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {RECORDS})
         INSERT INTO retryproof_records SELECT CAST('accounts' AS BLOB),
             CAST(printf('order-%08d', i) AS BLOB), state, owner, token + i, takeovers, expires_at,
             purge_after, holder, fp, result, log FROM template, n;
         COMMIT;"
    ))
    .expect("the records");
    for number in 0..STUCK {
        plant(&place, "accounts", &format!("stuck-{number}"), 0, "1763857500000000");
    }
    for key in ["5:alice:order-17", "-:order-17", "a:order-17"] {
        plant(&place, "payments", key, 1, "1763857500000000");
    }
    place
}

/// Starts a run of `backup nightly` that continues until the test ends it.
fn running(place: &Place) -> Child {
    let script = ["run", "backup", "nightly", "--", "sh", "-c", "echo > up; read line"];
    let run = started(place.retryproof(script).stdin(Stdio::piped()));
    eventually("a run", || place.path("up").exists().then_some(()));
    run
}

fn what_happened(place: &Place) {
    let commands = commands(&part("What happened to this key?"));
    assert!(commands.len() >= 4, "{commands:?}");
    for line in commands {
        let (shown, _) = done(place, &line);
        for label in ["state", "complete", "holder", "granted", "kept for", "exit code"] {
            assert!(shown.contains(label), "`{line}` does not show `{label}`: {shown}");
        }
        assert!(!line.contains("--body") || shown.contains("saved"), "{shown}");
    }
}

fn which_are_stuck(place: &Place, run: &Child) {
    let commands = commands(&part("Which keys are stuck?"));
    let [stuck, held, old, process] = &commands[..] else { panic!("{commands:?}") };
    let (shown, _) = done(place, stuck);
    assert_eq!(shown.matches("lease over").count(), STUCK, "{shown}");
    let pid = |line: &str| {
        let holder = line.split_whitespace().find_map(|word| word.rsplit_once(':'));
        holder.map(|(_, pid)| pid.to_owned()).filter(|pid| pid.parse::<u32>().is_ok())
    };
    let dead = shown.lines().find(|line| line.contains("lease over")).and_then(pid);
    let dead = answered(place, &process.replace("4711", &dead.expect("a process")));
    assert!(!dead.status.success(), "{}", out(&dead));

    let (shown, _) = done(place, held);
    let alive = shown.lines().find(|line| line.contains("in progress")).and_then(pid);
    assert_eq!(alive, Some(run.id().to_string()), "{shown}");
    let (alive, _) = done(place, &process.replace("4711", &run.id().to_string()));
    assert!(alive.contains("retryproof run"), "{alive}");

    let (shown, _) = done(place, old);
    assert!(shown.contains("pod-7") && !shown.contains("accounts"), "{shown}");
}

fn who_sends_duplicates(place: &Place, run: &Child) {
    let part = part("Who sends all these duplicates?");
    let level = in_text(&part, "RUST_LOG=");
    let (_, log) = done(place, &format!("{level} retryproof run backup 2026-11-22 -- false"));
    for field in ["scope=backup", "outcome=\"replayed\"", "#df8e31284b727053"] {
        assert!(log.contains(field), "no {field}: {log}");
    }
    let (shown, _) = done(place, &in_text(&part, "ps "));
    assert!(shown.contains(&run.id().to_string()), "{shown}");
}

fn is_it_healthy(place: &Place) {
    let commands = commands(&part("Is the store healthy?"));
    assert_eq!(commands.first().map(String::as_str), Some("retryproof doctor"));
    for line in &commands {
        let (_, said) = done(place, line);
        assert!(!line.ends_with("doctor") || said.contains("errors: 0"), "{said}");
    }
}

fn may_it_be_changed(place: &Place) {
    let commands = commands(&part("May I change this record?"));
    let verbs: Vec<_> = commands.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(verbs, ["release", "resolve", "forget", "erase"]);
    std::fs::write(place.path("answer.json"), "{}").expect("a file");
    for line in commands {
        let in_progress = line.contains(" release ") || line.contains(" resolve ");
        let (scope, key) = match line.contains("--caller alice") {
            true => ("payments", "5:alice:order-17"),
            false => ("backup", "2026-11-22"),
        };
        plant(place, scope, key, u8::from(!in_progress), token(&line));
        let (_, said) = done(place, &format!("{line} --yes"));
        assert!(said.contains("\"outcome\":\"applied\""), "{said}");
    }
}

#[test]
fn ops_1_ops_3_ops_5_the_guides_commands_answer_an_operator_in_half_a_minute() {
    let place = filled();
    what_happened(&place);
    let mut run = running(&place);
    which_are_stuck(&place, &run);
    who_sends_duplicates(&place, &run);
    run.kill().expect("it is killed");
    run.wait().expect("it ends");
    is_it_healthy(&place);
    may_it_be_changed(&place);
}
