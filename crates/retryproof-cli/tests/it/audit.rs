// SPDX-License-Identifier: MIT OR Apache-2.0
//! OPS-10: what operators requested is in the audit table, and nothing changes if the table cannot
//! be written.

use std::process::Output;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, PgConnection, raw_sql};

use crate::servers::{mariadb, postgres, redis};
use crate::support::{Place, code, err, out};

/// Runs SQL on the store's database, with all privileges.
pub(crate) fn sql(place: &Place, text: &str) {
    let url = place.url.split('?').next().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let script = || raw_sql(AssertSqlSafe(text.to_owned()));
    runtime
        .block_on(async {
            match url.split(':').next().unwrap() {
                "sqlite" => {
                    rusqlite::Connection::open(place.db()).unwrap().execute_batch(text).unwrap();
                    Ok(())
                }
                "postgres" => PgConnection::connect(url).await?.execute(script()).await.map(drop),
                _ => MySqlConnection::connect(url).await?.execute(script()).await.map(drop),
            }
        })
        .unwrap_or_else(|error: sqlx::Error| panic!("{text}: {error}"));
}

/// Returns the name of the record table.
pub(crate) fn table(place: &Place) -> &str {
    place.url.split_once("table=").map_or("retryproof_records", |(_, table)| table)
}

