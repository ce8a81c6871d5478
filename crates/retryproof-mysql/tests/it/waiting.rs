// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many at once on few rows, rows that another connection has locked, and how soon a waiter in another
//! process knows.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, Peeked};
use retryproof_core::{
    ErrorKind, IdempotencyContext, IdempotencyEngine, IdempotencyStore, OwnerId,
};
use retryproof_mysql::MysqlStore;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::time::Instant;

use crate::support::{
    CANARY, DAY, LONG, Table, assert_masked, body, completion, execute, grant, id, replay, request,
    sql, stranger,
};

const MS: Duration = Duration::from_millis(1);

/// 16 tasks on 4 keys that are granted, completed, released, taken over and purged over and over:
/// no deadlock and no lock time-out ever surfaces, and nobody holds a key twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_2_hot_keys_surface_no_deadlock() {
    use retryproof_core::store::Purge as _;
    let table = Table::new().await;
    for returning in [true, false] {
        let config = table.config().with_returning(returning);
        let store = Arc::new(MysqlStore::connect(config).await.expect("connected"));
        let tasks: Vec<_> = (0..16)
            .map(|task: u32| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let mut granted = 0;
                    for round in 0..150 {
                        let id = id(&format!("hot{}", (task + round) % 4));
                        let owner = OwnerId::new();
                        let lease = if round % 5 == 0 { 10 * MS } else { LONG };
                        let req = AcquireRequest::new(owner, lease, MS);
                        let Acquired::Granted(_) =
                            store.acquire(&id, &req).await.expect("answered")
                        else {
                            continue;
                        };
                        granted += 1;
                        let ended = match round % 4 {
                            0 => store.release(&id, owner).await,
                            1 => store.extend(&id, owner, 10 * MS).await,
                            _ => {
                                let mut done = completion("result");
                                done.ttl = MS;
                                store.complete(&id, owner, &done).await
                            }
                        };
                        ended.map(drop).expect("answered");
                        if round % 10 == 0 {
                            store.purge(100).await.expect("purged");
                        }
                    }
                    granted
                })
            })
            .collect();
        let mut granted = 0;
        for task in tasks {
            granted += task.await.expect("the task ends");
        }
        assert!(granted > 100, "only {granted} grants: the keys were not hot, but stuck");
    }
}

/// A joined completion that is not committed yet (CMP-7): nobody waits for it longer than a second,
/// nobody else is held up, and the waiter ends by its own deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_6_a_row_locked_by_an_open_transaction_holds_nobody_beyond_their_deadline() {
    let table = Table::new().await;
    let store = table.store().await;
    let (locked, owner) = (id(CANARY), OwnerId::new());
    let req = AcquireRequest::new(owner, 50 * MS, DAY);
    let Ok(Acquired::Granted(first)) = store.acquire(&locked, &req).await else {
        panic!("not granted")
    };

    let mut theirs = stranger().await;
    sql(&mut theirs, "BEGIN").await;
    sql(
        &mut theirs,
        &format!(
            "UPDATE `{}` SET taken = 1 WHERE scope = 'mysql.tests' AND k = '{CANARY}'",
            table.name
        ),
    )
    .await;
    while !matches!(store.peek(&locked).await, Ok(Peeked::Absent)) {
        tokio::time::sleep(5 * MS).await;
    }

    // A takeover that is held back: busy, with nothing left of the lease, and the holder's token.
    let started = Instant::now();
    match store.acquire(&locked, &request(OwnerId::new())).await {
        Ok(Acquired::Busy { remaining, token }) => {
            assert_eq!((remaining, token), (Duration::ZERO, first.token))
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // Others are not held up.
    execute(&store, &id("another"), "result").await;

    // The holder itself cannot complete beside the transaction: unavailable, to be repeated, and
    // the key is not shown.
    let error = store.complete(&locked, owner, &completion(CANARY)).await.expect_err("locked");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("locked"), "{error}");
    assert_masked(&error);

    let engine = IdempotencyEngine::new(table.store().await.into_shared());
    let wait = Duration::from_millis(300);
    let ctx = IdempotencyContext::builder("mysql.tests", CANARY)
        .wait_timeout(wait)
        .build()
        .expect("valid");
    let started = Instant::now();
    let answer = engine.execute(ctx, || async { Ok::<_, std::io::Error>(1_u32) }).await;
    let took = started.elapsed();
    assert!(format!("{answer:?}").contains("InFlight"), "{answer:?}");
    // The wait, and one call of the store, which waits a second for a lock.
    assert!(took >= wait && took < wait + Duration::from_millis(1_600), "{took:?}");

    sql(&mut theirs, "ROLLBACK").await;
    match store.acquire(&locked, &request(OwnerId::new())).await {
        Ok(Acquired::Granted(grant)) => assert!(grant.took_over && grant.token > first.token),
        other => panic!("{other:?}"),
    }
}

