// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that break or stall, servers that restart, calls that are dropped: the store
//! continues, and each call gets its own answer.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, LiveLease, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;
use retryproof_testkit::wire::WireProxy;
use tokio::time::Instant;

use crate::round_trips::{server, through};
use crate::support::server::Server;
use crate::support::{
    CANARY, LONG, Table, assert_masked, completion, execute, grant, id, replay, request, sql,
    stranger,
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_restarted_server_is_found_again() {
    let mut server = Server::start(&[]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let (held, owner) = (id("held"), OwnerId::new());
    let token = grant(&store, &held, owner).await.token;
    execute(&store, &id("done"), "result").await;

    server.kill();
    let error = store
        .acquire(&id(CANARY), &request(OwnerId::new()))
        .await
        .map(drop)
        .expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_masked(&error);
    let error = store.complete(&held, owner, &completion(CANARY)).await.expect_err("it is gone");
    assert!(error.is_retryable(), "{error}");

    server.up().await;
    // The first call succeeds although the idle connections are dead, and no acknowledged result is
    // lost.
    assert_eq!(replay(&store, &id("done")).await, "result");
    match store.peek(&held).await.expect("looked") {
        Peeked::Busy(LiveLease { token: kept, .. }) => assert_eq!(kept, token),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        store.complete(&held, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
    execute(&store, &id("fresh"), "result").await;
}

/// All idle connections die together. The next calls, which start at the same time, succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_idle_connections_that_died_are_replaced_unseen() {
    let table = Table::new().await;
    let proxy = WireProxy::to(server()).await.expect("a proxy");
    let config = table.config_at(&through(&proxy));
    let store = Arc::new(MysqlStore::connect(config).await.expect("connected"));
    for round in 0..5 {
        let calls: Vec<_> = (0..32)
            .map(|at| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    execute(&store, &id(&format!("{round} {at}")), "result").await
                })
            })
            .collect();
        for call in calls {
            call.await.expect("no error reaches a caller");
        }
        proxy.cut();
        // Wait until the store has noticed that the connections were cut.
        tokio::time::sleep(20 * MS).await;
    }
}

/// After an answer is lost, the same statement with the same owner finds out whether the first one
/// took effect (ACQ-9, CMP-3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_9_lost_answers_are_settled_by_the_owner() {
    let table = Table::new().await;
    let proxy = WireProxy::to(server()).await.expect("a proxy");
    let store = MysqlStore::connect(table.config_at(&through(&proxy))).await.expect("connected");
    let direct = table.store().await;
    for round in 0..30 {
        let (key, owner) = (id(&format!("{CANARY} {round}")), OwnerId::new());
        // The connection is cut before, during or after the statement.
        let call = async {
            let acquired = store.acquire(&key, &request(owner)).await;
            let acquired = match acquired {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    assert_masked(&error);
                    store.acquire(&key, &request(owner)).await.expect("by now")
                }
                Ok(acquired) => acquired,
            };
            let Acquired::Granted(grant) = acquired else { panic!("{acquired:?}") };
            assert!(!grant.took_over);
            let done = match store.complete(&key, owner, &completion("result")).await {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    store.complete(&key, owner, &completion("result")).await.expect("by now")
                }
                Ok(done) => done,
            };
            assert!(matches!(done, FencedWrite::Applied | FencedWrite::AlreadyApplied), "{done:?}");
        };
        let cut = async {
            tokio::time::sleep(Duration::from_micros(150 * round)).await;
            proxy.cut();
        };
        tokio::join!(call, cut);
        assert_eq!(replay(&direct, &key).await, "result");
    }
}

/// A completion or release whose answer was lost is repeated, and reports that it was already
/// applied. Here, another store applies the first attempt, so that only the repetition can wake
/// this store's waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_3_acq_4_a_repetition_wakes_those_whom_the_lost_answer_did_not() {
    let table = Table::new().await;
    let (holder, other) = (Arc::new(table.store().await), table.store().await);
    for release in [false, true] {
        let mut took = Vec::new();
        for round in 0..21 {
            let (id, owner) = (id(&format!("{release} {round}")), OwnerId::new());
            let token = grant(&holder, &id, owner).await.token;
            let waiting = {
                let (holder, id) = (Arc::clone(&holder), id.clone());
                tokio::spawn(async move {
                    holder.wait_for_change(&id, token, LONG).await.expect("woken");
                    Instant::now()
                })
            };
            // After 150 ms, the waiter polls about every 40 ms. Each round changes the record at a
            // different point between two polls.
            tokio::time::sleep((150 + 7 * round) * MS).await;
            for (store, said) in
                [(&other, FencedWrite::Applied), (&*holder, FencedWrite::AlreadyApplied)]
            {
                let fenced = match release {
                    true => store.release(&id, owner).await,
                    false => store.complete(&id, owner, &completion("result")).await,
                };
                assert_eq!(fenced.expect("answered"), said);
            }
            let repeated = Instant::now();
            took.push(waiting.await.expect("no panic").saturating_duration_since(repeated));
        }
        took.sort();
        println!("woken by a repetition (release: {release}): {took:?}");
        assert!(took[10] < 8 * MS, "release: {release}, {took:?}");
    }
}

