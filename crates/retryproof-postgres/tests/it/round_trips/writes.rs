// SPDX-License-Identifier: MIT OR Apache-2.0
//! On a separate server: what a replay writes, and what is left after the server has crashed.

use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, Peeked};
use retryproof_core::{IdempotencyStore, OwnerId};

use crate::support::server::Server;
use crate::support::{Table, body, completion, execute, grant, id, replay, request};

#[tokio::test]
async fn acq_8_a_replay_writes_not_one_byte_of_log() {
    let server = Server::start().await;
    let table = Table::on(server.url()).await;
    let (first, second) = (table.store().await, table.store().await);
    for at in 0..1_000 {
        execute(&first, &id(&format!("k{at}")), "result").await;
    }
    let mut stranger = table.stranger().await;
    // Pages that a read would tidy up on the way are tidy.
    stranger.run(format!("VACUUM \"{}\"", table.name)).await;
    stranger.run("CHECKPOINT").await;
    let position = "SELECT (pg_current_wal_insert_lsn()-'0/0')::bigint";
    let transaction = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    replay(&second, &id("k0")).await;
    let before = (stranger.number(position).await, stranger.number(transaction).await);
    for round in ["first contact", "known"] {
        for at in 0..1_000 {
            assert_eq!(replay(&second, &id(&format!("k{at}"))).await, "result", "{round}");
        }
    }
    let owner = OwnerId::new();
    for at in 0..1_000 {
        assert!(matches!(second.peek(&id(&format!("k{at}"))).await, Ok(Peeked::Complete(_))));
        assert!(matches!(second.peek(&id(&format!("none {at}"))).await, Ok(Peeked::Absent)));
    }
    let after = (stranger.number(position).await, stranger.number(transaction).await);
    println!("log bytes over 2,000 replays and 2,000 looks: {}", after.0 - before.0);
    assert_eq!(after, before, "log position and next transaction id");
    // In flight is a read too.
    grant(&first, &id("held"), owner).await;
    let before = (stranger.number(position).await, stranger.number(transaction).await);
    for _ in 0..100 {
        assert!(matches!(
            second.acquire(&id("held"), &request(OwnerId::new())).await,
            Ok(Acquired::Busy { .. })
        ));
    }
    assert_eq!((stranger.number(position).await, stranger.number(transaction).await), before);
}

#[tokio::test]
async fn sto_5_a_crashed_server_comes_back_without_a_restart_of_ours() {
    let mut server = Server::start().await;
    let table = Table::on(server.url()).await;
    let (store, waiter) = (table.store().await, std::sync::Arc::new(table.store().await));
    let (done, held, owner) = (id("done"), id("held"), OwnerId::new());
    execute(&store, &done, "result").await;
    let lease = grant(&store, &held, owner).await;
    server.kill();
    for at in 0..5 {
        let error = store
            .acquire(&id(&format!("k{at}")), &request(OwnerId::new()))
            .await
            .map(drop)
            .expect_err("down");
        assert!(error.is_retryable(), "{error}");
        assert!(store.complete(&held, owner, &completion("x")).await.is_err());
        assert!(
            waiter.wait_for_change(&held, lease.token, Duration::from_millis(10)).await.is_err()
        );
    }
    server.restart().await;
    // The very next calls, and nothing that was acknowledged is lost.
    assert_eq!(replay(&store, &done).await, "result");
    match store.peek(&held).await.expect("looked") {
        Peeked::Busy { token, .. } => assert_eq!(token, lease.token),
        other => panic!("the lease is lost: {other:?}"),
    }
    execute(&store, &id("new"), "result").await;
    // Notifications arrive again, without anybody's doing; from the first on.
    let listening = async {
        while format!("{waiter:?}{store:?}").matches("listening: true").count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), listening).await.expect("both listen again");
    let (told, teller) = (id("told"), OwnerId::new());
    let token = grant(&store, &told, teller).await.token;
    let waiting = {
        let (waiter, told) = (std::sync::Arc::clone(&waiter), told.clone());
        tokio::spawn(
            async move { waiter.wait_for_change(&told, token, Duration::from_secs(30)).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    let started = tokio::time::Instant::now();
    assert_eq!(
        store.complete(&told, teller, &completion("told")).await.expect("completed"),
        FencedWrite::Applied
    );
    waiting.await.expect("no panic").expect("woken");
    // The net is more than 150 ms away.
    assert!(started.elapsed() < Duration::from_millis(150), "{:?}", started.elapsed());
    assert_eq!(
        store.complete(&held, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
    match waiter.acquire(&held, &request(OwnerId::new())).await.expect("answered") {
        Acquired::Complete(stored) => assert_eq!(body(&stored), "late"),
        other => panic!("{other:?}"),
    }
}
