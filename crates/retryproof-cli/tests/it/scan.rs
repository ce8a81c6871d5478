// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists that end early, and where they continue.

use crate::support::{Place, code, err, out};

/// Returns the position in a remark on stderr.
pub(crate) fn position(said: &str) -> Option<String> {
    let (_, position) = said.split_once("`--after=")?;
    position.split_once('`').map(|(position, _)| position.to_owned())
}

fn with_records(place: &Place, count: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|n| format!("canary-{n}")).collect();
    for key in &keys {
        let run = place.retryproof(["run", "work", key, "--", "true"]).output().unwrap();
        assert_eq!(code(&run), 0, "{}", err(&run));
    }
    keys
}

/// Follows the printed positions through all records. If `is_exact`, no page has more records than
/// the limit, and no record comes twice.
pub(crate) fn positions_lead_through_all_records(place: &Place, is_exact: bool) {
    let keys = with_records(place, 5);
    let (mut listed, mut after, mut starts) = (Vec::new(), None, 0);
    loop {
        let ls = ["ls", "--scope", "work", "--limit", "2", "--show-keys", "--output", "jsonl"];
        let mut command = place.retryproof(ls);
        command.args(after.map(|after: String| format!("--after={after}")));
        let page = command.output().unwrap();
        assert_eq!(code(&page), 0, "{}", err(&page));
        assert!(!is_exact || out(&page).lines().count() <= 2, "{}", out(&page));
        for line in out(&page).lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            listed.push(record["key"].as_str().unwrap().to_owned());
        }
        starts += 1;
        after = position(&err(&page));
        if after.is_none() {
            break;
        }
    }
    assert!(starts >= if is_exact { 3 } else { 1 }, "{starts}");
    listed.sort();
    if !is_exact {
        listed.dedup();
    }
    assert_eq!(listed, keys);
}

#[test]
fn ops_2_a_list_continues_at_a_printed_position() {
    positions_lead_through_all_records(&Place::sqlite(), true);
}

#[test]
fn id_4_a_position_is_printed_with_keys_only() {
    let place = Place::sqlite();
    with_records(&place, 2);
    let cut = place.retryproof(["ls", "--limit", "1"]).output().unwrap();
    let said = err(&cut);
    assert!(
        said.contains("ends at `--limit` 1; to learn where to continue, repeat the command"),
        "{said}"
    );
    assert_eq!(position(&said), None);
}

#[test]
fn ops_2_a_wrong_position_or_limit_is_a_usage_error() {
    let place = Place::sqlite();
    for wrong in [
        &["ls", "--after=%"][..],
        // The text can be parsed, but is not a position of this store.
        &["ls", "--after=MTc"],
        &["stuck", "--after=MTc"],
        &["ls", "--limit", "0"],
    ] {
        let output = place.retryproof(wrong).output().unwrap();
        assert_eq!(
            (code(&output), out(&output)),
            (2, String::new()),
            "{wrong:?}: {}",
            err(&output)
        );
        assert!(!err(&output).contains("to learn where to continue"), "{}", err(&output));
    }
}

/// Runs a verb in a process that can allocate at most this much memory.
#[cfg(target_os = "linux")]
fn within(mebibytes: usize, place: &Place, arguments: &[&str]) -> std::process::Output {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("ulimit -d {}; exec \"$@\"", mebibytes << 10), "sh"]);
    shell.arg(env!("CARGO_BIN_EXE_retryproof")).args(arguments);
    shell.env("IDEMPOTENCY_STORE", &place.url).output().unwrap()
}

/// A verb that reads a huge table keeps only what it prints, and one page. A verb that prints
/// everything needs more memory.
#[cfg(target_os = "linux")]
#[test]
fn ops_2_a_list_keeps_only_what_it_prints_in_memory() {
    const RECORDS: usize = 100_000;
    const MEBIBYTES: usize = 24;
    let place = Place::sqlite();
    with_records(&place, 1);
    let db = rusqlite::Connection::open(place.db()).unwrap();
    db.execute_batch(&format!(
        "BEGIN;
         CREATE TEMP TABLE one AS SELECT * FROM retryproof_records;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {RECORDS})
         INSERT INTO retryproof_records SELECT scope, CAST(printf('copy-%08d', i) AS BLOB), state,
             owner, token + i, takeovers, expires_at, purge_after, holder, fp, result, log
         FROM one, n;
         COMMIT"
    ))
    .unwrap();
    for arguments in [
        &["ls", "--limit", "10"][..],
        &["ls", "--limit", "10", "--scope", "other"],
        &["stuck"],
        &["stats", "--by-scope"],
        &["top", "--count", "1"],
        &["export", "--scope", "other"],
    ] {
        let listed = within(MEBIBYTES, &place, arguments);
        assert_eq!(code(&listed), 0, "{arguments:?}: {}", err(&listed));
    }
    let all = within(MEBIBYTES, &place, &["ls", "--limit", "1000000"]);
    assert!(!all.status.success(), "the limit has no effect");
}

/// Showing a result takes several times its size in memory, because bytes become text.
#[cfg(target_os = "linux")]
#[test]
fn ops_1_get_decodes_only_a_result_that_it_prints() {
    const MEBIBYTES: usize = 64;
    let place = Place::sqlite();
    let run = ["run", "work", "k", "--", "head", "-c", "8000000", "/dev/zero"];
    assert_eq!(code(&place.retryproof(run).output().unwrap()), 0);
    let shown = within(MEBIBYTES, &place, &["get", "work", "k"]);
    assert_eq!(code(&shown), 0, "{}", err(&shown));
    assert!(out(&shown).contains("exit code"), "{}", out(&shown));
    let all = within(MEBIBYTES, &place, &["get", "work", "k", "--body"]);
    assert!(!all.status.success(), "the limit has no effect");
}
