// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens when the clock steps back (ACQ-10), what a release leaves in the table, and the
//! purge.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{FencedWrite, Inspect, Peeked, Purge};
use retryproof_core::{FencingToken, IdempotencyStore, Identity, OwnerId};
use retryproof_mysql::MysqlStore;

use crate::support::{LONG, Table, completion, execute, grant, id, replay, sql, stranger};

/// One hour in microseconds. During a test, the server's clock does not catch up with a token that
/// is this far ahead.
const AHEAD: u64 = 3_600_000_000;

async fn token(store: &MysqlStore, id: &Identity) -> FencingToken {
    let owner = OwnerId::new();
    let grant = grant(store, id, owner).await;
    assert_eq!(store.release(id, owner).await.expect("released"), FencedWrite::Applied);
    grant.token
}

/// Tokens grow after a release, a takeover and an expired result, even if the stored token is ahead
/// of the server's clock, as if the clock had stepped back.
#[tokio::test]
async fn acq_10_tokens_grow_when_the_servers_clock_steps_back() {
    let table = Table::new().await;
    for returning in [true, false] {
        let store =
            MysqlStore::connect(table.config().with_returning(returning)).await.expect("connected");
        for (key, end) in [("released", ""), ("dead", "past"), ("done", "past")] {
            let key = id(&format!("{key} {returning}"));
            let owner = OwnerId::new();
            let before = grant(&store, &key, owner).await.token;
            match end {
                "" => assert_eq!(
                    store.release(&key, owner).await.expect("released"),
                    FencedWrite::Applied
                ),
                _ if key.key().expose().starts_with("done") => {
                    let done = store.complete(&key, owner, &completion("result")).await;
                    assert_eq!(done.expect("completed"), FencedWrite::Applied);
                }
                _ => {}
            }
            let past = if end.is_empty() { "" } else { ", expires_at = '1980-01-01'" };
            let change = format!(
                "UPDATE `{}` SET token = token + {AHEAD}{past} WHERE k = '{}'",
                table.name,
                key.key().expose()
            );
            assert_eq!(sql(&mut stranger().await, &change).await, 1);
            let after = token(&store, &key).await;
            assert!(after.get() > before.get() + AHEAD, "{after} after {before}");
        }
    }
}

/// A grant that waits for the row's lock read the clock before other grants and releases happened.
/// Its token is chosen under the lock, so the token is still the largest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_10_a_grant_that_waited_for_a_lock_draws_under_it() {
    let table = Table::new().await;
    for returning in [true, false] {
        let config = table.config().with_returning(returning);
        let store = Arc::new(MysqlStore::connect(config).await.expect("connected"));
        let key = id(&format!("k{returning}"));
        let first = token(&store, &key).await;
        let mut theirs = stranger().await;
        sql(&mut theirs, "BEGIN").await;
        let at = format!("WHERE scope = 'mysql.tests' AND k = 'k{returning}'");
        sql(&mut theirs, &format!("UPDATE `{}` SET token = token + {AHEAD} {at}", table.name))
            .await;
        let waiting = {
            let (store, key) = (Arc::clone(&store), key.clone());
            tokio::spawn(async move { grant(&store, &key, OwnerId::new()).await.token })
        };
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished());
        sql(&mut theirs, "COMMIT").await;
        let late = waiting.await.expect("granted");
        assert!(late.get() > first.get() + AHEAD, "{late} after {first}");
    }
}

/// A heartbeat that waits for the row's lock extends the lease from the instant at which it gets
/// the lock. If the extension counted from the start of the statement, this late heartbeat would
/// shorten a lease that a faster heartbeat, sent later, has already extended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_1_a_beat_that_waited_for_a_lock_counts_from_the_lock() {
    const LOCKED: Duration = Duration::from_millis(600);
    let table = Table::new().await;
    let store = Arc::new(table.store().await);
    let (key, owner) = (id("k"), OwnerId::new());
    grant(&store, &key, owner).await;
    let mut theirs = stranger().await;
    sql(&mut theirs, "BEGIN").await;
    let lock = format!("UPDATE `{}` SET purge_after = purge_after + INTERVAL 1 SECOND", table.name);
    assert_eq!(sql(&mut theirs, &lock).await, 1);
    let waiting = {
        let (store, key) = (Arc::clone(&store), key.clone());
        tokio::spawn(async move { store.extend(&key, owner, LONG).await })
    };
    tokio::time::sleep(LOCKED).await;
    assert!(!waiting.is_finished());
    sql(&mut theirs, "COMMIT").await;
    let beat = waiting.await.expect("the beat should not panic").expect("the beat should succeed");
    assert_eq!(beat, FencedWrite::Applied);
    let end = format!(
        "UPDATE `{}` SET purge_after = purge_after + INTERVAL 1 SECOND \
         WHERE expires_at > UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND",
        table.name,
        (LONG - LOCKED / 2).as_micros()
    );
    assert_eq!(sql(&mut stranger().await, &end).await, 1, "the lease should count from the lock");
}

