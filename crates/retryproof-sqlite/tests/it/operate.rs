// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change in a file, beyond the conformance kit.

use retryproof_core::store::{Force, ForceRequest, Forced, Inspect};
use retryproof_core::{Fingerprint, IdempotencyStore, OwnerId};

use crate::support::{Dir, completion, execute, grant, id, replay, request};

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
    let (mut after, mut found, mut unreadable) = (None, 0, 0);
    loop {
        let page = store.scan(after.as_ref(), 1).await.expect("scanned");
        found += page.records.len();
        unreadable += page.unreadable;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!((found, unreadable), (2, 1));
}

#[tokio::test]
async fn ops_4_a_resolve_keeps_the_fingerprint_of_the_grant() {
    let dir = Dir::new();
    let store = dir.store();
    let sent = Fingerprint::new(&[1, 7]).expect("valid");
    let owner = OwnerId::new();
    let req = request(owner).with_fingerprint(Some(sent));
    let _ = store.acquire(&id("k"), &req).await.expect("acquired");
    let token = store.get(&id("k")).await.expect("read").expect("a record").token;
    let resolve = ForceRequest::resolve(token, completion("forced")).even_if_live();
    let forced = store.force(&id("k"), &resolve).await.expect("answered");
    assert!(matches!(forced, Forced::Applied), "{forced:?}");
    assert_eq!(replay(&store, &id("k")).await, "forced");
    let found = store.get(&id("k")).await.expect("read").expect("a record");
    assert!(found.has_fingerprint);
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
