// SPDX-License-Identifier: MIT OR Apache-2.0
//! ID-5: the command on a store with hashed identities.

use serde_json::Value;

use crate::support::{Place, SECRET, SECRET_VARIABLE, code, err, out};

/// Runs a verb, which must succeed.
fn json(place: &Place, arguments: &[&str]) -> Value {
    let output = place.retryproof(arguments).args(["--output", "json"]).output().unwrap();
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

pub(crate) fn hashed_records_are_found_and_changed(place: &Place) {
    let command = ["run", "work", "canary", "--", "sh", "-c", "echo $RETRYPROOF_KEY; exit 3"];
    for _ in 0..2 {
        let ran = place.retryproof(command).output().unwrap();
        assert_eq!((code(&ran), out(&ran)), (3, "canary\n".to_owned()), "{}", err(&ran));
    }

    // `ls` prints only the digest. `get` finds the record by its key and by its digest.
    let listed = json(place, &["ls", "--show-keys"]);
    let stored = listed[0]["key"].as_str().unwrap();
    assert!(listed.as_array().unwrap().len() == 1 && stored.len() == 64, "{listed}");
    let digits = &stored[..16];
    assert_eq!(json(place, &["ls"])[0]["key"], format!("#{digits}"));
    let by_key = json(place, &["get", "work", "canary"]);
    let by_digest = json(place, &["get", "work", &format!("#{digits}"), "--digest", "--body"]);
    assert_eq!(by_key["key"], format!("#{digits}"));
    assert_eq!(by_digest["token"], by_key["token"]);
    assert_eq!(by_digest["body"]["stdout"]["text"], "canary\n");
    for (scope, digits, expected) in
        [("work", "0123456789abcdef", 1), ("other", digits, 1), ("work", "canary", 2)]
    {
        let get = place.retryproof(["get", scope, digits, "--digest"]).output().unwrap();
        assert_eq!(code(&get), expected, "{}", err(&get));
    }

    // `get` and `migrate` refuse to run with another secret, or without a secret.
    for verb in [&["get", "work", "canary"][..], &["migrate"]] {
        let mut other = place.retryproof(verb);
        let other = other.env(SECRET_VARIABLE, "canary-".repeat(5)).output().unwrap();
        let mut none = place.retryproof(verb);
        let none = none.env_remove(SECRET_VARIABLE).output().unwrap();
        for (refused, text) in [
            (other, "set up with another identity secret"),
            (none, "set the program's `identity-secret` to the store's secret"),
        ] {
            let said = err(&refused);
            assert!(code(&refused) != 0 && said.contains(text), "{said}");
            assert!(!said.contains("canary-"), "{said}");
        }
    }

    let token = by_key["token"].to_string();
    let mut forget = place.retryproof(["forget", "work", digits, "--digest", "--token", &token]);
    let forgotten = forget.args(["--reason", "a test", "--yes"]).output().unwrap();
    assert_eq!(code(&forgotten), 0, "{}", err(&forgotten));
    assert_eq!(json(place, &["ls"]), Value::Array(Vec::new()));
    assert_eq!(json(place, &["migrate"])["identities"], "hashed");
}

#[test]
fn id_5_hashed_records_are_found_and_changed() {
    hashed_records_are_found_and_changed(&Place::hashed_sqlite());
}

#[test]
fn id_5_the_printed_schema_and_the_settings_hide_the_secret() {
    let place = Place::hashed_sqlite();
    for arguments in [&["migrate", "--print"][..], &["config", "show"]] {
        let printed = place.retryproof(arguments).output().unwrap();
        assert_eq!(code(&printed), 0, "{}", err(&printed));
        let printed = out(&printed);
        assert!(!printed.contains(SECRET) && !printed.contains("('identity', 0)"), "{printed}");
        assert!(printed.contains("identity"), "{printed}");
    }
}

/// Plain keys are hashed by the store that imports them. Digests only fit a store with the same
/// secret; in any other store, a retry would not find its result, and would run the work again.
#[test]
fn id_5_records_move_to_a_store_where_their_keys_find_them() {
    let (plain, hashed, same) = (Place::sqlite(), Place::hashed_sqlite(), Place::hashed_sqlite());
    assert_eq!(code(&plain.run(&[], "echo once").output().unwrap()), 0);
    let moved = |from: &Place, to: &Place| {
        let exported = from.retryproof(["export"]).output().unwrap();
        assert_eq!(code(&exported), 0, "{}", err(&exported));
        let file = to.path("records.jsonl");
        std::fs::write(&file, &exported.stdout).unwrap();
        let import = ["import", file.to_str().unwrap(), "--reason", "a test", "--yes"];
        (out(&exported), to.retryproof(import).output().unwrap())
    };
    for (from, to) in [(&plain, &hashed), (&hashed, &same)] {
        let (_, imported) = moved(from, to);
        assert_eq!(code(&imported), 0, "{}", err(&imported));
        let again = to.run(&[], "echo twice").output().unwrap();
        assert_eq!(out(&again), "once\n", "{}", err(&again));
    }
    let (lines, refused) = moved(&hashed, &Place::sqlite());
    assert!(lines.contains("\"identity_mark\":\"") && !lines.contains("\"k\""), "{lines}");
    assert_eq!(code(&refused), 4, "{}", err(&refused));
    assert!(err(&refused).contains("import it into a store with that secret"), "{}", err(&refused));
}

/// `--digest` works on a store with plain identities too.
#[test]
fn id_5_a_plain_record_is_found_by_its_digest() {
    let place = Place::sqlite();
    assert_eq!(code(&place.run(&[], "true").output().unwrap()), 0);
    let digits = json(&place, &["ls"])[0]["key"].as_str().unwrap().to_owned();
    assert_eq!(json(&place, &["get", "work", &digits, "--digest"])["state"], "complete");
}