/// Every call treats a released record as deleted, and a purge removes it only when no older
/// statement can still be running.
#[tokio::test]
async fn run_4_what_a_release_leaves_looks_deleted() {
    let table = Table::new().await;
    let store = table.store().await;
    let (key, owner) = (id("k"), OwnerId::new());
    grant(&store, &key, owner).await;
    assert_eq!(store.release(&key, owner).await.expect("released"), FencedWrite::Applied);

    assert!(matches!(store.peek(&key).await, Ok(Peeked::Absent)));
    assert!(store.get(&key).await.expect("answered").is_none());
    assert_eq!(store.stats().await.expect("answered").records, 0);
    assert_eq!(
        store.extend(&key, owner, Duration::from_secs(1)).await.expect("answered"),
        FencedWrite::NotOwner
    );
    assert_eq!(
        store.complete(&key, owner, &completion("late")).await.expect("answered"),
        FencedWrite::NotOwner
    );
    assert_eq!(store.release(&key, owner).await.expect("answered"), FencedWrite::AlreadyApplied);

    assert_eq!(store.purge(10).await.expect("purged"), 0, "not within the hour");
    let age = format!("UPDATE `{}` SET purge_after = purge_after - INTERVAL 61 MINUTE", table.name);
    assert_eq!(sql(&mut stranger().await, &age).await, 1);
    assert_eq!(store.purge(10).await.expect("purged"), 1);
    assert!(!grant(&store, &key, OwnerId::new()).await.took_over);
}

/// The purge needs several batches, and keeps live records.
#[tokio::test]
async fn sto_4_purge_goes_on_over_batches() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("live"), "result").await;
    let fill = format!(
        "INSERT INTO `{}` SELECT 'mysql.tests', CONCAT('k', seq), 1, \
         X'00112233445566778899AABBCCDDEEFF', seq, 0, '1980-01-01', '1980-01-01', NULL, NULL, 'x', 1, NULL FROM \
         seq_1_to_2500",
        table.name
    );
    assert_eq!(sql(&mut stranger().await, &fill).await, 2_500);
    assert_eq!(store.purge(1_200).await.expect("purged"), 1_200);
    assert_eq!(store.purge(10_000).await.expect("purged"), 1_300);
    assert_eq!(store.stats().await.expect("answered").records, 1);
    assert_eq!(replay(&store, &id("live")).await, "result");
}

/// A batch of the purge succeeds even if a trigger makes it take longer than the call timeout.
#[tokio::test]
async fn sto_5_a_batch_of_the_purge_has_more_time_than_a_call() {
    let table = Table::new().await;
    let config = table.config().with_call_timeout(std::time::Duration::from_secs(1));
    let store = MysqlStore::connect(config).await.expect("connected");
    let fill = format!(
        "INSERT INTO `{}` SELECT 'mysql.tests', CONCAT('k', seq), 1, \
         X'00112233445566778899AABBCCDDEEFF', seq, 0, '1980-01-01', '1980-01-01', NULL, NULL, 'x', 1, NULL FROM \
         seq_1_to_400",
        table.name
    );
    let mut stranger = stranger().await;
    sql(&mut stranger, &fill).await;
    let slow = format!(
        "CREATE TRIGGER `{0}_slow` BEFORE DELETE ON `{0}` FOR EACH ROW SET @slept = SLEEP(0.005)",
        table.name
    );
    sql(&mut stranger, &slow).await;
    assert_eq!(store.purge(1_000).await.expect("in time"), 400);
}
