// SPDX-License-Identifier: MIT OR Apache-2.0
//! `export` and `import`: records that move to another store.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use retryproof::store::{AcquireRequest, Acquired, HolderNote};
use retryproof::{IdempotencyStore as _, Identity, OwnerId};
use serde_json::Value;

use crate::scan::position;
use crate::support::{Place, code, err, eventually, out, started};

fn export(place: &Place, arguments: &[&str]) -> Output {
    place.retryproof(["export"]).args(arguments).output().unwrap()
}

fn import(place: &Place, file: &std::path::Path) -> Output {
    let mut command = place.retryproof(["import", "--reason", "a test", "--yes"]);
    command.args(["--output", "json"]).arg(file).output().unwrap()
}

fn counts(imported: &Output) -> Value {
    serde_json::from_str(&out(imported)).unwrap_or_else(|_| panic!("{}", err(imported)))
}

/// Returns the lines of an export, by their keys.
fn records(text: &str) -> BTreeMap<String, Value> {
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| (line["key"].as_str().unwrap().to_owned(), line)).collect()
}

/// Stores the results of two commands: the output of one is not text, and the output of the other
/// is too large to be kept.
fn with_results(place: &Place) {
    let all: &[(&[&str], &str)] = &[
        (&["binary"], "printf 'a\\377\\000b'; exit 3"),
        (&["large", "--max-output", "1"], "echo no"),
    ];
    for (key, script) in all {
        let mut run = place.retryproof(["run", "work"]);
        let run = run.args(*key).args(["--", "sh", "-c", script]).output().unwrap();
        assert!(matches!(code(&run), 0 | 3), "{}", err(&run));
    }
}

/// Exports all records of a store, and imports them into another one. The imported records are the
/// same, and a second import changes nothing.
pub(crate) fn move_records(from: &Place, to: &Place) {
    let exported = export(from, &[]);
    assert_eq!(code(&exported), 0, "{}", err(&exported));
    let file = to.path("records.jsonl");
    std::fs::write(&file, &exported.stdout).unwrap();
    let before = records(&out(&exported));
    for name in ["created", "existing"] {
        let imported = import(to, &file);
        assert_eq!(code(&imported), 0, "{}", err(&imported));
        assert_eq!(counts(&imported)[name], before.len(), "{}: {}", to.url, err(&imported));
        let outcomes = ["\"outcome\":\"requested\"", "\"outcome\":\"applied\""];
        assert!(outcomes.iter().all(|outcome| err(&imported).contains(outcome)));
        assert!(err(&imported).contains("\"reason\":\"a test\""), "{}", err(&imported));
    }
    let after = records(&out(&export(to, &[])));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (key, record) in &before {
        for name in ["scope", "state", "fingerprint", "result"] {
            assert_eq!(record[name], after[key][name], "{key} {name}");
        }
        let expiry = |record: &Value| record["expires_at_ms"].as_u64().unwrap();
        assert!(expiry(record).abs_diff(expiry(&after[key])) < 60_000, "{key}");
    }
}

/// Moves results through all of the stores, and replays them from the last.
pub(crate) fn move_through(places: &[Place]) {
    let (Some(first), Some(last)) = (places.first(), places.last()) else { panic!("no stores") };
    with_results(first);
    for pair in places.windows(2) {
        move_records(&pair[0], &pair[1]);
    }
    let replay =
        |key| last.retryproof(["run", "work", key, "--", "echo", "again"]).output().unwrap();
    let binary = replay("binary");
    assert_eq!((code(&binary), &binary.stdout[..]), (3, &b"a\xff\0b"[..]), "{}", err(&binary));
    let large = replay("large");
    assert_eq!((code(&large), out(&large)), (0, String::new()), "{}", err(&large));
}

#[test]
fn ops_7_records_move_to_an_empty_store() {
    move_through(&[Place::sqlite(), Place::sqlite()]);
}

#[test]
fn ops_6_an_export_has_a_scope_and_says_what_is_in_progress() {
    let place = Place::sqlite();
    with_results(&place);
    let mut run = place.run(&["--lease", "PT1M"], "echo > up; read line");
    let mut run = started(run.stdin(Stdio::piped()));
    eventually("a run", || place.path("up").exists().then_some(()));
    let other = place.retryproof(["run", "other", "k", "--", "true"]).output().unwrap();
    assert_eq!(code(&other), 0, "{}", err(&other));

    let exported = export(&place, &["--scope", "work"]);
    assert!(
        err(&exported).contains("exported: 2 complete, 1 in progress; left out: 0 expired"),
        "{}",
        err(&exported)
    );
    let records = records(&out(&exported));
    assert_eq!(records.keys().collect::<Vec<_>>(), ["binary", "k", "large"]);
    assert_eq!(records["k"]["state"], "in_progress");
    assert_eq!(records["k"]["result"], Value::Null);
    run.kill().unwrap();
    run.wait().unwrap();

    let target = Place::sqlite();
    let file = target.path("records.jsonl");
    std::fs::write(&file, &exported.stdout).unwrap();
    let imported = import(&target, &file);
    let counts = counts(&imported);
    assert_eq!((&counts["created"], &counts["unfinished"]), (&2.into(), &1.into()));
    assert!(err(&imported).contains("the next call runs their work"), "{}", err(&imported));
}

