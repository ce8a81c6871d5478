// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that break, stall or idle, calls that are dropped, a server that crashes: the store
//! continues, and each call gets its own answer.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite, LiveLease, Peeked};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};

use crate::round_trips::{proxied, store};
use crate::support::server::Server;
use crate::support::{
    Table, body, completion, execute, grant, id, pgbouncer, postgres, replay, request,
};

#[tokio::test]
async fn sto_5_a_line_that_was_cut_while_idle_is_replaced() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let store = store(&through, &table, Pooler::Session).await;
    for round in 0..5 {
        execute(&store, &id(&format!("k{round}")), "result").await;
        proxy.cut();
        assert_eq!(replay(&store, &id(&format!("k{round}"))).await, "result");
    }
    proxy.refuse(true);
    proxy.cut();
    let error =
        store.acquire(&id("k"), &request(OwnerId::new())).await.map(drop).expect_err("cut off");
    assert!(error.is_retryable(), "{error}");
    proxy.refuse(false);
    execute(&store, &id("k"), "result").await;
}

#[tokio::test]
async fn cmp_3_an_answer_that_was_lost_is_asked_for_again() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let store = Arc::new(store(&through, &table, Pooler::Session).await);
    for round in 0..10 {
        let (id, owner) = (id(&format!("k{round}")), OwnerId::new());
        let token = grant(&store, &id, owner).await.token;
        proxy.stall(true);
        let completing = {
            let (store, id) = (Arc::clone(&store), id.clone());
            tokio::spawn(async move { store.complete(&id, owner, &completion("result")).await })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        proxy.cut();
        proxy.stall(false);
        let fenced = completing.await.expect("no panic").expect("a second line");
        assert!(matches!(fenced, FencedWrite::Applied | FencedWrite::AlreadyApplied), "{fenced:?}");
        assert_eq!(replay(&store, &id).await, "result");
        assert!(token.get() > 0);
    }
}

#[tokio::test]
async fn acq_11_a_call_dropped_in_the_middle_poisons_no_connection() {
    for (url, pooler) in [(postgres(), Pooler::Session), (pgbouncer(), Pooler::Transaction)] {
        let table = Table::new().await;
        let (proxy, through) = proxied(&url).await;
        let store = store(&through, &table, pooler).await;
        let done: Vec<_> = (0..20).map(|at| id(&format!("done {at}"))).collect();
        for (at, id) in done.iter().enumerate() {
            execute(&store, id, &format!("result {at}")).await;
        }
        for round in 0..100_u64 {
            let dropped = id(&format!("dropped {round}"));
            let soon = Duration::from_micros(round * 17 % 900);
            let owner = OwnerId::new();
            let _ = tokio::time::timeout(soon, store.acquire(&dropped, &request(owner))).await;
            let _ = tokio::time::timeout(soon, store.peek(&done[3])).await;
            // Each call gets its own answer, not the answer to a dropped call.
            let at = usize::try_from(round).expect("small") % done.len();
            assert_eq!(replay(&store, &done[at]).await, format!("result {at}"));
        }
        // A call that hangs is dropped, and the next call gets another connection.
        proxy.stall(true);
        let hung = tokio::time::timeout(Duration::from_millis(50), store.peek(&done[0])).await;
        assert!(hung.is_err());
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.stall(false);
        assert_eq!(replay(&store, &done[0]).await, "result 0");
    }
}