/// Returns the output of a verb that succeeds.
fn json(place: &Place, arguments: &[&str]) -> Value {
    let output = place.retryproof(arguments).args(["--output", "json"]).output().unwrap();
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

/// Returns the value of `field` in each entry of a list.
fn each(entries: &Value, field: &str) -> Vec<Value> {
    entries.as_array().unwrap().iter().map(|entry| entry[field].clone()).collect()
}

/// Completes a key, and returns its token.
fn completed(place: &Place, key: &str) -> String {
    let run = place.retryproof(["run", "work", key, "--", "true"]).output().unwrap();
    assert_eq!(code(&run), 0, "{}", err(&run));
    json(place, &["get", "work", key])["token"].to_string()
}

fn change(place: &Place, verb: &str, key: &str, token: &str) -> Output {
    let arguments = [verb, "work", key, "--token", token, "--reason", "wir räumen auf 🧹", "--yes"];
    place.retryproof(arguments).args(["--operator", "alice"]).output().unwrap()
}

fn requests_are_audited(place: &Place) {
    assert_eq!(json(place, &["migrate"])["can_audit"], true);
    assert_eq!(json(place, &["audit"]), Value::Array(Vec::new()));
    let token = completed(place, "canary");
    for (verb, token, expected) in [
        ("erase", token.as_str(), 0),
        ("erase", &token, 0),
        ("release", &token, 4),
        ("forget", "1", 4),
        ("forget", &token, 0),
    ] {
        let output = change(place, verb, "canary", token);
        assert_eq!(code(&output), expected, "{}", err(&output));
    }
    let entries = json(place, &["audit", "--show-keys"]);
    let outcomes: Vec<_> = each(&entries, "outcome").into_iter().rev().collect();
    let expected = ["applied", "already_applied", "finished", "another_token", "applied"];
    let expected: Vec<_> = expected.iter().flat_map(|end| ["requested", end]).collect();
    assert_eq!(outcomes, expected);
    let verbs = ["forget", "forget", "release", "erase", "erase"];
    assert_eq!(
        each(&entries, "verb"),
        verbs.into_iter().flat_map(|verb| [verb; 2]).collect::<Vec<_>>()
    );
    for entry in entries.as_array().unwrap() {
        let facts = (&entry["scope"], &entry["key"], &entry["operator"], &entry["reason"]);
        let expected =
            (&"work".into(), &"canary".into(), &"alice".into(), &"wir räumen auf 🧹".into());
        assert_eq!(facts, expected);
        assert!(entry["at_ms"].as_u64() > Some(1_700_000_000_000), "{entry}");
    }
    assert_eq!(entries[2]["token"], 1);
    assert_eq!(entries[0]["token"].to_string(), token);

    // The entries of an import name no record, because an import is about the whole store.
    let (exported, file) = (place.retryproof(["export"]).output().unwrap(), place.path("all"));
    std::fs::write(&file, exported.stdout).unwrap();
    let import = ["import", file.to_str().unwrap(), "--reason", "a move", "--yes"];
    let imported = place.retryproof(import).output().unwrap();
    assert_eq!(code(&imported), 0, "{}", err(&imported));
    let newest = json(place, &["audit", "--limit", "2"]);
    assert_eq!(each(&newest, "outcome"), ["applied", "requested"]);
    assert_eq!(each(&newest, "verb"), ["import", "import"]);
    assert_eq!((&newest[0]["scope"], &newest[0]["token"]), (&Value::Null, &Value::Null));
    assert!(newest[0]["operator"].as_str().unwrap().contains('@'), "{newest}");

    // By default, keys are masked. The list has a limit, and can be restricted to one scope.
    let listed = place.retryproof(["audit", "--limit", "3"]).output().unwrap();
    assert!(!out(&listed).contains("canary") && out(&listed).contains('#'), "{}", out(&listed));
    assert!(out(&listed).contains(" UTC "), "{}", out(&listed));
    assert!(err(&listed).contains("the list ends at `--limit` 3"), "{}", err(&listed));
    assert_eq!(json(place, &["audit", "--scope", "work"]).as_array().unwrap().len(), 10);
    assert_eq!(json(place, &["audit", "--scope", "other"]), Value::Array(Vec::new()));
    let all = place.retryproof(["audit", "--limit", "12"]).output().unwrap();
    assert_eq!((out(&all).lines().count(), err(&all)), (13, String::new()));
}

#[test]
fn ops_10_requests_and_their_outcomes_are_listed() {
    requests_are_audited(&Place::sqlite());
}

#[test]
fn ops_10_requests_and_their_outcomes_are_listed_on_every_server() {
    requests_are_audited(&postgres());
    requests_are_audited(&mariadb());
}

/// Checks that `get` names the newest change of a record, and skips requests that were refused.
fn get_names_the_last_change(place: &Place) {
    let token = completed(place, "canary");
    let last = || json(place, &["get", "work", "canary"])["last_change"].clone();
    let shown = || out(&place.retryproof(["get", "work", "canary"]).output().unwrap());
    let changed = |verb: &str, token: &str, expected: i32| {
        let done = change(place, verb, "canary", token);
        assert_eq!(code(&done), expected, "{}", err(&done));
    };
    changed("release", &token, 4);
    assert_eq!(last(), Value::Null);
    assert!(!shown().contains("changed by"), "{}", shown());

    changed("erase", &token, 0);
    changed("forget", "1", 4);
    let erased = last();
    let facts = (&erased["verb"], &erased["outcome"], &erased["operator"]);
    assert_eq!(facts, (&"erase".into(), &"applied".into(), &"alice".into()));
    assert_eq!(
        (&erased["reason"], erased["token"].to_string()),
        (&"wir räumen auf 🧹".into(), token.clone())
    );
    assert!(erased["at_ms"].as_u64() > Some(1_700_000_000_000), "{erased}");
    let line = shown();
    let line = line.lines().find(|line| line.contains("changed by")).unwrap();
    assert!(
        line.contains("alice (erase), 20") && line.ends_with(" UTC: wir räumen auf 🧹"),
        "{line}"
    );

    // The audit table still has the entry after the record is gone, and after the work has run again.
    changed("forget", &token, 0);
    let missing = place.retryproof(["get", "work", "canary"]).output().unwrap();
    assert_eq!((code(&missing), out(&missing)), (1, String::new()));
    assert!(err(&missing).contains("; last changed by alice (forget), "), "{}", err(&missing));
    assert!(!err(&missing).contains("canary"), "{}", err(&missing));
    let token = completed(place, "canary");
    assert_eq!(last()["verb"], "forget");
    assert!(shown().contains("before this grant: alice (forget), "), "{}", shown());

    // An outcome that was never written is unknown.
    changed("erase", &token, 0);
    let newest =
        format!("DELETE FROM {}_audit WHERE verb = 'erase' AND outcome = 'applied'", table(place));
    sql(place, &newest);
    assert_eq!((&last()["verb"], &last()["outcome"]), (&"erase".into(), &"requested".into()));
    assert!(shown().contains("alice (erase, with an unknown outcome), "), "{}", shown());

    // Without the table, no verb has changed a record.
    sql(place, &format!("DROP TABLE {}_audit", table(place)));
    assert_eq!(last(), Value::Null);
}

#[test]
fn ops_10_get_names_the_last_change_of_a_record() {
    get_names_the_last_change(&Place::sqlite());
    let redis = redis();
    let token = completed(&redis, "k");
    assert_eq!(code(&change(&redis, "erase", "k", &token)), 0);
    assert_eq!(json(&redis, &["get", "work", "k"])["last_change"], Value::Null);
}

#[test]
fn ops_10_get_names_the_last_change_of_a_record_on_every_server() {
    get_names_the_last_change(&postgres());
    get_names_the_last_change(&mariadb());
}

/// Checks that the record stays, that the exit code and `sentence` say why, and that no outcome
/// claims a change.
fn nothing_changes(place: &Place, token: &str, expected: i32, sentence: &str) {
    let refused = change(place, "forget", "k", token);
    let said = err(&refused);
    assert_eq!((code(&refused), out(&refused)), (expected, String::new()), "{said}");
    assert!(said.contains("nothing was changed, because the audit table"), "{said}");
    assert!(said.contains(sentence), "{said}");
    let outcomes = ["\"outcome\":\"requested\"", "\"outcome\":\"not_attempted\""];
    assert!(outcomes.iter().all(|outcome| said.contains(outcome)), "{said}");
    assert!(!said.contains("applied"), "{said}");
    assert_eq!(json(place, &["get", "work", "k"])["state"], "complete");
    let import = ["import", "--reason", "a test", "--yes", "/dev/null"];
    let import = place.retryproof(import).output().unwrap();
    assert_eq!(code(&import), expected, "{}", err(&import));
    assert!(err(&import).contains("nothing was imported, because the audit table"));
}

/// Checks that a service works without the audit table, and that `doctor` does not report its
/// absence.
fn a_service_works(place: &Place) {
    completed(place, "k");
    let doctor = json(place, &["doctor"]);
    let ids = each(&doctor, "finding");
    assert!(!ids.iter().any(|id| id == "schema" || id == "privilege"), "{doctor:#}");
}

/// Drops the audit table, as if an earlier version had migrated the store.
fn nothing_changes_without_the_table(place: &Place) {
    let token = completed(place, "k");
    sql(place, &format!("DROP TABLE {}_audit", table(place)));
    nothing_changes(place, &token, 4, "`retryproof migrate` creates or upgrades the tables");
    let audit = place.retryproof(["audit"]).output().unwrap();
    assert_eq!(code(&audit), 4, "{}", err(&audit));
    assert!(err(&audit).contains("the audit table is missing"), "{}", err(&audit));
    a_service_works(place);

    assert_eq!(json(place, &["migrate"])["can_audit"], true);
    assert_eq!(code(&change(place, "forget", "k", &token)), 0);
    assert_eq!(each(&json(place, &["audit"]), "outcome"), ["applied", "requested"]);
}

#[test]
fn ops_10_nothing_changes_without_the_audit_table() {
    nothing_changes_without_the_table(&Place::sqlite());
}

#[test]
fn ops_10_nothing_changes_without_the_audit_table_on_every_server() {
    nothing_changes_without_the_table(&postgres());
    nothing_changes_without_the_table(&mariadb());
}

/// A service's database user needs no privileges on the audit table. Without them, a service works,
/// but verbs that change records are refused.
#[test]
fn ops_10_nothing_changes_without_privileges_on_the_audit_table() {
    for (owner, quote) in [(postgres(), '"'), (mariadb(), '`')] {
        let records = table(&owner);
        let user = format!("{records}_app");
        let (create, to) = match quote {
            '"' => (format!("CREATE ROLE {user} LOGIN PASSWORD 'secret'"), user.clone()),
            _ => (
                format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'"),
                format!("'{user}'@'%'"),
            ),
        };
        let grant = |what: &str, suffix: &str| {
            sql(&owner, &format!("GRANT {what} ON {quote}{records}{suffix}{quote} TO {to}"));
        };
        sql(&owner, &create);
        grant("SELECT,INSERT,UPDATE,DELETE", "");
        grant("SELECT,INSERT,UPDATE", "_meta");
        let (scheme, rest) = owner.url.split_once("://").unwrap();
        let (_, rest) = rest.split_once('@').unwrap();

        // The service migrates when it starts. The migration succeeds although the service's user
        // has no privileges on the audit table.
        let place = Place::on(format!("{scheme}://{user}:secret@{rest}"));
        assert_eq!(json(&place, &["migrate"])["can_audit"], false);
        a_service_works(&place);
        let token = json(&place, &["get", "work", "k"])["token"].to_string();
        let sentence = "the user may not use the audit table; GRANT it INSERT and SELECT on it";
        nothing_changes(&place, &token, 5, sentence);
        let unknown = place.retryproof(["get", "work", "k"]).output().unwrap();
        assert_eq!(code(&unknown), 0, "{}", err(&unknown));
        assert!(out(&unknown).contains("unknown: "), "{}", out(&unknown));
        grant("SELECT", "_audit");
        nothing_changes(&place, &token, 5, sentence);
        assert_eq!(json(&place, &["audit"]), Value::Array(Vec::new()));
        grant("INSERT", "_audit");
        assert_eq!(code(&change(&place, "forget", "k", &token)), 0);
        assert_eq!(json(&place, &["audit"]).as_array().unwrap().len(), 2);

        // The service also starts if the audit table is missing and its user may not create it.
        sql(&owner, &format!("DROP TABLE {quote}{records}_audit{quote}"));
        assert_eq!(json(&place, &["migrate"])["can_audit"], false);
        a_service_works(&place);
    }
}

#[test]
fn ops_10_a_store_without_tables_has_its_audit_on_stderr_only() {
    let place = redis();
    assert_eq!(json(&place, &["migrate"])["can_audit"], false);
    let token = completed(&place, "k");
    let forgotten = change(&place, "forget", "k", &token);
    assert_eq!(code(&forgotten), 0, "{}", err(&forgotten));
    assert!(err(&forgotten).contains("\"operator\":\"alice\""), "{}", err(&forgotten));
    let audit = place.retryproof(["audit"]).output().unwrap();
    assert_eq!((code(&audit), out(&audit)), (4, String::new()));
    assert!(err(&audit).contains("the redis store keeps no audit table"), "{}", err(&audit));
}

#[test]
fn ops_10_a_reason_has_its_bound_on_every_store() {
    for place in [Place::sqlite(), redis()] {
        let token = completed(&place, "k");
        let forget = |reason: &str| {
            let forget = ["forget", "work", "k", "--token", &token, "--yes", "--reason", reason];
            place.retryproof(forget).output().unwrap()
        };
        let long = forget(&"é".repeat(513));
        assert_eq!((code(&long), out(&long)), (2, String::new()));
        assert!(err(&long).contains("the reason must have 1 to 1024 bytes"), "{}", err(&long));
        assert_eq!(json(&place, &["get", "work", "k"])["state"], "complete");
        assert_eq!(code(&forget(&"é".repeat(512))), 0);
    }
}

/// In a store with hashed identities, the audit entries contain the key's digest, not the key
/// (ID-5).
#[test]
fn ops_10_id_5_a_hashed_store_audits_digests() {
    let place = Place::hashed_sqlite();
    let token = completed(&place, "canary");
    let digest = json(&place, &["ls", "--show-keys"])[0]["key"].clone();
    assert_eq!(code(&change(&place, "forget", "canary", &token)), 0);
    assert_eq!(each(&json(&place, &["audit", "--show-keys"]), "key"), [digest.clone(), digest]);
    let missing = place.retryproof(["get", "work", "canary"]).output().unwrap();
    assert!(err(&missing).contains("; last changed by alice (forget), "), "{}", err(&missing));
    let file = std::fs::read(place.db()).unwrap();
    let log = std::fs::read(place.path("records.db-wal")).unwrap_or_default();
    for bytes in [file, log] {
        assert!(!bytes.windows(6).any(|part| part == b"canary"), "the key should not be stored");
    }
}
