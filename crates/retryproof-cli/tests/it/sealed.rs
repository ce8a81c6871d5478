// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-8: the command on a store with sealed results.

use std::process::Output;

use sqlx::{Connection as _, Executor as _};

use crate::servers::{own_name, service};
use crate::support::{MASTER, Place, code, err, out};

const OTHER: &str = "two:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Runs a verb, and expects its exit code.
fn run(place: &Place, arguments: &[&str], expected: i32) -> Output {
    let output = place.retryproof(arguments).output().unwrap();
    assert_eq!(code(&output), expected, "{arguments:?}: {}{}", out(&output), err(&output));
    output
}

fn executed(place: &Place, script: &str) -> String {
    let output = place.run(&[], script).output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    out(&output)
}

fn found(place: &Place, text: &str) -> bool {
    let files = std::fs::read_dir(place.path("")).unwrap();
    let contents = files.map(|file| std::fs::read(file.unwrap().path()).unwrap_or_default());
    let mut contents = contents;
    contents.any(|content| content.windows(text.len()).any(|part| part == text.as_bytes()))
}

/// What a command printed is replayed, `get` shows it, and no file contains it.
#[test]
fn seal_8_an_answer_is_replayed_and_in_no_file() {
    let place = Place::sealed_sqlite();
    assert_eq!(executed(&place, "echo canary-$((40+2))"), "canary-42\n");
    assert_eq!(executed(&place, "echo twice"), "canary-42\n");
    let body = run(&place, &["get", "work", "k", "--body"], 0);
    assert!(out(&body).contains("canary-42"), "{}", out(&body));
    assert!(!found(&place, "canary-42"), "an answer is in a file");
    let shown = out(&run(&place, &["config", "show"], 0));
    assert!(shown.contains("seal.cache") && shown.contains("PT1M"), "{shown}");
    assert!(!shown.contains(&MASTER[4..20]), "{shown}");
}

/// Each mistake has its message and exit code, and changes nothing.
#[test]
fn seal_8_a_wrong_or_missing_master_key_is_refused_and_changes_nothing() {
    let place = Place::sealed_sqlite();
    executed(&place, "echo once");
    let files =
        ["records.db", "keys.db"].map(|name| (name, std::fs::read(place.path(name)).unwrap()));
    let wrong = format!("one:{}", "ff".repeat(32));
    for (master, said) in [
        (Some(wrong.as_str()), "cannot be unwrapped"),
        (Some(OTHER), "a master key that this program does not have"),
        (Some("one:0011"), "line = 1"),
        (Some(""), "there is no master key"),
        (None, "cannot be read"),
    ] {
        match master {
            Some(master) => std::fs::write(place.path("master"), master).unwrap(),
            None => std::fs::remove_file(place.path("master")).unwrap(),
        }
        let get = err(&run(&place, &["get", "work", "k", "--body"], 2));
        assert!(get.contains(said), "{get}");
        let ran = place.run(&[], "echo twice; touch ran").output().unwrap();
        assert_eq!((code(&ran), out(&ran)), (125, String::new()), "{}", err(&ran));
        assert!(err(&ran).contains(said), "{}", err(&ran));
        for key in ["ffff", "000102030405"] {
            assert!(!get.contains(key), "{get}");
        }
    }
    assert!(!place.path("ran").exists(), "nothing runs");
    std::fs::write(place.path("master"), MASTER).unwrap();
    for (name, before) in files {
        let now = std::fs::read(place.path(name)).unwrap();
        assert!(before == now, "{name} has changed");
    }
    assert_eq!(executed(&place, "echo twice"), "once\n");
}

/// A program without the settings gets a message that names them.
#[test]
fn seal_8_a_program_without_the_settings_is_told() {
    let place = Place::sealed_sqlite();
    executed(&place, "echo once");
    let bare = |drop: &[&str]| {
        let mut get = place.retryproof(["get", "work", "k", "--body"]);
        for variable in drop {
            get.env_remove(variable);
        }
        get.output().unwrap()
    };
    let none = bare(&["IDEMPOTENCY_SEAL_KEYS", "IDEMPOTENCY_SEAL_MASTER"]);
    assert_eq!(code(&none), 5, "{}", err(&none));
    assert!(err(&none).contains("this program has no keys to open it"), "{}", err(&none));
    for (variable, named) in [
        ("IDEMPOTENCY_SEAL_MASTER", "idempotency.seal.master"),
        ("IDEMPOTENCY_SEAL_KEYS", "idempotency.seal.keys"),
        ("IDEMPOTENCY_IDENTITY_SECRET", "idempotency.identity-secret"),
    ] {
        let missing = bare(&[variable]);
        assert_eq!(code(&missing), 2, "{}", err(&missing));
        assert!(err(&missing).contains(named), "{}", err(&missing));
    }
}