/// A record that another connection has inserted and not committed: it is waited for, not run twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_1_an_uncommitted_record_is_waited_for() {
    let table = Table::new().await;
    let store = Arc::new(table.store().await);
    let mut theirs = stranger().await;
    sql(&mut theirs, "BEGIN").await;
    let insert = format!(
        "INSERT INTO `{}` VALUES ('mysql.tests','k',1,X'00112233445566778899AABBCCDDEEFF',5,0,\
         UTC_TIMESTAMP(6)+INTERVAL 1 DAY,UTC_TIMESTAMP(6)+INTERVAL 1 DAY,NULL,?)",
        table.name
    );
    let query = sqlx::query(AssertSqlSafe(insert)).bind(completion("theirs").value.to_vec());
    theirs.execute(query).await.expect("inserted");
    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.acquire(&id("k"), &request(OwnerId::new())).await })
    };
    tokio::time::sleep(100 * MS).await;
    assert!(!waiting.is_finished());
    sql(&mut theirs, "COMMIT").await;
    match waiting.await.expect("no panic") {
        Ok(Acquired::Complete(stored)) => assert_eq!(body(&stored), "theirs"),
        other => panic!("{other:?}"),
    }
}

/// The time from a completion to the result in the hands of a waiter that only another store, as
/// another process has it, can wake (ACQ-4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_waiter_elsewhere_has_the_result_within_30_ms() {
    let table = Table::new().await;
    let (here, there) = (Arc::new(table.store().await), Arc::new(table.store().await));
    let mut late = Vec::new();
    for round in 0..40 {
        let (key, owner) = (id(&format!("k{round}")), OwnerId::new());
        let token = grant(&here, &key, owner).await.token;
        let waiter = {
            let (there, key) = (Arc::clone(&there), key.clone());
            tokio::spawn(async move {
                loop {
                    there.wait_for_change(&key, token, LONG).await.expect("waited");
                    if let Peeked::Complete(_) = there.peek(&key).await.expect("looked") {
                        return Instant::now();
                    }
                }
            })
        };
        // Anywhere in the waiter's pace of up to 40 ms.
        tokio::time::sleep(Duration::from_millis(200 + 7 * (round % 8))).await;
        assert_eq!(
            here.complete(&key, owner, &completion("result")).await.expect("completed"),
            FencedWrite::Applied
        );
        let done = Instant::now();
        late.push(waiter.await.expect("no panic").saturating_duration_since(done));
    }
    late.sort();
    let (p50, p99) = (late[late.len() / 2], late[late.len() * 99 / 100]);
    println!("wake-up in another process by polling: p50 {p50:?}, p99 {p99:?}, of {}", late.len());
    assert!(p50 <= Duration::from_millis(30), "p50 {p50:?} of {late:?}");
}

/// In one process nobody waits for the poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_4_a_waiter_in_the_same_process_is_woken() {
    let table = Table::new().await;
    let store = Arc::new(table.store().await);
    let mut late = Vec::new();
    for round in 0..20 {
        let (key, owner) = (id(&format!("k{round}")), OwnerId::new());
        let token = grant(&store, &key, owner).await.token;
        let waiter = {
            let (store, key) = (Arc::clone(&store), key.clone());
            tokio::spawn(async move {
                store.wait_for_change(&key, token, LONG).await.expect("waited");
                Instant::now()
            })
        };
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(
            store.complete(&key, owner, &completion("result")).await.expect("completed"),
            FencedWrite::Applied
        );
        let done = Instant::now();
        late.push(waiter.await.expect("no panic").saturating_duration_since(done));
        assert_eq!(replay(&store, &key).await, "result");
    }
    late.sort();
    assert!(late[late.len() / 2] <= 10 * MS, "{late:?}");
}

/// Waiting callers hold no connection: far more of them than there are connections hold nobody up
/// (ACQ-5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_5_waiters_hold_no_connection() {
    let table = Table::new().await;
    let config = table.config().with_max_connections(2);
    let store = Arc::new(MysqlStore::connect(config).await.expect("connected"));
    let (key, owner) = (id("held"), OwnerId::new());
    let token = grant(&store, &key, owner).await.token;
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let (store, key) = (Arc::clone(&store), key.clone());
            tokio::spawn(async move { store.wait_for_change(&key, token, LONG).await })
        })
        .collect();
    for at in 0..20 {
        execute(&store, &id(&format!("other{at}")), "result").await;
    }
    assert_eq!(
        store.complete(&key, owner, &completion("result")).await.expect("completed"),
        FencedWrite::Applied
    );
    for waiter in waiters {
        waiter.await.expect("no panic").expect("woken");
    }
}
