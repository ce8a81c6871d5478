// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kept records, which a newer version released with a log (REC-3). This version writes none, and
//! treats them as absent.

use retryproof_core::store::{FencedWrite, Inspect, Peeked, Purge};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;

use super::is_true;
use crate::support::{LONG, Table, completion, grant, id, sql, stranger};

const TOKEN: u64 = 4_711;
const OWNER: [u8; 16] = *b"the former owner";
const PAST: &str = "'1970-01-01'";
const FUTURE: &str = "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR";

/// Writes a kept record with its last holder's note. The caller chooses `expires_at`, because no
/// rule fixes its value in a kept record.
async fn keep(table: &Table, key: &str, expires_at: &str) {
    let row = format!(
        "INSERT INTO `{}` (scope, k, state, owner, token, takeovers, expires_at, purge_after, fp, \
         holder, result, log) VALUES ('mysql.tests', '{key}', 2, \
         'the former owner', {TOKEN}, 3, {expires_at}, \
         UTC_TIMESTAMP(6) + INTERVAL 1 DAY, X'01', X'01007468652000000000', NULL, X'6C6F67')",
        table.name
    );
    assert_eq!(sql(&mut stranger().await, &row).await, 1);
}

#[tokio::test]
async fn rec_3_a_kept_record_is_absent() {
    let table = Table::new().await;
    for returning in [true, false] {
        let config = table.config().with_returning(returning);
        let store = MysqlStore::connect(config).await.expect("connected");
        for expires_at in [PAST, FUTURE] {
            let name = format!("{returning} {}", expires_at.len());
            let (key, owner) = (id(&name), OwnerId::new());
            keep(&table, &name, expires_at).await;
            let records = store.stats().await.expect("answered").records;

            assert!(matches!(store.peek(&key).await, Ok(Peeked::Absent)));
            assert!(store.get(&key).await.expect("answered").is_none());
            for owner in [owner, OwnerId::from_bytes(OWNER)] {
                let late = completion("late");
                let fenced = store.extend(&key, owner, LONG).await.expect("answered");
                assert_eq!(fenced, FencedWrite::NotOwner);
                let fenced = store.complete(&key, owner, &late).await.expect("answered");
                assert_eq!(fenced, FencedWrite::NotOwner);
                let fenced = store.release(&key, owner).await.expect("answered");
                assert_eq!(fenced, FencedWrite::AlreadyApplied);
            }

            let granted = grant(&store, &key, owner).await;
            assert!(!granted.took_over && granted.token.get() > TOKEN, "{granted:?}");
            let summary = store.get(&key).await.expect("answered").expect("granted");
            assert_eq!((summary.takeovers, summary.has_fingerprint), (Some(0), false));
            assert_eq!(store.stats().await.expect("answered").records, records + 1);
            assert!(is_true(&table, &key, "log IS NULL").await, "an earlier attempt's log is left");
        }
    }
}

#[tokio::test]
async fn rec_3_a_kept_record_is_purged_after_its_ttl() {
    let table = Table::new().await;
    let store = table.store().await;
    keep(&table, "past", PAST).await;
    keep(&table, "future", FUTURE).await;
    assert_eq!(store.purge(10).await.expect("purged"), 0, "not before its time");
    let age = format!("UPDATE `{}` SET purge_after = '1980-01-01'", table.name);
    assert_eq!(sql(&mut stranger().await, &age).await, 2);
    assert_eq!(store.purge(10).await.expect("purged"), 2);
}