/// A rotation wraps every key with the new master key. The old master key can then be deleted.
#[test]
fn seal_8_a_rotation_replaces_the_master_key() {
    let place = Place::sealed_sqlite();
    executed(&place, "echo once");
    let rotate = ["keys", "rotate", "--reason", "a test", "--yes"];
    let rotated = |lines: &str, expected| {
        std::fs::write(place.path("master"), lines).unwrap();
        run(&place, &rotate, expected)
    };
    let refused = rotated(OTHER, 2);
    assert!(err(&refused).contains("\"outcome\":\"incomplete\""), "{}", err(&refused));
    let done = rotated(&format!("{OTHER}\n{MASTER}\n"), 0);
    assert!(out(&done).contains("keys wrapped") && out(&done).contains('1'), "{}", out(&done));
    assert!(err(&done).contains("\"outcome\":\"requested\""), "{}", err(&done));
    assert!(err(&done).contains("\"keys\":1"), "{}", err(&done));
    std::fs::write(place.path("master"), OTHER).unwrap();
    assert_eq!(executed(&place, "echo twice"), "once\n");
    let unasked = run(&place, &rotate[..4], 2);
    assert!(err(&unasked).contains("--yes"), "{}", err(&unasked));
}

/// Lets the holder of a stored key die, and resolves the record.
fn resolved(place: &Place, stored: &str, record: &[&str], about: &[&str]) {
    std::fs::write(place.path("answer"), "{\"canary\":1}").unwrap();
    let mut start = place.retryproof(["run", "work", stored]);
    let killed = start.args(["--", "sh", "-c", "kill -9 $$"]).output().unwrap();
    assert_eq!(code(&killed), 137, "{}", err(&killed));
    let got = run(place, &[&["get", "work", "--output", "json"], record].concat(), 0);
    let got: serde_json::Value = serde_json::from_slice(&got.stdout).unwrap();
    let token = got["token"].to_string();
    let resolve = ["resolve", "work", "--token", &token, "--json", "answer", "--ttl", "PT1H"];
    let asked = ["--even-if-live", "--reason", "a test", "--yes"];
    run(place, &[&resolve, record, about, &asked].concat(), 0);
}

/// An erase removes the answers of a subject and no others. The subject's work does not run again.
#[test]
fn seal_8_the_answers_of_a_subject_are_erased() {
    let place = Place::sealed_sqlite();
    executed(&place, "echo once");
    // An operator resolves records of dead holders. Without `--subject`, the caller is the subject
    // of the result.
    let key = ["--caller", "ada@example.org"];
    for subject in ["ada@example.org", "bob@example.org"] {
        resolved(&place, &format!("15:{subject}:k"), &["k", &format!("--caller={subject}")], &[]);
    }
    // The operator names the subject of this result.
    resolved(&place, "order", &["order"], &["--subject", "ada@example.org"]);
    resolved(&place, "4:shop:k", &["k", "--caller=shop"], &["--subject", "ada@example.org"]);
    let erase = ["erase", "--subject", "ada@example.org", "--reason", "she asked", "--yes"];
    let erased = run(&place, &erase, 0);
    assert!(out(&erased).contains("noticed within"), "{}", out(&erased));
    let audit = err(&erased);
    assert!(audit.contains("\"outcome\":\"applied\"") && !audit.contains("ada"), "{audit}");
    for about_ada in [&["k", key[0], key[1]][..], &["order"], &["k", "--caller", "shop"]] {
        let gone = run(&place, &[&["get", "work", "--body"], about_ada].concat(), 0);
        assert!(!out(&gone).contains("canary"), "{}", out(&gone));
    }
    let stays = run(&place, &["get", "work", "k", "--caller", "bob@example.org", "--body"], 0);
    assert!(out(&stays).contains("canary"), "{}", out(&stays));
    assert_eq!(executed(&place, "echo twice"), "once\n");
    let again = run(&place, &erase, 0);
    assert!(err(&again).contains("already_applied"), "{}", err(&again));
    let nobody = ["erase", "--subject", "nobody", "--reason", "she asked", "--yes"];
    assert!(err(&run(&place, &nobody, 1)).contains("has no key"));
    for wrong in [
        &["erase", "--reason", "x"][..],
        &["erase", "work", "--reason", "x"],
        &["erase", "work", "k", "--reason", "x"],
        &["erase", "work", "k", "--subject", "ada", "--reason", "x"],
    ] {
        run(&place, wrong, 2);
    }
}

