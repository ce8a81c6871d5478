// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records and notes that cannot be read. No verb changes them, and no verb fails for other records
//! because of them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;

use serde_json::Value;

use crate::support::{Place, code, err, out};

fn with_two_records() -> Place {
    let place = Place::sqlite();
    for key in ["good", "k"] {
        let run = place.retryproof(["run", "work", key, "--", "echo", "result"]).output().unwrap();
        assert_eq!(code(&run), 0, "{}", err(&run));
    }
    place
}

/// Changes the record `work k` in the database, without the command `retryproof`.
fn update(place: &Place, change: &str) {
    let db = rusqlite::Connection::open(place.db()).unwrap();
    let sql = format!("UPDATE retryproof_records SET {change} WHERE key = CAST('k' AS BLOB)");
    assert_eq!(db.execute(&sql, []).unwrap(), 1);
}

/// A file's name, or a server's text, cannot control the terminal.
#[test]
fn a_message_shows_control_characters_escaped() {
    let place = Place::sqlite();
    let stats = verb(&place, &["stats", "--store", "sqlite:a\u{1b}[2Jb/c.db"]);
    assert_eq!(code(&stats), 2, "{}", err(&stats));
    assert!(err(&stats).contains("a\\u{1b}[2Jb"), "{}", err(&stats));
}

fn verb(place: &Place, arguments: &[&str]) -> Output {
    place.retryproof(arguments).output().unwrap()
}

