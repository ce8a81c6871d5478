// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that cannot be reached, or that refuse logins, reads or writes: each causes a typed
//! error that names the remedy and shows no key or password (ID-4), nothing is half-written, and
//! the store recovers without a restart.

mod far;
mod limits;
mod lines;
mod refused;

pub(crate) use refused::kill_all;

use std::time::Duration;

use retryproof_core::store::{Acquired, Completion, FencedWrite, Peeked};
use retryproof_core::{Blob, Error, ErrorKind, IdempotencyStore, OwnerId};
use retryproof_mysql::{MySqlPool, MysqlConfig, MysqlStore};
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::server::Server;
use crate::support::{
    CANARY, DAY, LONG, Table, assert_masked, completion, execute, grant, id, replay, request, sql,
    stranger, unique, url, url_as,
};

/// Returns the error of `connect`, and checks that `migrate` fails with the same kind of error.
async fn refused(url: &str) -> Error {
    let config = MysqlConfig::from_url(url)
        .expect("a valid URL")
        .with_connect_timeout(Duration::from_secs(2));
    let migrating = config.migrate().await.expect_err("it cannot be migrated");
    let error = MysqlStore::connect(config).await.expect_err("it cannot be connected");
    assert_eq!((error.operation(), migrating.operation()), (Some("connect"), Some("migrate")));
    assert_eq!(error.kind(), migrating.kind(), "{error} / {migrating}");
    assert_masked(&error);
    assert_masked(&migrating);
    error
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error:?}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
}