/// A rotation of keys and an erase of a subject are recorded in the audit table, without the
/// subject's name. If the table cannot be written, no key changes.
#[test]
fn ops_10_changes_of_keys_are_in_the_audit_table() {
    let place = Place::sealed_sqlite();
    executed(&place, "echo once");
    let rotate = ["keys", "rotate", "--reason", "yearly", "--operator", "alice", "--yes"];
    let erase = ["erase", "--subject", "canary", "--reason", "asked", "--operator", "bob", "--yes"];
    run(&place, &rotate, 0);
    run(&place, &erase, 1);
    let audit = run(&place, &["audit", "--show-keys", "--output", "json"], 0);
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&audit.stdout).unwrap();
    let told: Vec<_> = entries
        .iter()
        .rev()
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap().to_owned();
            let verb = text("verb").split_inclusive("--subject ").next().unwrap().to_owned();
            [verb, text("outcome"), text("operator"), text("reason")].join("|")
        })
        .collect();
    let expected = [
        "keys rotate|requested|alice|yearly",
        "keys rotate|applied|alice|yearly",
        "erase --subject |requested|bob|asked",
        "erase --subject |absent|bob|asked",
    ];
    assert_eq!(told, expected);
    let digest = entries[0]["verb"].as_str().unwrap().rsplit(' ').next().unwrap();
    let is_digest = digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_digest && !out(&audit).contains("canary"), "{}", out(&audit));

    let broken = "DROP TABLE retryproof_records_audit";
    rusqlite::Connection::open(place.db()).unwrap().execute_batch(broken).unwrap();
    let before = std::fs::read(place.path("keys.db")).unwrap();
    std::fs::write(place.path("master"), format!("{OTHER}\n{MASTER}\n")).unwrap();
    for verb in [&rotate[..], &erase] {
        let refused = err(&run(&place, verb, 4));
        assert!(refused.contains("nothing was changed, because the audit table"), "{refused}");
        assert!(refused.contains("\"outcome\":\"not_attempted\""), "{refused}");
    }
    assert!(before == std::fs::read(place.path("keys.db")).unwrap(), "no key has changed");
}

/// The keys of a store can be kept in a PostgreSQL database, where they are created, destroyed and
/// rotated.
#[tokio::test]
async fn seal_8_the_keys_can_be_in_postgres() {
    let (place, schema) = (Place::sealed_sqlite(), own_name());
    let server = service("RETRYPROOF_TEST_POSTGRES", "postgres");
    let mut admin = sqlx::PgConnection::connect(&server).await.unwrap();
    let create = format!("CREATE SCHEMA {schema}");
    admin.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
    let keys = format!("{server}?options[search_path]={schema}");
    let verb = |arguments: &[&str], expected: i32| {
        let mut verb = place.retryproof(arguments);
        let done = verb.env("IDEMPOTENCY_SEAL_KEYS", &keys).output().unwrap();
        assert_eq!(code(&done), expected, "{arguments:?}: {}{}", out(&done), err(&done));
        done
    };
    let work = ["run", "work", "k", "--", "echo", "canary"];
    let missing = err(&verb(&work, 125));
    assert!(missing.contains("no table of keys"), "{missing}");
    verb(&["migrate"], 0);
    for _ in 0..2 {
        assert_eq!(out(&verb(&work, 0)), "canary\n");
    }
    assert!(!found(&place, "canary"), "an answer is in a file");
    std::fs::write(place.path("master"), format!("{OTHER}\n{MASTER}\n")).unwrap();
    let rotated = verb(&["keys", "rotate", "--reason", "a test", "--yes", "--output", "json"], 0);
    assert!(out(&rotated).contains("\"keys_wrapped\": 1"), "{}", out(&rotated));
    std::fs::write(place.path("master"), OTHER).unwrap();
    assert_eq!(out(&verb(&work, 0)), "canary\n");
    // If the database that keeps the keys also has a table of records, the command warns.
    let warned = "also has the table `retryproof_records`";
    assert!(!err(&verb(&work, 0)).contains(warned));
    let records = format!("CREATE TABLE {schema}.retryproof_records ()");
    admin.execute(sqlx::AssertSqlSafe(records)).await.unwrap();
    let told = err(&verb(&work, 0));
    assert!(told.contains(warned), "{told}");
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    admin.execute(sqlx::AssertSqlSafe(drop)).await.unwrap();
}

/// Exports the records of a store, and imports them into another one.
fn moved(from: &Place, to: &Place) -> Output {
    let lines = run(from, &["export"], 0);
    std::fs::write(to.path("records.jsonl"), &lines.stdout).unwrap();
    let imported = run(to, &["import", "records.jsonl", "--reason", "a test", "--yes"], 0);
    std::fs::remove_file(to.path("records.jsonl")).unwrap();
    assert!(out(&imported).contains("created"), "{}", out(&imported));
    imported
}

