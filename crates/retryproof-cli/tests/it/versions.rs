// SPDX-License-Identifier: MIT OR Apache-2.0
//! REC-1: a store that another version of the program has set up or written to. Each refusal says
//! which side to upgrade, and changes nothing.

use std::process::Output;

use serde_json::Value;

use crate::audit::{sql, table};
use crate::bad_input::redis_with_record;
use crate::servers::{mariadb, postgres, redis};
use crate::support::{Place, code, err, out};

fn verb(place: &Place, arguments: &[&str]) -> Output {
    place.retryproof(arguments).output().unwrap()
}

/// Every verb that needs the tables. The record is `work k`.
const VERBS: [&[&str]; 13] = [
    &["get", "work", "k"],
    &["ls"],
    &["stuck"],
    &["stats"],
    &["stats", "--by-scope"],
    &["top", "--count", "1"],
    &["audit"],
    &["purge"],
    &["export"],
    &["import", "--reason", "a test", "--yes", "/dev/null"],
    &["release", "work", "k", "--token", "1", "--reason", "a test", "--yes"],
    &["forget", "work", "k", "--token", "1", "--reason", "a test", "--yes"],
    &["erase", "work", "k", "--token", "1", "--reason", "a test", "--yes"],
];

/// Checks that every verb refuses the tables with `sentence`, and that `run` and `doctor` do so
/// too.
fn refused(place: &Place, sentence: &str, suggests_migrate: bool) {
    for arguments in VERBS {
        let refused = verb(place, arguments);
        let said = err(&refused);
        assert_eq!((code(&refused), out(&refused)), (4, String::new()), "{arguments:?}: {said}");
        assert!(said.contains(sentence), "{arguments:?}: {said}");
        assert_eq!(said.contains("`retryproof migrate`"), suggests_migrate, "{said}");
        assert!(!said.contains("requested"), "nothing was requested: {said}");
    }
    let run = place.run(&[], "echo must not run").output().unwrap();
    assert_eq!((code(&run), out(&run)), (125, String::new()), "{}", err(&run));
    assert!(err(&run).contains(sentence), "{}", err(&run));
    let doctor = verb(place, &["doctor", "--output", "json"]);
    assert_eq!(code(&doctor), 4, "{}", err(&doctor));
    let findings: Vec<Value> = serde_json::from_str(&out(&doctor)).unwrap();
    assert_eq!(
        (&findings[0]["finding"], &findings[0]["severity"]),
        (&"schema".into(), &"error".into())
    );
    let problem = findings[0]["problem"].as_str().unwrap();
    assert!(problem.contains(sentence), "{problem}");
}

fn tables_of_another_version_are_refused(place: &Place) {
    let run = place.run(&[], "echo result").output().unwrap();
    assert_eq!(code(&run), 0, "{}", err(&run));
    let versions = |schema: u8, compatible_from: u8| {
        let meta = format!("{}_meta", table(place));
        sql(
            place,
            &format!(
                "UPDATE {meta} SET value = {schema} WHERE name = 'schema';
                 UPDATE {meta} SET value = {compatible_from} WHERE name = 'compatible_from'"
            ),
        );
    };
    let migrated = || verb(place, &["migrate"]);

    // Newer tables that this version may not use: upgrade the program.
    versions(99, 99);
    let newer = "the store's tables need a newer version of retryproof; upgrade this program";
    refused(place, newer, false);
    let refused_to_migrate = migrated();
    assert_eq!(code(&refused_to_migrate), 4, "{}", err(&refused_to_migrate));
    assert!(err(&refused_to_migrate).contains(newer), "{}", err(&refused_to_migrate));

    // Newer tables that this version may use.
    versions(99, 1);
    let used = place.run(&[], "echo again").output().unwrap();
    assert_eq!((code(&used), out(&used)), (0, "result\n".to_owned()), "{}", err(&used));
    assert_eq!(code(&migrated()), 0);

    // Older tables: upgrade the tables.
    versions(0, 0);
    refused(place, "upgrade the tables: call `retryproof::migrate(url)`", true);

    versions(1, 1);
    let replayed = place.run(&[], "echo again").output().unwrap();
    assert_eq!((code(&replayed), out(&replayed)), (0, "result\n".to_owned()), "{}", err(&replayed));
}

#[test]
fn rec_1_tables_of_another_version_are_refused() {
    tables_of_another_version_are_refused(&Place::sqlite());
}

#[test]
fn rec_1_tables_of_another_version_are_refused_on_every_server() {
    for place in [postgres(), mariadb()] {
        tables_of_another_version_are_refused(&place);
    }
}

/// Redis has no tables. Each record contains the version of its own format.
#[test]
fn rec_1_a_record_of_another_version_is_refused_on_redis() {
    let place = redis();
    let run = place.run(&[], "echo result").output().unwrap();
    assert_eq!(code(&run), 0, "{}", err(&run));
    let record = redis_with_record(&place);
    let stored = record.value();
    let sentence = "if programs of a newer version use the store, upgrade this program";
    record.set(&[b"rp3", &stored[3..]].concat());
    for change in ["get", "release", "forget", "erase"] {
        let arguments = [change, "work", "k", "--token", "1", "--reason", "a test", "--yes"];
        let arguments = if change == "get" { &arguments[..3] } else { &arguments };
        let refused = verb(&place, arguments);
        assert_eq!((code(&refused), out(&refused)), (5, String::new()), "{}", err(&refused));
        assert!(err(&refused).contains(sentence), "{change}: {}", err(&refused));
    }
    let run = place.run(&[], "echo must not run").output().unwrap();
    assert_eq!((code(&run), out(&run)), (125, String::new()), "{}", err(&run));
    assert!(err(&run).contains(sentence), "{}", err(&run));
    for listing in [&["ls"][..], &["stuck"], &["stats", "--by-scope"]] {
        let listed = verb(&place, listing);
        assert_eq!(code(&listed), 0, "{}", err(&listed));
        assert!(err(&listed).contains("cannot read: 1\n"), "{listing:?}: {}", err(&listed));
    }
    assert_eq!(record.value()[..3], *b"rp3", "the record stays");

    // A result that a newer version has written.
    let at = stored.windows(3).position(|part| part == b"RP\x01").expect("an envelope");
    let mut newer = stored.clone();
    newer[at + 2] = 2;
    record.set(&newer);
    let body = verb(&place, &["get", "work", "k", "--body"]);
    assert_eq!((code(&body), out(&body)), (5, String::new()), "{}", err(&body));
    assert!(err(&body).contains("newer version of retryproof"), "{}", err(&body));
    assert!(err(&body).contains("upgrade this program"), "{}", err(&body));
    record.set(&stored);
    let replayed = place.run(&[], "echo again").output().unwrap();
    assert_eq!(out(&replayed), "result\n", "{}", err(&replayed));
}
