// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting: for hot keys, for rows that another connection has locked, and for a result of another
//! process.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite, LiveLease, Peeked};
use retryproof_core::{
    ErrorKind, IdempotencyContext, IdempotencyEngine, IdempotencyStore, OwnerId,
};
use retryproof_mysql::MysqlStore;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::time::Instant;

use crate::support::{
    CANARY, LONG, Table, assert_masked, body, completion, execute, grant, id, replay, request, sql,
    stranger,
};

const MS: Duration = Duration::from_millis(1);
/// The time limit for a task. A task that takes longer must be waiting for a key that never becomes
/// free.
const STUCK: Duration = Duration::from_secs(60);

/// 16 tasks repeatedly acquire, complete, release, take over and purge 4 keys. No deadlock and no
/// lock time-out reaches a caller, and no key has two holders at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_2_hot_keys_surface_no_deadlock() {
    use retryproof_core::store::Purge as _;
    let table = Table::new().await;
    for returning in [true, false] {
        let config = table.config().with_returning(returning);
        let store = Arc::new(MysqlStore::connect(config).await.expect("connected"));
        let tasks: Vec<_> = (0..16)
            .map(|task: u32| {
                let (store, began) = (Arc::clone(&store), Instant::now());
                tokio::spawn(async move {
                    let (mut granted, mut round) = (0, 0);
                    // Count grants instead of rounds: on a busy machine, a slow holder keeps the
                    // key busy for many rounds.
                    while round < 150 || granted < 7 {
                        assert!(began.elapsed() < STUCK, "{granted} grants in {round} rounds");
                        round += 1;
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
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("the task ends, so no key is stuck");
        }
    }
}

/// While an open transaction, such as a joined completion that is not committed (CMP-7), keeps a
/// record's row locked, a call on that record waits for at most a second. Calls for other keys are
/// not delayed, and a caller that waits through the engine is answered at its own deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_6_a_row_locked_by_an_open_transaction_holds_nobody_beyond_their_deadline() {
    let table = Table::new().await;
    let store = table.store().await;
    let (locked, owner) = (id(CANARY), OwnerId::new());
    let mut req = request(owner);
    req.lease = 50 * MS;
    let Ok(Acquired::Granted(first)) = store.acquire(&locked, &req).await else {
        panic!("not granted")
    };

    let mut theirs = stranger().await;
    sql(&mut theirs, "BEGIN").await;
    sql(
        &mut theirs,
        &format!(
            "UPDATE `{}` SET takeovers = 1 WHERE scope = 'mysql.tests' AND k = '{CANARY}'",
            table.name
        ),
    )
    .await;
    while !matches!(store.peek(&locked).await, Ok(Peeked::Absent)) {
        tokio::time::sleep(5 * MS).await;
    }

    // The takeover cannot happen while the row is locked. The answer is `Busy` with no remaining
    // lease, and with the holder's token and note.
    let started = Instant::now();
    match store.acquire(&locked, &request(OwnerId::new())).await {
        Ok(Acquired::Busy(LiveLease { remaining, token, holder, .. })) => {
            assert_eq!((remaining, token, holder), (Duration::ZERO, first.token, req.holder))
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // Calls for other keys are not delayed.
    execute(&store, &id("another"), "result").await;

    // The holder itself cannot complete while the transaction is open. The error is `Unavailable`,
    // can be retried, and does not show the key.
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
    // After the caller's wait, the call can take as long as one more call of the store, which waits
    // up to a second for the lock.
    assert!(took >= wait && took < wait + Duration::from_millis(1_600), "{took:?}");

    sql(&mut theirs, "ROLLBACK").await;
    match store.acquire(&locked, &request(OwnerId::new())).await {
        Ok(Acquired::Granted(grant)) => assert!(grant.took_over && grant.token > first.token),
        other => panic!("{other:?}"),
    }
}

/// Another connection has inserted a record and not committed it: the acquire waits, and the work
/// does not run twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_1_an_uncommitted_record_is_waited_for() {
    let table = Table::new().await;
    let store = Arc::new(table.store().await);
    let mut theirs = stranger().await;
    sql(&mut theirs, "BEGIN").await;
    let insert = format!(
        "INSERT INTO `{}` VALUES ('mysql.tests','k',1,X'00112233445566778899AABBCCDDEEFF',5,0,\
         UTC_TIMESTAMP(6)+INTERVAL 1 DAY,UTC_TIMESTAMP(6)+INTERVAL 1 DAY,NULL,NULL,?,NULL,NULL)",
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

/// Measures the time from a completion until a waiter of another store, which represents another
/// process, has the result (ACQ-4).
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
        // In each round, complete at a different point between two polls of the waiter, which are
        // up to 40 ms apart.
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

/// Within a process, no waiter depends on polling.
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

/// Waiting callers hold no connection: many more waiters than connections do not delay other calls
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
