// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change in a table, beyond the conformance kit: directly, and as literals
//! through a pooler.

use retryproof_core::store::{Force, ForceRequest, Forced, Inspect};
use retryproof_core::{Fingerprint, IdempotencyStore, OwnerId};
use retryproof_postgres::{PostgresConfig, PostgresStore};

use crate::support::{
    Table, completion, execute, grant, hex, id, pgbouncer, postgres, replay, request,
};

async fn places() -> Vec<(Table, PostgresStore)> {
    let mut places = Vec::new();
    for url in [postgres(), pgbouncer()] {
        let table = Table::new().await;
        let config = PostgresConfig::from_url(&url).expect("a valid URL");
        let store = PostgresStore::connect(config.with_table_name(&table.name)).await;
        places.push((table, store.expect("connected")));
    }
    places
}

#[tokio::test]
async fn ops_1_released_rows_are_not_scanned_and_odd_names_are_counted() {
    for (table, store) in places().await {
        let mut stranger = table.stranger().await;
        execute(&store, &id("kept"), "result").await;
        let kept = format!("UPDATE \"{}\" SET state=2", table.name);
        assert_eq!(stranger.run(kept).await, 1);
        let owner = OwnerId::new();
        grant(&store, &id("released"), owner).await;
        let _ = store.release(&id("released"), owner).await.expect("released");
        execute(&store, &id("seen"), "result").await;
        execute(&store, &id("odd"), "result").await;
        let odd = format!(
            "UPDATE \"{}\" SET key=decode('ff','hex') WHERE key={}",
            table.name,
            hex("odd")
        );
        assert_eq!(stranger.run(odd).await, 1);
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
}

#[tokio::test]
async fn ops_4_a_resolve_keeps_the_fingerprint_of_the_grant() {
    for (_table, store) in places().await {
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
}

#[tokio::test]
async fn ops_4_an_erased_answer_is_in_no_column() {
    for (table, store) in places().await {
        let mut stranger = table.stranger().await;
        let owner = OwnerId::new();
        let token = grant(&store, &id("k"), owner).await.token;
        let done = completion("canary");
        let _ = store.complete(&id("k"), owner, &done).await.expect("completed");
        let left = format!(
            "SELECT count(*) FROM \"{}\" WHERE position({} IN result)>0",
            table.name,
            hex("canary")
        );
        assert_eq!(stranger.number(left.clone()).await, 1, "the test finds what it looks for");
        let forced = store.force(&id("k"), &ForceRequest::erase(token)).await.expect("answered");
        assert!(matches!(forced, Forced::Applied), "{forced:?}");
        assert_eq!(stranger.number(left).await, 0);
    }
}
