// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values over a limit: that of the server's packets, or the configured one (CMP-9).

use retryproof_core::store::{Completion, FencedWrite, Peeked};
use retryproof_core::{Blob, ErrorKind, IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;
use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlConnection;

use super::says;
use crate::support::server::Server;
use crate::support::{CANARY, DAY, Table, assert_masked, completion, grant, id, sql};

#[tokio::test]
async fn cmp_9_a_value_over_the_packet_limit_is_too_large() {
    let server = Server::start(&["--max-allowed-packet=2M"]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let most = store.profile().max_value;
    assert!(most < 2 << 20 && most > (2 << 20) - (8 << 10), "{most}");
    let of = |bytes: usize| Completion::new(Blob::from(vec![7; bytes]), DAY, None);
    let (key, owner) = (id(&CANARY.repeat(40)), OwnerId::new());
    grant(&store, &key, owner).await;
    let error = store.complete(&key, owner, &of(most + 1)).await.expect_err("too large");
    says(&error, ErrorKind::TooLarge, &["max_allowed_packet"]);
    assert_masked(&error);
    // A value of the largest size can be written and read, even with a long key.
    assert_eq!(
        store.complete(&key, owner, &of(most)).await.expect("completed"),
        FencedWrite::Applied
    );
    match store.peek(&key).await.expect("looked") {
        Peeked::Complete(_) => {}
        other => panic!("{other:?}"),
    }

    // The limit is lowered while the store runs. The server applies it only to new sessions, so the
    // store gets the new limit when it opens its next connection.
    let (key, owner) = (id("lowered"), OwnerId::new());
    grant(&store, &key, owner).await;
    sql(&mut server.root().await, "SET GLOBAL max_allowed_packet = 1048576").await;
    let mut root = server.root().await;
    let sessions: Vec<(u64,)> = sqlx::query_as(
        "SELECT CAST(ID AS UNSIGNED) FROM information_schema.PROCESSLIST WHERE USER = 'app'",
    )
    .fetch_all(&mut root)
    .await
    .expect("listed");
    for (session,) in sessions {
        // Ignore an error, because the connection may already be closed.
        let _ = sqlx::query(AssertSqlSafe(format!("KILL {session}"))).execute(&mut root).await;
    }
    let before = connections(&mut root).await;
    let error = store.complete(&key, owner, &of(most)).await.expect_err("too large");
    says(&error, ErrorKind::TooLarge, &["max_allowed_packet"]);
    assert_eq!(
        store.complete(&key, owner, &of(100)).await.expect("completed"),
        FencedWrite::Applied
    );
    // The store did not send the value, for which the server would have closed the connection.
    assert_eq!(connections(&mut root).await, before + 1);
}

/// Returns how many connections the server has accepted so far.
async fn connections(root: &mut MySqlConnection) -> i64 {
    let text = "SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.GLOBAL_STATUS
                WHERE VARIABLE_NAME = 'CONNECTIONS'";
    sqlx::query_scalar(text).fetch_one(root).await.expect("a number")
}

#[tokio::test]
async fn cmp_9_a_configured_limit_below_the_servers_holds() {
    let table = Table::new().await;
    let config = table.config().with_max_value(1_000);
    let store = MysqlStore::connect(config).await.expect("connected");
    assert_eq!(store.profile().max_value, 1_000);
    let (key, owner) = (id(CANARY), OwnerId::new());
    grant(&store, &key, owner).await;
    let large = completion(&"x".repeat(1_000));
    let error = store.complete(&key, owner, &large).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_masked(&error);
    let small = completion(&"x".repeat(900));
    assert_eq!(store.complete(&key, owner, &small).await.expect("it fits"), FencedWrite::Applied);
    let usual = MysqlStore::connect(table.config().with_max_value(usize::MAX)).await;
    let usual = usual.expect("connected").profile().max_value;
    assert!(usual < usize::MAX, "the server's limit is the upper bound");
}
