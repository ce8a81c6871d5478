// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change in a file, beyond the conformance kit.

use std::time::Duration;

use retryproof_core::store::{
    Completion, FencedWrite, Force, ForceRequest, Forced, Inspect, Purge as _,
};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_sqlite::SqliteStore;

use crate::support::{DAY, Dir, Wall, completion, execute, grant, id, replay};

/// Returns whether the text is in the file or in its log.
fn is_on_disk(dir: &Dir, text: &str) -> bool {
    ["records.db", "records.db-wal"].iter().any(|name| {
        let bytes = std::fs::read(dir.path().join(name)).expect("the file is read");
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[tokio::test]
async fn ops_1_a_released_record_with_a_log_is_not_scanned() {
    let dir = Dir::new();
    let store = dir.store();
    execute(&store, &id("kept"), "result").await;
    let rows = dir.stranger().execute("UPDATE retryproof_records SET state = 2", []);
    assert_eq!(rows.expect("changed"), 1);
    execute(&store, &id("seen"), "result").await;
    let page = store.scan(None, 10).await.expect("scanned");
    assert_eq!((page.records.len(), page.unreadable), (1, 0));
    assert_eq!(page.records[0].id, id("seen"));
}

/// Scans the whole store. Returns the number of records found, and of unreadable ones.
async fn scanned(store: &SqliteStore, limit: usize) -> (usize, u64) {
    let (mut after, mut found, mut unreadable) = (None, 0, 0);
    loop {
        let page = store.scan(after.as_ref(), limit).await.expect("scanned");
        found += page.records.len();
        unreadable += page.unreadable;
        after = page.next;
        if after.is_none() {
            return (found, unreadable);
        }
    }
}

#[tokio::test]
async fn ops_1_names_that_are_not_text_are_counted() {
    let dir = Dir::new();
    let store = dir.store();
    for key in ["a", "b", "c"] {
        execute(&store, &id(key), "result").await;
    }
    let spoilt =
        dir.stranger().execute("UPDATE retryproof_records SET key = x'ff' WHERE key = x'61'", []);
    assert_eq!(spoilt.expect("changed"), 1);
    assert_eq!(scanned(&store, 1).await, (2, 1));
}

/// A script has written a key as text. SQLite keeps it as text, which it sorts before all keys.
#[tokio::test]
async fn ops_1_a_key_of_another_type_is_counted() {
    let dir = Dir::new();
    let store = dir.store();
    for key in ["a", "b", "c"] {
        execute(&store, &id(key), "result").await;
    }
    let spoilt =
        dir.stranger().execute("UPDATE retryproof_records SET key = 'b' WHERE key = x'62'", []);
    assert_eq!(spoilt.expect("changed"), 1);
    for limit in [1, 10] {
        assert_eq!(scanned(&store, limit).await, (2, 1), "pages of {limit}");
    }
}

#[tokio::test]
async fn ops_3_sto_4_a_resolved_record_is_purged_when_its_ttl_is_over() {
    let (dir, wall) = (Dir::new(), Wall::new());
    let store = SqliteStore::open_with(wall.on(dir.config())).expect("opened");
    let id = id("k");
    // The ttl of the acquire is longer than the ttl of the resolve below.
    let token = grant(&store, &id, OwnerId::new()).await.token;
    let (ttl, tick) = (DAY / 2, Duration::from_micros(1));
    let done = Completion::new(completion("result").value, ttl, None);
    let resolve = ForceRequest::resolve(&id, token, done).even_if_live();
    assert!(matches!(store.force(&id, &resolve).await, Ok(Forced::Applied)));
    wall.forward(ttl - tick);
    assert_eq!(store.purge(10).await.expect("purged"), 0);
    assert_eq!(replay(&store, &id).await, "result");
    wall.forward(tick);
    assert_eq!(store.purge(10).await.expect("purged"), 1);
}

#[tokio::test]
async fn ops_4_an_erased_answer_is_in_no_column() {
    let dir = Dir::new();
    let store = dir.store();
    let owner = OwnerId::new();
    let token = grant(&store, &id("k"), owner).await.token;
    let done = completion("canary");
    let _ = store.complete(&id("k"), owner, &done).await.expect("completed");
    let left = || {
        let sql = "SELECT count(*) FROM retryproof_records WHERE instr(result, x'63616e617279')";
        dir.stranger().query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counted")
    };
    assert_eq!(left(), 1, "the test finds what it looks for");
    let forced = store.force(&id("k"), &ForceRequest::erase(token)).await.expect("answered");
    assert!(matches!(forced, Forced::Applied), "{forced:?}");
    assert_eq!(left(), 0);
}

#[tokio::test]
async fn ops_4_no_byte_of_an_erased_answer_stays_in_the_file() {
    // SQLite keeps a small value in the page of its row, and a larger value in separate pages.
    for size in [6, 1_000, 10_000, 300_000] {
        for forget in [false, true] {
            let dir = Dir::new();
            let store = dir.store();
            execute(&store, &id("before"), &"n".repeat(size)).await;
            execute(&store, &id("k"), &"canary".repeat(size / 6)).await;
            execute(&store, &id("after"), &"n".repeat(size)).await;
            assert!(is_on_disk(&dir, "canary"), "the test finds what it looks for");
            let token = store.get(&id("k")).await.expect("read").expect("a record").token;
            let req = if forget { ForceRequest::forget(token) } else { ForceRequest::erase(token) };
            let forced = store.force(&id("k"), &req).await.expect("answered");
            assert!(matches!(forced, Forced::Applied), "{forced:?}");
            assert!(!is_on_disk(&dir, "canary"), "{size} bytes, forget: {forget}");
            assert_eq!(replay(&store, &id("after")).await, "n".repeat(size));
        }
    }
}

#[tokio::test]
async fn ops_4_an_erase_fails_while_a_reader_keeps_the_former_answer_in_the_log() {
    for forget in [false, true] {
        let dir = Dir::new();
        let config = dir.config().with_busy_timeout(Duration::from_millis(50));
        let store = SqliteStore::open_with(config).expect("the store opens");
        let owner = OwnerId::new();
        execute(&store, &id("k"), "canary").await;
        grant(&store, &id("other"), owner).await;
        let token = store.get(&id("k")).await.expect("read").expect("a record").token;
        let req = if forget { ForceRequest::forget(token) } else { ForceRequest::erase(token) };

        let reader = dir.stranger();
        let count = "SELECT count(*) FROM retryproof_records";
        reader.execute_batch("BEGIN").expect("begun");
        reader.query_row(count, [], |row| row.get::<_, i64>(0)).expect("counted");
        let error = store.force(&id("k"), &req).await.expect_err("the log is in use");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("write-ahead log"), "{error}");
        let done = store.complete(&id("other"), owner, &completion("done")).await;
        assert!(done.is_ok(), "the reader delays no completion: {done:?}");

        reader.execute_batch("COMMIT").expect("ended");
        let forced = store.force(&id("k"), &req).await.expect("answered");
        assert_eq!(matches!(forced, Forced::Absent), forget, "{forced:?}");
        assert!(!is_on_disk(&dir, "canary"), "forget: {forget}");
    }
}

/// SQLite may leave a copy of a row in the unused part of a page from which it has moved the row.
#[tokio::test]
async fn ops_4_a_vacuum_removes_the_copies_that_moved_rows_have_left() {
    let dir = Dir::new();
    let store = dir.store();
    let mut held = Vec::new();
    for n in 0..300 {
        let (id, owner) = (id(&format!("k{n}")), OwnerId::new());
        let token = grant(&store, &id, owner).await.token;
        held.push((id, owner, token));
    }
    // Each row grows after its neighbours were written, so SQLite has to split its page.
    for (id, owner, _) in &held {
        let done = store.complete(id, *owner, &completion(&"canary".repeat(100))).await;
        assert_eq!(done.expect("completed"), FencedWrite::Applied);
    }
    for (id, _, token) in &held {
        let forced = store.force(id, &ForceRequest::erase(*token)).await.expect("answered");
        assert!(matches!(forced, Forced::Applied), "{forced:?}");
    }
    dir.stranger()
        .execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")
        .expect("the file is written anew");
    assert!(!is_on_disk(&dir, "canary"));
}