#[test]
fn ops_7_a_line_that_cannot_be_imported_is_named_and_the_others_are_imported() {
    let (from, to) = (Place::sqlite(), Place::sqlite());
    with_results(&from);
    let good = out(&export(&from, &[]));
    let newer = good.replace("\"retryproof_record\":1", "\"retryproof_record\":2");
    let file = to.path("records.jsonl");
    std::fs::write(&file, format!("{newer}{good}")).unwrap();
    let imported = import(&to, &file);
    let said = err(&imported);
    assert_eq!(code(&imported), 4, "{said}");
    assert!(
        said.contains("line 1 was not imported: a newer version") && said.contains("line 2"),
        "{said}"
    );
    let counts = counts(&imported);
    assert_eq!((&counts["created"], &counts["refused"]), (&2.into(), &2.into()));
}

#[test]
fn ops_7_nothing_is_imported_without_a_reason_a_confirmation_and_a_file() {
    let place = Place::sqlite();
    let file = place.path("records.jsonl");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    for wrong in [
        &["import", file, "--yes"][..],
        &["import", file, "--yes", "--reason", ""],
        &["import", file, "--reason", "a test"],
        &["import", "no such file", "--yes", "--reason", "a test"],
    ] {
        let output = place.retryproof(wrong).stdin(Stdio::null()).output().unwrap();
        assert_eq!(code(&output), 2, "{wrong:?}: {}", err(&output));
        assert!(!err(&output).contains("requested"), "{wrong:?}: {}", err(&output));
    }
    let mut empty = place.retryproof(["import", "--yes", "--reason", "a test"]);
    let empty = empty.args(["--output", "json"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!((code(&empty), &counts(&empty)["created"]), (0, &0.into()), "{}", err(&empty));
}

/// Creates a store with many large records, so that an export fills every pipe.
fn large() -> Place {
    let place = Place::sqlite();
    let run = place.run(&[], "head -c 2000 /dev/zero").output().unwrap();
    assert_eq!(code(&run), 0, "{}", err(&run));
    copies(&place, 10_000);
    place
}

/// Copies the only record of a SQLite store under other keys.
pub(crate) fn copies(place: &Place, count: u64) {
    let db = rusqlite::Connection::open(place.db()).unwrap();
    let columns: Vec<String> = {
        let mut info =
            db.prepare("SELECT name FROM pragma_table_info('retryproof_records')").unwrap();
        let names = info.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    };
    let list = columns.join(", ");
    let values = list.replace("key", "CAST(printf('k%08d', n) AS BLOB)");
    db.execute_batch(&format!(
        "WITH RECURSIVE counter(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < {count})
         INSERT INTO retryproof_records ({list}) SELECT {values} FROM retryproof_records, counter"
    ))
    .unwrap();
}

#[test]
fn ops_6_a_closed_pipe_ends_an_export() {
    let place = large();
    let mut child = started(&mut place.retryproof(["export"]));
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((code(&ended), err(&ended)), (0, String::new()));
}

#[test]
fn ops_6_an_interrupted_export_continues_at_its_position() {
    let place = large();
    let mut child = started(&mut place.retryproof(["export", "--show-keys"]));
    // After the first line, the export waits, because the pipe is full.
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    reader.read_line(&mut lines).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    reader.read_to_string(&mut lines).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = err(&ended);
    assert_eq!(code(&ended), 130, "{said}");
    let mut seen = records(&lines);
    assert!((1..10_001).contains(&seen.len()), "{}", seen.len());
    let position = position(&said).unwrap_or_else(|| panic!("no position: {said}"));
    let rest = export(&place, &[&format!("--after={position}")]);
    assert_eq!(code(&rest), 0, "{}", err(&rest));
    let rest = records(&out(&rest));
    assert!(rest.keys().all(|key| !seen.contains_key(key)), "no record comes twice");
    seen.extend(rest);
    assert_eq!(seen.len(), 10_001);
}

/// Creates a key in progress whose lease is over, and whose holder has this name.
fn abandoned(place: &Place, holder: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = retryproof::connect(&place.url).await.unwrap();
        let id = Identity::of("work", "binary").unwrap();
        let (owner, lease) = (OwnerId::new(), Duration::from_millis(10));
        let request = AcquireRequest::new(owner, lease, Duration::from_secs(60))
            .with_holder(Some(HolderNote::new(owner, lease, None, holder)));
        assert!(matches!(store.acquire(&id, &request).await.unwrap(), Acquired::Granted(_)));
        while store.get(&id).await.unwrap().unwrap().remaining.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn ops_7_only_what_an_import_has_left_is_released() {
    let from = Place::sqlite();
    with_results(&from);
    let text = export(&from, &[]).stdout;
    for (holder, created) in [("retryproof import", 2), ("pod-7:1", 1)] {
        let to = Place::sqlite();
        abandoned(&to, holder);
        let file = to.path("records.jsonl");
        std::fs::write(&file, &text).unwrap();
        let imported = import(&to, &file);
        assert_eq!(code(&imported), 0, "{}", err(&imported));
        let counts = counts(&imported);
        assert_eq!(
            (&counts["created"], &counts["in_progress"]),
            (&created.into(), &(2 - created).into())
        );
    }
}