/// An export leaves sealed results sealed, and an import into a store with sealed results writes no
/// plain result.
#[test]
fn seal_5_sealed_answers_move_as_they_are() {
    let (plain, sealed) = (Place::hashed_sqlite(), Place::sealed_sqlite());
    assert_eq!(executed(&plain, "echo canary-$((40+2))"), "canary-42\n");
    moved(&plain, &sealed);
    assert!(!found(&sealed, "canary-42"), "an imported answer is in a file");
    assert_eq!(executed(&sealed, "echo twice"), "canary-42\n");
    // The other store has the same keys and the same secret.
    let other = Place::sealed_sqlite();
    std::fs::copy(sealed.path("keys.db"), other.path("keys.db")).unwrap();
    moved(&sealed, &other);
    assert_eq!(executed(&other, "echo twice"), "canary-42\n");
}

/// An import into a store that has destroyed the scope's key stores no result, and the work of the
/// imported record does not run again.
#[test]
fn seal_4_ops_7_a_result_without_a_key_is_imported_as_a_tombstone() {
    let (plain, sealed) = (Place::hashed_sqlite(), Place::sealed_sqlite());
    executed(&plain, "echo canary-$((40+2))");
    run(&sealed, &["run", "work", "other", "--", "echo", "another"], 0);
    let destroy = "UPDATE retryproof_keys SET master=NULL, wrapped=NULL, destroyed_at=1";
    rusqlite::Connection::open(sealed.path("keys.db")).unwrap().execute_batch(destroy).unwrap();
    let imported = moved(&plain, &sealed);
    let said = format!("{}{}", out(&imported), err(&imported));
    assert!(said.contains("\"tombstones\":1") && said.contains("does not run again"), "{said}");
    let again = sealed.run(&[], "touch ran").output().unwrap();
    assert!(code(&again) != 0 && !sealed.path("ran").exists(), "{}", err(&again));
    assert!(!found(&sealed, "canary-42"), "an answer is in a file");
}

/// A sealed answer that was changed, cut off or moved to another record cannot be opened. Each verb
/// says so, and none changes the record.
#[test]
fn seal_5_an_answer_that_cannot_be_opened_is_refused_and_stays() {
    let place = Place::sealed_sqlite();
    executed(&place, "echo canary-$((40+2))");
    let other = ["run", "work", "other", "--", "echo", "another"];
    assert_eq!(code(&place.retryproof(other).output().unwrap()), 0);
    let db = rusqlite::Connection::open(place.db()).unwrap();
    let of = |key: &str| {
        let listed = run(&place, &["get", "work", key, "--show-keys", "--output", "json"], 0);
        let got: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let select = "SELECT key, result FROM retryproof_records WHERE token = ?";
        let token = got["token"].as_i64().unwrap();
        let row = db.query_row(select, [token], |row| Ok((row.get(0)?, row.get(1)?)));
        let (stored, result): (Vec<u8>, Vec<u8>) = row.unwrap();
        (stored, result, token.to_string())
    };
    let ((key, good, token), (_, moved, _)) = (of("k"), of("other"));
    let flipped = |at: usize| {
        let mut changed = good.clone();
        changed[at] ^= 1;
        changed
    };
    let cut = good[..good.len() - 1].to_vec();
    for damaged in [flipped(good.len() - 1), flipped(40), cut, moved] {
        let update = "UPDATE retryproof_records SET result = ?1 WHERE key = ?2";
        assert_eq!(db.execute(update, (&damaged, &key)).unwrap(), 1);
        let body = err(&run(&place, &["get", "work", "k", "--body"], 5));
        assert!(body.contains("stored record unreadable"), "{body}");
        let rest = out(&run(&place, &["get", "work", "k"], 0));
        assert!(rest.contains("(cannot be read: ") && rest.contains(&token), "{rest}");
        let ran = place.run(&[], "echo twice; touch ran").output().unwrap();
        assert_eq!((code(&ran), out(&ran)), (125, String::new()), "{}", err(&ran));
        assert!(!place.path("ran").exists(), "nothing runs");
        // Lists read no results.
        for list in [&["ls"][..], &["stuck"], &["stats"], &["top", "--count", "1"]] {
            run(&place, list, 0);
        }
        let (_, now, _) = of("k");
        assert!(now == damaged, "the record has changed");
    }
    // An operator can still erase or forget the record.
    for verb in ["erase", "forget"] {
        run(&place, &[verb, "work", "k", "--token", &token, "--reason", "a test", "--yes"], 0);
    }
}
