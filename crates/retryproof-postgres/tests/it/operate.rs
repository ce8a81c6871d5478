// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change in a table, beyond the conformance kit, with a direct connection
//! and with literals through a pooler.

use std::time::Duration;

use retryproof_core::store::{Force, ForceRequest, Forced, Inspect};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use sqlx_core::pool::PoolOptions;
use sqlx_postgres::{PgListener, PgPool};

use crate::round_trips::plans::gone;
use crate::support::{Table, completion, execute, grant, hex, id, pgbouncer, postgres};

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
async fn ops_1_a_page_reads_no_more_rows_than_its_limit() {
    // `Session` uses prepared statements. `Transaction` sends the values as literals.
    for pooler in [Pooler::Session, Pooler::Transaction] {
        let table = Table::new().await;
        let name = &table.name;
        let mut stranger = table.stranger().await;
        // Turn autovacuum off, because it would read rows for its own statistics.
        stranger.run(format!("ALTER TABLE \"{name}\" SET (autovacuum_enabled=off)")).await;
        let fill = format!(
            "INSERT INTO \"{name}\" SELECT 's'::bytea, n::text::bytea, 0, \
             decode(repeat('00',16),'hex'), 1, 0, to_timestamp(0), 4000000000000000 \
             FROM generate_series(1,5000) AS n"
        );
        assert_eq!(stranger.run(fill).await, 5_000);
        let url = format!("{}?application_name=scan_{name}", table.url);
        let config = PostgresConfig::from_url(&url).expect("a URL").with_table_name(name);
        let store = PostgresStore::connect(config.with_pooler(pooler)).await.expect("connected");
        let mut after = None;
        for _ in 0..3 {
            let found = store.scan(after.as_ref(), 10).await.expect("scanned");
            assert!(found.records.is_empty() && found.unreadable == 0, "{found:?}");
            after = found.next;
            assert!(after.is_some(), "more rows follow");
        }
        drop(store);
        gone(&mut stranger, &format!("scan_{name}")).await;
        let read = format!(
            "SELECT (seq_tup_read+idx_tup_fetch)::bigint FROM pg_stat_user_tables \
             WHERE relname='{name}'"
        );
        let read = stranger.number(read).await;
        assert!((30..40).contains(&read), "{read} rows were read for three pages of 10");
    }
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

/// Waiters are notified before the operator's change is answered, because the operator's process
/// ends right after the answer. That process has just started, so it has received no announcement
/// of a waiter.
#[tokio::test]
async fn ops_4_acq_4_a_change_by_an_operator_is_told_before_its_answer() {
    let table = Table::new().await;
    let holder = table.store().await;
    let options = table.url.parse().expect("a URL");
    let pool: PgPool = PoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await.expect("a listener");
    listener.listen(&format!("{}_wake", table.name)).await.expect("it listens");
    for (key, url) in [("a", postgres()), ("b", pgbouncer())] {
        for resolves in [false, true] {
            let id = id(&format!("{key} {resolves}"));
            let token = grant(&holder, &id, OwnerId::new()).await.token;
            let config = PostgresConfig::from_url(&url).expect("a valid URL");
            let operator = PostgresStore::connect(config.with_table_name(&table.name)).await;
            let operator = operator.expect("connected");
            let req = match resolves {
                true => ForceRequest::resolve(&id, token, completion("forced")),
                false => ForceRequest::release(token),
            };
            let forced = operator.force(&id, &req.even_if_live()).await.expect("answered");
            drop(operator);
            assert!(matches!(forced, Forced::Applied), "{forced:?}");
            let heard = tokio::time::timeout(Duration::from_secs(5), listener.recv()).await;
            let heard = heard.expect("the change should be announced").expect("a message");
            // The second part of the message is the hash of the identity.
            let (from, change) = heard.payload().split_at(16);
            assert!(from.bytes().all(|digit| digit == b'0') && change.len() == 17, "{heard:?}");
            assert!(change.starts_with('c'), "{heard:?}");
        }
    }
}