fn json(place: &Place, arguments: &[&str]) -> Value {
    let output = place.retryproof(arguments).args(["--output", "json"]).output().unwrap();
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

#[test]
fn rec_2_a_note_that_cannot_be_read_hides_only_the_holder() {
    let place = with_two_records();
    let token = json(&place, &["get", "work", "k"])["token"].to_string();
    let db = rusqlite::Connection::open(place.db()).unwrap();
    let select = "SELECT holder FROM retryproof_records WHERE key = CAST('k' AS BLOB)";
    let good: Vec<u8> = db.query_row(select, [], |row| row.get(0)).unwrap();
    let newer = [&[0xff], &good[1..]].concat();
    let of_another_owner = [&good[..2], &[0; 4], &good[6..]].concat();
    for (note, shown) in [
        (Some(newer), "(written by a newer version)"),
        (Some(of_another_owner), "unknown"),
        (Some(vec![1]), "unknown"),
        (Some(vec![0; 4_000]), "unknown"),
        (None, "unknown"),
    ] {
        let update = "UPDATE retryproof_records SET holder = ? WHERE key = CAST('k' AS BLOB)";
        assert_eq!(db.execute(update, [&note]).unwrap(), 1);
        let shows = out(&verb(&place, &["get", "work", "k"]));
        assert!(shows.contains(shown), "{note:?}: {shows}");
        assert_eq!(json(&place, &["get", "work", "k"])["holder"], Value::Null, "{note:?}");
        let listed = verb(&place, &["ls"]);
        assert_eq!((code(&listed), err(&listed)), (0, String::new()), "{note:?}");
        assert_eq!(json(&place, &["ls"]).as_array().unwrap().len(), 2, "{note:?}");
        for others in [&["stuck"][..], &["stats"], &["top", "--count", "1"], &["export"]] {
            let output = verb(&place, others);
            assert_eq!(code(&output), 0, "{note:?} {others:?}: {}", err(&output));
        }
    }
    let erase = ["erase", "work", "k", "--token", &token, "--reason", "a test", "--yes"];
    assert_eq!(code(&verb(&place, &erase)), 0);
}

#[test]
fn cmp_8_a_record_that_cannot_be_read_is_counted_and_stays() {
    let place = with_two_records();
    let token = json(&place, &["get", "work", "k"])["token"].to_string();
    let file = place.path("records.jsonl");
    std::fs::write(&file, verb(&place, &["export"]).stdout).unwrap();
    update(&place, "state = 9");

    assert_eq!(code(&verb(&place, &["get", "work", "k"])), 5);
    let listed = verb(&place, &["ls", "--output", "jsonl"]);
    assert_eq!((code(&listed), out(&listed).lines().count()), (0, 1));
    assert!(err(&listed).contains("cannot read: 1\n"), "{}", err(&listed));
    let top = verb(&place, &["top", "--count", "1"]);
    assert!(out(&top).contains("\"unreadable\":1"), "{}", out(&top));
    let exported = verb(&place, &["export"]);
    assert_eq!((code(&exported), out(&exported).lines().count()), (5, 1));
    assert!(err(&exported).contains("cannot read 1 of the records"), "{}", err(&exported));
    let import = ["import", file.to_str().unwrap(), "--reason", "a test", "--yes"];
    let imported = verb(&place, &import);
    assert_eq!(code(&imported), 4, "{}", err(&imported));
    assert!(err(&imported).contains("was not imported"), "{}", err(&imported));
    for change in ["release", "forget", "erase"] {
        let arguments = [change, "work", "k", "--token", &token, "--reason", "a test", "--yes"];
        assert_eq!(code(&verb(&place, &arguments)), 5, "{change}");
    }
    let db = rusqlite::Connection::open(place.db()).unwrap();
    let states: Vec<i64> = db
        .prepare("SELECT state FROM retryproof_records ORDER BY key")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(states, [1, 9]);
}

#[test]
fn cmp_8_a_result_that_cannot_be_read_is_left_out_of_an_export() {
    let place = with_two_records();
    update(&place, "result = x'525002'");
    let exported = verb(&place, &["export"]);
    assert_eq!((code(&exported), out(&exported).lines().count()), (5, 1), "{}", err(&exported));
}

/// A key on a Redis server, which a test reads and changes without the command `retryproof`.
pub(crate) struct RedisKey {
    server: String,
    key: Vec<u8>,
}

impl RedisKey {
    /// Sends a command about the key, and returns the bytes of the answer.
    fn send(&self, command: &[u8], arguments: &[&[u8]]) -> Vec<u8> {
        let arguments = [&[command, &self.key], arguments].concat();
        answer(&self.server, &arguments)
    }

    /// Returns the value of a string.
    pub(crate) fn value(&self) -> Vec<u8> {
        let answer = self.send(b"GET", &[]);
        let start = answer.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        answer[start..].strip_suffix(b"\r\n").unwrap().to_vec()
    }

    /// Replaces the value, but not the time to live.
    pub(crate) fn set(&self, value: &[u8]) {
        assert_eq!(self.send(b"SET", &[value, b"KEEPTTL"]), b"+OK\r\n");
    }
}

/// Returns the key of the only record of a store on Redis.
pub(crate) fn redis_with_record(place: &Place) -> RedisKey {
    let server = place.url.trim_start_matches("redis://").split(['/', '?']).next().unwrap();
    let prefix = place.url.split("prefix=").nth(1).unwrap();
    // Only keys of records contain a brace here.
    let found = answer(server, &[b"KEYS", format!("{prefix}:{{*").as_bytes()]);
    // The answer has three lines: `*1`, which is the number of keys, the length of the key, and the
    // key.
    let mut lines = found.splitn(3, |byte| *byte == b'\n');
    assert_eq!(lines.next(), Some(&b"*1\r"[..]));
    let key = lines.nth(1).unwrap().strip_suffix(b"\r\n").unwrap();
    RedisKey { server: server.to_owned(), key: key.to_vec() }
}

/// Sends a command to a Redis server, and returns the bytes of the answer.
fn answer(server: &str, command: &[&[u8]]) -> Vec<u8> {
    let mut line = TcpStream::connect(server).unwrap();
    let mut request = format!("*{}\r\n", command.len()).into_bytes();
    for part in command {
        request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        request.extend_from_slice(part);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"*1\r\n$4\r\nQUIT\r\n");
    line.write_all(&request).unwrap();
    let mut answer = Vec::new();
    line.read_to_end(&mut answer).unwrap();
    answer.strip_suffix(b"+OK\r\n").unwrap_or(&answer).to_vec()
}

/// Checks a store in which another program has written a list under the key of `work k`.
pub(crate) fn a_key_of_another_type_is_refused(place: &Place) {
    let run = place.run(&[], "echo result").output().unwrap();
    assert_eq!(code(&run), 0, "{}", err(&run));
    let file = place.path("records.jsonl");
    std::fs::write(&file, verb(place, &["export"]).stdout).unwrap();
    let key = redis_with_record(place);
    key.send(b"DEL", &[]);
    assert_eq!(key.send(b"RPUSH", &[b"other"]), b":1\r\n");

    let sentence = "the record's key holds a value of a different type, perhaps because another \
                    program uses this prefix; inspect the key, or delete it by hand";
    let get = verb(place, &["get", "work", "k"]);
    assert_eq!((code(&get), out(&get)), (5, String::new()), "{}", err(&get));
    assert!(err(&get).contains(sentence), "{}", err(&get));
    let resolve = ["resolve", "work", "k", "--done", "--ttl", "P1D"];
    for change in
        [&["release", "work", "k"][..], &["forget", "work", "k"], &["erase", "work", "k"], &resolve]
    {
        let why = ["--token", "1", "--reason", "a test", "--yes"];
        let refused = verb(place, &[change, &why].concat());
        assert_eq!((code(&refused), out(&refused)), (5, String::new()), "{change:?}");
        assert!(err(&refused).contains(sentence), "{change:?}: {}", err(&refused));
        assert!(!err(&refused).contains("requested"), "{change:?}: {}", err(&refused));
    }
    let run = place.run(&[], "echo must not run").output().unwrap();
    assert_eq!((code(&run), out(&run)), (125, String::new()), "{}", err(&run));
    assert!(err(&run).contains(sentence), "{}", err(&run));
    let imported = verb(place, &["import", file.to_str().unwrap(), "--reason", "a", "--yes"]);
    assert!(
        code(&imported) == 4 && err(&imported).contains("line 1 was not imported"),
        "{}",
        err(&imported)
    );
    // A scan skips a Redis key whose type is not string.
    assert_eq!(json(place, &["ls"]), Value::Array(Vec::new()));
    assert_eq!(key.send(b"LLEN", &[]), b":1\r\n", "the list stays");
    key.send(b"DEL", &[]);
}
