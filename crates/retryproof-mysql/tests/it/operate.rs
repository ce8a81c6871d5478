// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operators see and change in a table, beyond the conformance kit.

use retryproof_core::store::{Force, ForceRequest, Forced, Inspect};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::support::server::Server;
use crate::support::{Table, completion, execute, grant, id, sql, stranger};

async fn number(text: String) -> i64 {
    let row = stranger().await.fetch_one(AssertSqlSafe(text)).await.expect("the row is read");
    row.get::<i64, _>(0)
}

/// Returns the sum of the server's counters whose names match `pattern`, over all connections.
async fn counted(conn: &mut MySqlConnection, pattern: &str) -> u64 {
    let show = format!("SHOW GLOBAL STATUS LIKE '{pattern}'");
    let rows = conn.fetch_all(AssertSqlSafe(show)).await.expect("counted");
    rows.iter().map(|row| row.get::<String, _>(1).parse::<u64>().expect("a number")).sum()
}

#[tokio::test]
async fn ops_1_a_page_reads_no_more_rows_than_its_limit() {
    // Use a separate server, where no other test reads rows.
    let server = Server::start(&[]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let mut root = server.root().await;
    let fill = "INSERT INTO app.retryproof_records (scope,k,state,owner,token,takeovers,expires_at,\
                purge_after) SELECT 's',seq,0,'',1,0,'1970-01-01','2100-01-01' FROM seq_1_to_5000";
    assert_eq!(sql(&mut root, fill).await, 5_000);
    let mut after = None;
    for page in 0..3 {
        let before = counted(&mut root, "Handler_read_next").await;
        let found = store.scan(after.as_ref(), 10).await.expect("scanned");
        let read = counted(&mut root, "Handler_read_next").await - before;
        assert!(read <= 10, "page {page} of 10 rows: the server read {read} rows");
        assert!(found.records.is_empty() && found.unreadable == 0, "{found:?}");
        after = found.next;
        assert!(after.is_some(), "more rows follow");
    }
}

#[tokio::test]
async fn ops_1_no_look_of_an_operator_reads_a_value() {
    let server = Server::start(&[]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let mut root = server.root().await;
    // Each value is stored in 61 separate pages.
    let value = "x".repeat(1_000_000);
    for at in 0..20 {
        execute(&store, &id(&format!("k{at}")), &value).await;
    }
    for look in ["get", "stats", "scan"] {
        // The server sometimes reads pages in the background, so try each call several times and
        // take the lowest count.
        let mut least = u64::MAX;
        for _ in 0..5 {
            let before = counted(&mut root, "Innodb_buffer_pool_read_requests").await;
            let bytes = match look {
                "get" => {
                    let found = store.get(&id("k0")).await.expect("read").expect("a record");
                    20 * found.value_bytes as u64
                }
                "stats" => store.stats().await.expect("counted").bytes,
                _ => {
                    let page = store.scan(None, 100).await.expect("scanned");
                    page.records.iter().map(|found| found.summary.value_bytes as u64).sum()
                }
            };
            assert!(bytes > 20_000_000, "{look}: {bytes} bytes");
            let read = counted(&mut root, "Innodb_buffer_pool_read_requests").await - before;
            least = least.min(read);
        }
        assert!(least < 60, "{look}: the server read {least} pages");
    }
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
async fn ops_4_an_erased_answer_is_in_no_column() {
    let table = Table::new().await;
    let store = table.store().await;
    let owner = OwnerId::new();
    let token = grant(&store, &id("k"), owner).await.token;
    let done = completion("canary");
    let _ = store.complete(&id("k"), owner, &done).await.expect("completed");
    let left = format!("SELECT COUNT(*) FROM `{}` WHERE LOCATE('canary', result) > 0", table.name);
    assert_eq!(number(left.clone()).await, 1, "the test finds what it looks for");
    // An erased record can be erased again, although no column of its row changes.
    for _ in 0..2 {
        let forced = store.force(&id("k"), &ForceRequest::erase(token)).await.expect("answered");
        assert!(matches!(forced, Forced::Applied), "{forced:?}");
        assert_eq!(number(left.clone()).await, 0);
    }
}
