// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statements that the server refuses because of other transactions: the store sends them again, a
//! limited number of times (STO-5). A trigger plants the refusals.

use std::time::Duration;

use retryproof_core::store::{Acquired, FencedWrite};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::Instant;

use crate::support::{
    CANARY, DAY, Table, assert_masked, execute, grant, id, request, sql, stranger, unique,
};

/// A conflict, for which the server asks to send the statement again.
const DEADLOCK: &str = "SQLSTATE '40001' SET MYSQL_ERRNO = 1213";
/// A login that is no longer accepted, for which the store tries a new connection.
const REJECTED: &str = "SQLSTATE '28000' SET MYSQL_ERRNO = 1045";
/// A row that another transaction keeps locked for too long.
const ROW_LOCKED: &str = "SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205";

/// A store whose server refuses writes.
struct Refusing {
    store: MysqlStore,
    conn: MySqlConnection,
    table: Table,
}

impl Refusing {
    async fn with(signal: &str) -> Self {
        let (table, mut conn) = (Table::new().await, stranger().await);
        let name = &table.name;
        // The refused statement is rolled back, but not what it wrote in this table.
        let left = format!("CREATE TABLE `{name}_ledger` (n INT) ENGINE = MyISAM");
        sql(&mut conn, &left).await;
        sql(&mut conn, &format!("INSERT INTO `{name}_ledger` VALUES (0)")).await;
        for event in ["INSERT", "UPDATE"] {
            let trigger = format!(
                "CREATE TRIGGER `{}` BEFORE {event} ON `{name}` FOR EACH ROW
                 IF (SELECT n FROM `{name}_ledger`) > 0 THEN
                     UPDATE `{name}_ledger` SET n = n - 1;
                     SIGNAL {signal}, MESSAGE_TEXT = 'planted';
                 END IF",
                unique("refuse")
            );
            sql(&mut conn, &trigger).await;
        }
        Self { store: table.store().await, conn, table }
    }

    /// Plants this many refusals.
    async fn refuse(&mut self, times: u32) {
        let text = format!("UPDATE `{}_ledger` SET n = {times}", self.table.name);
        sql(&mut self.conn, &text).await;
    }

    /// Returns how many refusals are left.
    async fn left(&mut self) -> i32 {
        let text = format!("SELECT n FROM `{}_ledger`", self.table.name);
        let row = sqlx::query(AssertSqlSafe(text)).fetch_one(&mut self.conn).await;
        row.expect("a number").get(0)
    }
}

#[tokio::test]
async fn sto_5_a_conflict_is_sent_again_twenty_times_with_short_pauses() {
    let mut server = Refusing::with(DEADLOCK).await;
    let (key, owner) = (id(CANARY), OwnerId::new());
    server.refuse(20).await;
    grant(&server.store, &key, owner).await;
    assert_eq!(server.left().await, 0);
    server.refuse(100).await;
    let began = Instant::now();
    let error = server.store.extend(&key, owner, DAY).await.expect_err("conflicts do not end");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_masked(&error);
    assert_eq!(server.left().await, 100 - 21);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    server.refuse(0).await;
    let extended = server.store.extend(&key, owner, DAY).await.expect("the conflicts have ended");
    assert_eq!(extended, FencedWrite::Applied);
}

#[tokio::test]
async fn sto_5_a_call_tries_one_new_connection() {
    let mut server = Refusing::with(REJECTED).await;
    let (key, owner) = (id(CANARY), OwnerId::new());
    grant(&server.store, &key, owner).await;
    server.refuse(1).await;
    let extended = server.store.extend(&key, owner, DAY).await.expect("a new connection works");
    assert_eq!((extended, server.left().await), (FencedWrite::Applied, 0));
    server.refuse(100).await;
    let error = server.store.extend(&key, owner, DAY).await.expect_err("no connection works");
    assert_eq!((error.kind(), server.left().await), (ErrorKind::Unavailable, 98), "{error}");
    assert_masked(&error);
}

#[tokio::test]
async fn sto_5_a_locked_row_is_tried_twice_more() {
    let mut server = Refusing::with(ROW_LOCKED).await;
    let (key, owner) = (id(CANARY), OwnerId::new());
    server.refuse(3).await;
    let error = server.store.acquire(&key, &request(owner)).await.expect_err("no row to read");
    assert_eq!((error.kind(), server.left().await), (ErrorKind::Unavailable, 0), "{error}");
    assert_masked(&error);
    server.refuse(2).await;
    grant(&server.store, &key, owner).await;
    server.refuse(3).await;
    let error = server.store.extend(&key, owner, DAY).await.expect_err("the row stays locked");
    assert_eq!((error.kind(), server.left().await), (ErrorKind::Unavailable, 0), "{error}");
    server.refuse(2).await;
    let extended = server.store.extend(&key, owner, DAY).await.expect("the row is free again");
    assert_eq!((extended, server.left().await), (FencedWrite::Applied, 0));
}

/// An acquire that the server keeps refusing is an error. Only a locked row is then read, to tell
/// the caller who holds the key.
#[tokio::test]
async fn sto_5_acq_9_a_refused_acquire_reads_only_a_locked_row_of_another_owner() {
    let mut server = Refusing::with(DEADLOCK).await;
    let (held, done, owner) = (id(CANARY), id("done"), OwnerId::new());
    grant(&server.store, &held, owner).await;
    execute(&server.store, &done, "x").await;
    // This store has not seen the complete record.
    let other = server.table.store().await;
    server.refuse(1_000).await;
    for key in [&held, &done] {
        let error = other.acquire(key, &request(OwnerId::new())).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }

    let mut server = Refusing::with(ROW_LOCKED).await;
    grant(&server.store, &held, owner).await;
    server.refuse(1_000).await;
    let found = server.store.acquire(&held, &request(OwnerId::new())).await.expect("it is read");
    assert!(matches!(found, Acquired::Busy(_)), "{found:?}");
    let again = server.store.acquire(&held, &request(owner)).await;
    let error = again.expect_err("a call must not wait for itself");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