#[tokio::test]
async fn sto_5_opening_a_connection_has_a_limit_too() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = PostgresConfig::from_url(&through).expect("a URL").with_table_name(&table.name);
    let config = config.with_call_timeout(Duration::from_secs(60));
    let store = PostgresStore::connect(config.with_connect_timeout(Duration::from_secs(1)))
        .await
        .expect("connected");
    // The open connections are cut, and a new connection gets no answer.
    proxy.stall(true);
    proxy.cut();
    let started = tokio::time::Instant::now();
    let error = store.peek(&id("k")).await.expect_err("it hangs");
    assert!(error.is_retryable() && error.to_string().contains("in time"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[tokio::test]
async fn sto_5_a_server_that_hangs_is_given_up_in_time() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let config = PostgresConfig::from_url(&through).expect("a URL").with_table_name(&table.name);
    let store = PostgresStore::connect(config.with_call_timeout(Duration::from_secs(1)))
        .await
        .expect("connected");
    proxy.stall(true);
    let started = tokio::time::Instant::now();
    let error =
        store.acquire(&id("k"), &request(OwnerId::new())).await.map(drop).expect_err("it hangs");
    assert!(error.is_retryable() && error.to_string().contains("in time"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    proxy.stall(false);
    // With a call timeout of 1 s, a call may fail on a busy machine. The test only checks that the
    // store works again.
    let (id, owner) = (id("after"), OwnerId::new());
    let served = async {
        while let Err(error) = store.acquire(&id, &request(owner)).await {
            assert!(error.is_retryable(), "{error}");
        }
        while let Err(error) = store.complete(&id, owner, &completion("result")).await {
            assert!(error.is_retryable(), "{error}");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), served).await.expect("it serves again");
    let look = PostgresStore::connect(table.config()).await.expect("connected");
    assert_eq!(replay(&look, &id).await, "result");
}

/// Completes a record while another store waits for it. Returns how long the waiter took to notice.
async fn wakes(store: &PostgresStore, waiter: &Arc<PostgresStore>, key: &str) -> Duration {
    let (told, teller) = (id(key), OwnerId::new());
    let token = grant(store, &told, teller).await.token;
    let waiting = {
        let (waiter, told) = (Arc::clone(waiter), told.clone());
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
    started.elapsed()
}

#[tokio::test]
async fn sto_5_a_crashed_server_comes_back_without_a_restart_of_ours() {
    let mut server = Server::start().await;
    let table = Table::on(server.url()).await;
    let (store, waiter) = (table.store().await, Arc::new(table.store().await));
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
    // The next calls succeed, and no acknowledged result is lost.
    assert_eq!(replay(&store, &done).await, "result");
    match store.peek(&held).await.expect("looked") {
        Peeked::Busy(LiveLease { token, .. }) => assert_eq!(token, lease.token),
        other => panic!("the lease is lost: {other:?}"),
    }
    execute(&store, &id("new"), "result").await;
    // Both stores listen for notifications again without a restart of the program.
    let listening = async {
        while format!("{waiter:?}{store:?}").matches("listening: true").count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), listening).await.expect("both listen again");
    // The fallback poll comes 130 ms after the completion at the earliest. A busy machine may delay
    // one notification by that long, but hardly ten in a row.
    let mut woken = Vec::new();
    while woken.last().is_none_or(|after| *after >= Duration::from_millis(100)) {
        assert!(woken.len() < 10, "polled, not notified: {woken:?}");
        woken.push(wakes(&store, &waiter, &format!("told{}", woken.len())).await);
    }
    assert_eq!(
        store.complete(&held, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
    match waiter.acquire(&held, &request(OwnerId::new())).await.expect("answered") {
        Acquired::Complete(stored) => assert_eq!(body(&stored), "late"),
        other => panic!("{other:?}"),
    }
}

/// Advances the process's clock by `time`.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn sto_5_acq_4_a_listening_connection_that_is_silently_lost_is_noticed() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let store = store(&through, &table, Pooler::Session).await;
    let listens = |is: bool| {
        let (store, expected) = (&store, format!("listening: {is}"));
        async move {
            let reached = async {
                while !format!("{store:?}").contains(&expected) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), reached).await
        }
    };
    listens(true).await.expect("the store listens");
    // A connection that works passes the check.
    pass(Duration::from_secs(11)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(format!("{store:?}").contains("listening: true"), "{store:?}");
    // Both ends keep the connection open, but no byte arrives.
    proxy.stall(true);
    pass(Duration::from_secs(11)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    pass(Duration::from_secs(6)).await;
    listens(false).await.expect("the loss is noticed");
    proxy.cut();
    proxy.stall(false);
    listens(true).await.expect("the store listens again");
}

#[tokio::test]
async fn sto_5_acq_4_a_listen_without_an_answer_is_given_up() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let through = format!("{through}?application_name={}", table.name);
    let store = store(&through, &table, Pooler::Session).await;
    let mut stranger = table.stranger().await;
    // The store listens on a new connection, whose requests take a while.
    proxy.delay(Duration::from_millis(400));
    proxy.cut();
    while !format!("{store:?}").contains("listening: false") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The server is ready for the first statement, and the delay still holds it back.
    let is_ready = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name='{}' AND state='idle' \
         AND query='' AND backend_start>now()-interval '5 s'",
        table.name
    );
    while stranger.number(&is_ready).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.stall(true);
    let before = proxy.lines();
    pass(Duration::from_secs(6)).await;
    let dialled = async {
        while proxy.lines() == before {
            pass(Duration::from_secs(1)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let dialled = tokio::time::timeout(Duration::from_secs(60), dialled).await;
    dialled.expect("the store listens on another connection");
    drop(store);
}

#[tokio::test]
async fn sto_5_a_connection_that_idled_for_five_minutes_is_not_used_again() {
    let table = Table::new().await;
    let url = format!("{}?application_name={}", table.url, table.name);
    // With `Pooler::Transaction`, the store opens no connections for notifications, so the newest
    // connection below is always one for calls.
    let config = PostgresConfig::from_url(&url).expect("a valid URL");
    let config = config.with_table_name(&table.name).with_pooler(Pooler::Transaction);
    let store = PostgresStore::connect(config).await.expect("connected");
    let mut stranger = table.stranger().await;
    let newest = format!(
        "SELECT max(extract(epoch FROM backend_start)*1000000)::bigint FROM pg_stat_activity \
         WHERE application_name='{}'",
        table.name
    );
    drop(store.peek(&id("k")).await.expect("read"));
    let first = stranger.number(&newest).await;
    pass(Duration::from_secs(299)).await;
    drop(store.peek(&id("k")).await.expect("read"));
    assert_eq!(stranger.number(&newest).await, first);
    pass(Duration::from_secs(301)).await;
    drop(store.peek(&id("k")).await.expect("read"));
    assert!(stranger.number(&newest).await > first, "the old connection was used");
}
