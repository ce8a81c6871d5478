// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change in a table, beyond the conformance kit.

use retryproof_core::store::{Force, ForceRequest, Forced, Inspect};
use retryproof_core::{Fingerprint, IdempotencyStore, OwnerId};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::support::{Table, completion, execute, grant, id, replay, request, sql, stranger};

async fn number(text: String) -> i64 {
    let row = stranger().await.fetch_one(AssertSqlSafe(text)).await.expect("the row is read");
    row.get::<i64, _>(0)
}

#[tokio::test]
async fn ops_1_released_rows_are_not_scanned_and_odd_names_are_counted() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("kept"), "result").await;
    let kept = format!("UPDATE `{}` SET state = 2", table.name);
    assert_eq!(sql(&mut stranger().await, &kept).await, 1);
    let owner = OwnerId::new();
    grant(&store, &id("released"), owner).await;
    let _ = store.release(&id("released"), owner).await.expect("released");
    execute(&store, &id("seen"), "result").await;
    execute(&store, &id("odd"), "result").await;
    let odd = format!("UPDATE `{}` SET k = X'FF' WHERE k = 'odd'", table.name);
    assert_eq!(sql(&mut stranger().await, &odd).await, 1);
    let (mut after, mut found, mut unreadable) = (None, Vec::new(), 0);
    loop {
        let page = store.scan(after.as_ref(), 1).await.expect("scanned");
        found.extend(page.records.into_iter().map(|record| record.id));
        unreadable += page.unreadable;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!((found, unreadable), (vec![id("seen")], 1));
}

#[tokio::test]
async fn ops_4_a_resolve_keeps_the_fingerprint_of_the_grant() {
    let table = Table::new().await;
    let store = table.store().await;
    let sent = Fingerprint::new(&[1, 7]).expect("valid");
    let req = request(OwnerId::new()).with_fingerprint(Some(sent));
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
    let table = Table::new().await;
    let store = table.store().await;
    let owner = OwnerId::new();
    let token = grant(&store, &id("k"), owner).await.token;
    let done = completion("canary");
    let _ = store.complete(&id("k"), owner, &done).await.expect("completed");
    let left = format!("SELECT COUNT(*) FROM `{}` WHERE LOCATE('canary', result) > 0", table.name);
    assert_eq!(number(left.clone()).await, 1, "the test finds what it looks for");
    // An erased record can be erased again, although no column changes.
    for _ in 0..2 {
        let forced = store.force(&id("k"), &ForceRequest::erase(token)).await.expect("answered");
        assert!(matches!(forced, Forced::Applied), "{forced:?}");
        assert_eq!(number(left.clone()).await, 0);
    }
}
