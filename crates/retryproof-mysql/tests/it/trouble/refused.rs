// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running store whose connections are refused, closed by the server, or too old to be used
//! again.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

use super::{Account, says};
use crate::support::server::Server;
use crate::support::{
    CANARY, LONG, Table, assert_masked, completion, grant, id, request, sql, stranger,
};

const MS: Duration = Duration::from_millis(1);

/// Ends every connection of `user`.
pub(crate) async fn kill_all(root: &mut MySqlConnection, user: &str) {
    let ids = format!(
        "SELECT CAST(ID AS SIGNED) FROM information_schema.PROCESSLIST WHERE USER = '{user}'"
    );
    for session in root.fetch_all(AssertSqlSafe(ids)).await.expect("listed") {
        // Ignore an error, because the connection may already be closed.
        let kill = format!("KILL {}", session.get::<i64, _>(0));
        let _ = root.execute(AssertSqlSafe(kill)).await;
    }
}

/// If a password changes while the store runs, the engine repeats the completion, so the result of
/// an action that has run is recorded when the login works again.
#[tokio::test]
async fn sto_5_a_password_that_changes_while_the_store_runs_is_an_outage() {
    let table = Table::new().await;
    let grants = ["", "_meta"]
        .map(|suffix| format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{}{suffix}`", table.name));
    let account = Account::new(&grants).await;
    let store = MysqlStore::connect(table.config_at(&account.url())).await.expect("connected");
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;

    let mut root = stranger().await;
    let password =
        |password: &str| format!("ALTER USER '{}'@'%' IDENTIFIED BY '{password}'", account.0);
    sql(&mut root, &password("another")).await;
    kill_all(&mut root, &account.0).await;
    for _ in 0..2 {
        let error = store.complete(&held, owner, &completion(CANARY)).await.expect_err("refused");
        says(&error, ErrorKind::Unavailable, &["settings"]);
        let cause = error.source().map(ToString::to_string);
        assert!(cause.is_some_and(|cause| cause.contains("password")), "{error:?}");
        assert_masked(&error);
    }
    let error = MysqlStore::connect(table.config_at(&account.url())).await.expect_err("refused");
    says(&error, ErrorKind::Config, &["password", "URL"]);

    sql(&mut root, &password(CANARY)).await;
    assert_eq!(
        store.complete(&held, owner, &completion("result")).await.expect("completed"),
        FencedWrite::Applied
    );
    account.gone().await;
}

/// The server accepts no more connections, and the store's only connection is in use: the next call
/// waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_5_a_call_without_a_new_connection_waits_for_a_returned_one() {
    let server = Server::start(&["--max-connections=10"]).await;
    server.config().migrate().await.expect("migrated");
    let store = Arc::new(MysqlStore::connect(server.config()).await.expect("connected"));
    let (locked, owner) = (id("locked"), OwnerId::new());
    grant(&store, &locked, owner).await;
    let mut root = MySqlConnection::connect(&server.url("root", "")).await.expect("connected");
    sql(&mut root, "USE app").await;
    sql(&mut root, "BEGIN").await;
    let key = "scope = 'mysql.tests' AND k = 'locked'";
    sql(&mut root, &format!("UPDATE retryproof_records SET takeovers = 1 WHERE {key}")).await;
    let mut others = Vec::new();
    while let Ok(conn) = MySqlConnection::connect(&server.url("app", "secret")).await {
        others.push(conn);
    }
    let waiting = {
        let (store, locked) = (Arc::clone(&store), locked.clone());
        tokio::spawn(async move { store.acquire(&locked, &request(owner)).await.map(drop) })
    };
    tokio::time::sleep(100 * MS).await;
    let mut calls = Vec::new();
    for at in 0..3 {
        let (store, key) = (Arc::clone(&store), id(&format!("k{at}")));
        calls.push(tokio::spawn(async move { store.acquire(&key, &request(owner)).await }));
    }
    for call in calls {
        let acquired = call.await.expect("no panic");
        assert!(matches!(acquired, Ok(Acquired::Granted(_))), "{acquired:?}");
    }
    drop(waiting.await.expect("no panic"));
    drop(others);
}

/// Advances the process's clock by `time`.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// The age at which a connection is no longer used varies from 24 to 36 minutes. A holder uses an
/// old connection that works, because opening another one may outlast its lease (RUN-1).
#[tokio::test]
async fn sto_5_a_connection_that_idled_for_5_or_lived_for_36_minutes_is_not_used_again() {
    let server = Server::start(&[]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let mut root = server.root().await;
    let mut newest = async || {
        let ids = "SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE USER = 'app'";
        root.fetch_one(ids).await.expect("answered").get::<i64, _>(0)
    };
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;
    let first = newest().await;
    for _ in 0..5 {
        pass(280 * 1_000 * MS).await;
        drop(store.peek(&id("k")).await.expect("read"));
        assert_eq!(newest().await, first);
    }
    for _ in 0..5 {
        pass(280 * 1_000 * MS).await;
        assert_eq!(store.extend(&held, owner, LONG).await.expect("held"), FencedWrite::Applied);
        assert_eq!(newest().await, first, "a holder gave up a connection that works");
    }
    drop(store.peek(&id("k")).await.expect("read"));
    let second = newest().await;
    assert!(second > first, "a connection of 46 minutes was used");
    pass(301 * 1_000 * MS).await;
    assert_eq!(store.extend(&held, owner, LONG).await.expect("held"), FencedWrite::Applied);
    assert!(newest().await > second, "a connection that idled for 5 minutes was used");
}