/// A call that is dropped in the middle of its statement closes its connection, and the next calls
/// get their own answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acq_11_a_call_dropped_in_the_middle_poisons_nothing() {
    let table = Table::new().await;
    let store =
        MysqlStore::connect(table.config().with_max_connections(2)).await.expect("connected");
    execute(&store, &id("done"), "result").await;
    let mut dropped = 0;
    for round in 0..200 {
        let (key, owner) = (id(&format!("k{round}")), OwnerId::new());
        let bound = Duration::from_micros(20 * (round % 50));
        dropped += u32::from(is_dropped(bound, store.acquire(&key, &request(owner))).await);
        dropped += u32::from(is_dropped(bound, store.peek(&id("done"))).await);
        dropped +=
            u32::from(is_dropped(bound, store.complete(&key, owner, &completion("other"))).await);
        assert_eq!(replay(&store, &id("done")).await, "result");
        let fresh = id(&format!("fresh{round}"));
        let owner = OwnerId::new();
        grant(&store, &fresh, owner).await;
        assert_eq!(store.release(&fresh, owner).await.expect("released"), FencedWrite::Applied);
    }
    // Every call is pending at its first poll. The shortest bound applies to 12 calls (4 rounds of
    // 3 calls), and leaves no time for a second poll.
    assert!(dropped >= 12, "only {dropped} calls were dropped");
}

/// Drops the call after `bound`, with a precision of microseconds, because most calls take less
/// than 1 ms, which is the precision of a timer.
async fn is_dropped(bound: Duration, call: impl Future) -> bool {
    let over = async {
        let end = Instant::now() + bound;
        while Instant::now() < end {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = call => false,
        () = over => true,
    }
}

/// A server does not answer. The store's own limit ends the call, and the permit of the call's
/// connection is free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_stalled_line_ends_by_the_clients_timer() {
    let table = Table::new().await;
    let proxy = WireProxy::to(server()).await.expect("a proxy");
    let config =
        table.config_at(&through(&proxy)).with_max_connections(2).with_call_timeout(1_000 * MS);
    let store = MysqlStore::connect(config).await.expect("connected");
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;
    proxy.stall(true);
    for _ in 0..2 {
        let error = store
            .acquire(&id(CANARY), &request(OwnerId::new()))
            .await
            .map(drop)
            .expect_err("stalled");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("in time"), "{error}");
        assert_masked(&error);
        assert_eq!(
            store.extend(&held, owner, LONG).await.expect_err("stalled").kind(),
            ErrorKind::Unavailable
        );
    }
    proxy.stall(false);
    assert_eq!(store.extend(&held, owner, LONG).await.expect("extended"), FencedWrite::Applied);
    execute(&store, &id("fresh"), "result").await;
}

/// A call ends at its own time limit even while it opens a connection to a server that does not
/// answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_call_includes_the_wait_for_a_connection() {
    let table = Table::new().await;
    let proxy = WireProxy::to(server()).await.expect("a proxy");
    let config = table.config_at(&through(&proxy)).with_max_connections(2);
    let config = config.with_call_timeout(1_000 * MS).with_connect_timeout(10_000 * MS);
    let store = MysqlStore::connect(config).await.expect("connected");
    proxy.stall(true);
    // The first call is sent over an open connection. The next calls need a new connection.
    for _ in 0..3 {
        let started = Instant::now();
        let error = store.peek(&id(CANARY)).await.expect_err("stalled");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("in time"), "{error}");
        assert!(started.elapsed() < 5_000 * MS, "{:?}", started.elapsed());
    }
}

/// Calls that wait for a lock occupy all connections for callers. Other callers get an error that
/// names the reason, and holders can still send heartbeats and completions (RUN-2).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_2_holders_have_connections_of_their_own() {
    let table = Table::new().await;
    let config = table.config().with_max_connections(4).with_call_timeout(1_500 * MS);
    let store = Arc::new(MysqlStore::connect(config).await.expect("connected"));
    let (held, locked, owner) = (id("held"), id("locked"), OwnerId::new());
    grant(&store, &held, owner).await;
    execute(&store, &locked, "result").await;
    sql(
        &mut stranger().await,
        &format!("UPDATE `{}` SET expires_at = '1980-01-01' WHERE k = 'locked'", table.name),
    )
    .await;
    let mut theirs = stranger().await;
    sql(&mut theirs, "BEGIN").await;
    let lock = format!(
        "UPDATE `{}` SET takeovers = 1 WHERE scope = 'mysql.tests' AND k = 'locked'",
        table.name
    );
    sql(&mut theirs, &lock).await;

    let rush: Vec<_> = (0..12)
        .map(|_| {
            let (store, locked) = (Arc::clone(&store), locked.clone());
            tokio::spawn(async move { store.acquire(&locked, &request(OwnerId::new())).await })
        })
        .collect();
    tokio::time::sleep(100 * MS).await;
    assert_eq!(store.extend(&held, owner, LONG).await.expect("extended"), FencedWrite::Applied);
    assert_eq!(
        store.complete(&held, owner, &completion("done")).await.expect("completed"),
        FencedWrite::Applied
    );
    assert!(!rush.iter().any(|call| call.is_finished()), "the holder waited for a caller");
    let mut turned_away = 0;
    for call in rush {
        match call.await.expect("no panic") {
            Ok(Acquired::Busy(LiveLease { remaining, .. })) => {
                assert_eq!(remaining, Duration::ZERO)
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                // The call's time limit passes while it waits for a connection or for the lock.
                let text = error.to_string();
                assert!(text.contains("max-connections") || text.contains("in time"), "{text}");
                turned_away += 1;
            }
        }
    }
    assert!(turned_away > 0, "no call was refused by a full pool");
    sql(&mut theirs, "ROLLBACK").await;
    execute(&store, &id("afterwards"), "result").await;
}