#[tokio::test]
async fn sto_5_nobody_listens() {
    // Dropping the listener frees its port again, so no server listens on the port.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("bound")
        .local_addr()
        .expect("bound")
        .port();
    let error = refused(&format!("mysql://u:{CANARY}@127.0.0.1:{port}/d")).await;
    says(&error, ErrorKind::Unavailable, &["host and port"]);
    let error = refused(&format!("mysql://u:{CANARY}@no-such-host.invalid/d")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn sto_5_somebody_else_listens() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let server = tokio::spawn(async move {
        let mut lines = Vec::new();
        loop {
            let (line, _) = listener.accept().await?;
            line.writable().await?;
            // On the first connection, the server sends bytes that are not a greeting. On the
            // others, it sends nothing.
            if lines.is_empty() {
                line.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n")?;
            }
            lines.push(line);
            if false {
                return std::io::Result::Ok(());
            }
        }
    });
    let error = refused(&format!("mysql://u:{CANARY}@127.0.0.1:{port}/d")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.abort();
}

#[tokio::test]
async fn sto_5_a_wrong_user_password_or_database_is_a_matter_of_configuration() {
    let error = refused(&url_as("retryproof", CANARY, None)).await;
    says(&error, ErrorKind::Config, &["password", "URL"]);
    let error = refused(&url_as(&format!("{CANARY}-user"), CANARY, None)).await;
    says(&error, ErrorKind::Config, &["user"]);
    let url = url();
    let (place, _) = url.rsplit_once('/').expect("a database in the URL");
    let error = refused(&format!("{place}/no_such_database")).await;
    says(&error, ErrorKind::Config, &["database", "does not exist"]);
}

/// An account that is dropped with its test.
struct Account(String);

impl Account {
    async fn new(grants: &[String]) -> Self {
        let mut conn = stranger().await;
        // The user's name contains the canary, which no error may show.
        let name = unique(CANARY);
        sql(&mut conn, &format!("CREATE USER '{name}'@'%' IDENTIFIED BY '{CANARY}'")).await;
        for grant in grants {
            sql(&mut conn, &format!("{grant} TO '{name}'@'%'")).await;
        }
        Self(name)
    }

    fn url(&self) -> String {
        url_as(&self.0, CANARY, None)
    }

    async fn gone(self) {
        sql(&mut stranger().await, &format!("DROP USER '{}'@'%'", self.0)).await;
    }
}

#[tokio::test]
async fn sto_5_a_missing_privilege_is_named() {
    let table = Table::new().await;
    let on = |what: &str, suffix: &str| format!("GRANT {what} ON `{}{suffix}`", table.name);

    // The user has no privilege on the database.
    let stranger_to_it = Account::new(&[]).await;
    says(
        &refused(&stranger_to_it.url()).await,
        ErrorKind::Unexpected,
        &["privilege", "SELECT, INSERT"],
    );
    stranger_to_it.gone().await;

    // The user may read and replay, but not write.
    let owner = OwnerId::new();
    let (held, done) = (id("held"), id("done"));
    let full = table.store().await;
    grant(&full, &held, owner).await;
    execute(&full, &done, "result").await;
    let reader = Account::new(&[on("SELECT", ""), on("SELECT", "_meta")]).await;
    let config = table.config_at(&reader.url());
    let store = MysqlStore::connect(config.clone()).await.expect("it connects");
    let key = id(CANARY);
    for error in [
        store.acquire(&key, &request(owner)).await.map(drop).expect_err("no INSERT"),
        store.extend(&held, owner, LONG).await.map(drop).expect_err("no UPDATE"),
        store.complete(&held, owner, &completion(CANARY)).await.map(drop).expect_err("no UPDATE"),
        store.release(&held, owner).await.map(drop).expect_err("no UPDATE"),
    ] {
        says(&error, ErrorKind::Unexpected, &["privilege", "INSERT, UPDATE"]);
        assert_masked(&error);
    }
    assert!(matches!(store.peek(&held).await, Ok(Peeked::Busy(_))));
    // A migration that finds nothing to do needs no privilege.
    config.migrate().await.expect("nothing to do");

    // After the privilege is granted, the store works without a restart.
    let mut conn = stranger().await;
    sql(&mut conn, &format!("{} TO '{}'@'%'", on("INSERT, UPDATE, DELETE", ""), reader.0)).await;
    execute(&store, &key, "result").await;
    assert_eq!(
        store.complete(&held, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
    reader.gone().await;
}

#[tokio::test]
async fn sto_5_a_read_only_server_still_replays() {
    let server = Server::start(&[]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let other = MysqlStore::connect(server.config()).await.expect("connected");
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;
    execute(&store, &id("done"), "result").await;
    sql(&mut server.root().await, "SET GLOBAL read_only = 1").await;
    let fresh = id(CANARY);
    for error in [
        store.acquire(&fresh, &request(OwnerId::new())).await.map(drop).expect_err("read-only"),
        store.extend(&held, owner, LONG).await.map(drop).expect_err("read-only"),
        store.complete(&held, owner, &completion(CANARY)).await.map(drop).expect_err("read-only"),
        store.release(&held, owner).await.map(drop).expect_err("read-only"),
    ] {
        says(&error, ErrorKind::Unavailable, &["read-only", "primary"]);
        assert_masked(&error);
    }
    // The result is replayed whether or not this process has already seen the key complete.
    assert_eq!(replay(&store, &id("done")).await, "result");
    assert_eq!(replay(&other, &id("done")).await, "result");
    sql(&mut server.root().await, "SET GLOBAL read_only = 0").await;
    assert!(matches!(store.peek(&fresh).await, Ok(Peeked::Absent)), "nothing half-written");
    assert_eq!(
        store.complete(&held, owner, &completion("late")).await.expect("completed"),
        FencedWrite::Applied
    );
}

#[tokio::test]
async fn sto_1_a_full_table_space_refuses_new_keys_and_keeps_the_rest() {
    let server = Server::start(&[
        "--innodb-file-per-table=0",
        "--innodb-data-file-path=ibdata1:14M:autoextend:max:20M",
    ])
    .await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    execute(&store, &id("done"), "result").await;
    let big = Completion::new(Blob::from(vec![7; 1 << 20]), DAY, None);
    let error = 'full: {
        for at in 0..200 {
            let (key, owner) = (id(&format!("{CANARY} {at}")), OwnerId::new());
            grant(&store, &key, owner).await;
            match store.complete(&key, owner, &big).await {
                Ok(done) => assert_eq!(done, FencedWrite::Applied),
                Err(error) => {
                    // The record is unchanged, so a smaller result or a tombstone may still fit.
                    assert!(matches!(store.peek(&key).await, Ok(Peeked::Busy(_))));
                    break 'full error;
                }
            }
        }
        panic!("it does not fill up");
    };
    says(&error, ErrorKind::Full, &["full", "purge"]);
    assert_masked(&error);
    assert_eq!(replay(&store, &id("done")).await, "result");

    // The server answers, so a refused call keeps its connection, and those of other calls.
    let mut root = server.root().await;
    let before = connections(&mut root).await;
    let (key, owner) = (id("held"), OwnerId::new());
    grant(&store, &key, owner).await;
    for _ in 0..20 {
        let refused = store.complete(&key, owner, &big).await.expect_err("still full");
        says(&refused, ErrorKind::Full, &["full"]);
        assert_eq!(replay(&store, &id("done")).await, "result");
    }
    let opened = connections(&mut root).await - before;
    assert!(opened < 10, "20 refused calls opened {opened} connections");
}

/// Returns how many connections the server has accepted so far.
async fn connections(root: &mut MySqlConnection) -> u64 {
    let sql = "SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM information_schema.GLOBAL_STATUS \
               WHERE VARIABLE_NAME='Connections'";
    sqlx::query_scalar(sql).fetch_one(root).await.expect("a count")
}

#[tokio::test]
async fn run_2_an_applications_pool_lends_its_settings_and_no_connection() {
    let table = Table::new().await;
    let pool: MySqlPool =
        MySqlPoolOptions::new().max_connections(1).connect(&url()).await.expect("a pool");
    let taken = pool.acquire().await.expect("the application's only connection");
    let config = MysqlConfig::from_pool(&pool).with_table_name(&table.name);
    config.migrate().await.expect("migrated beside it");
    let store = MysqlStore::connect(config).await.expect("connected beside it");
    execute(&store, &id("k"), "result").await;
    assert_eq!(replay(&store, &id("k")).await, "result");
    drop(taken);
}

#[tokio::test]
async fn sto_5_a_server_without_free_connections() {
    let server = Server::start(&["--max-connections=10"]).await;
    server.config().migrate().await.expect("migrated");
    let mut others = Vec::new();
    while let Ok(conn) = MySqlConnection::connect(&server.url("app", "secret")).await {
        others.push(conn);
    }
    let error = MysqlStore::connect(server.config()).await.expect_err("no connection is free");
    says(&error, ErrorKind::Unavailable, &["max-connections"]);
    drop(others);
    // The server needs a moment to notice that the connections are closed.
    let mut last = None;
    for _ in 0..200 {
        match MysqlStore::connect(server.config()).await {
            Ok(store) => {
                execute(&store, &id("k"), "result").await;
                return;
            }
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{last:?}");
}

#[tokio::test]
async fn cmp_8_a_row_that_we_did_not_write_fails_closed_and_stays() {
    let table = Table::new().await;
    let store = table.store().await;
    let mut spoil = stranger().await;
    for (at, change) in [
        "state = 7",
        "state = -1",
        "state = 7, expires_at = '1980-01-01'",
        "token = -1",
        "token = -1, expires_at = '1980-01-01', state = 7",
        "takeovers = -1",
        "fp = ''",
        "result = NULL",
    ]
    .into_iter()
    .enumerate()
    {
        let key = id(&format!("{CANARY} {at}"));
        execute(&store, &key, CANARY).await;
        let text = format!("UPDATE `{}` SET {change} WHERE k = ?", table.name);
        let spoilt = sqlx::query(AssertSqlSafe(text))
            .bind(key.key().expose().as_bytes())
            .execute(&mut spoil)
            .await
            .expect("spoilt");
        assert_eq!(spoilt.rows_affected(), 1);
        // The first store has seen the key complete. The second has not.
        for store in [&store, &table.store().await] {
            let error = match store.acquire(&key, &request(OwnerId::new())).await {
                Err(error) => error,
                Ok(answer) => panic!("{change}: {answer:?}"),
            };
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}: {error}");
            assert_masked(&error);
        }
        let text = format!("SELECT COUNT(*) FROM `{}` WHERE k = ? AND owner <> ''", table.name);
        let (rows,): (i64,) = sqlx::query_as(AssertSqlSafe(text))
            .bind(key.key().expose().as_bytes())
            .fetch_one(&mut spoil)
            .await
            .expect("counted");
        assert_eq!(rows, 1, "{change}");
    }
}

/// The purge does not touch rows that the store did not write (CMP-8).
#[tokio::test]
async fn cmp_8_purge_leaves_unknown_states_alone() {
    use retryproof_core::store::Purge as _;
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("k"), "result").await;
    let past = "state = 7, expires_at = '1980-01-01', purge_after = '1980-01-01'";
    sql(&mut stranger().await, &format!("UPDATE `{}` SET {past}", table.name)).await;
    assert_eq!(store.purge(10).await.expect("purged"), 0);
    let error = store
        .acquire(&id("k"), &request(OwnerId::new()))
        .await
        .map(|_: Acquired| ())
        .expect_err("corrupt");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
