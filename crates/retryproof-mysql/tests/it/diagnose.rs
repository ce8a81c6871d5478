// SPDX-License-Identifier: MIT OR Apache-2.0
//! `diagnose` names each fault that is planted in a server, a table or an account.

use retryproof_core::store::{Severity, StoreFinding};
use retryproof_core::{Error, ErrorKind, IdempotencyStore, IdentitySecret, OwnerId};
use retryproof_mysql::{MysqlConfig, MysqlStore};

use crate::support::server::Server;
use crate::support::{
    Table, assert_masked, execute, id, request, sql, stranger, unique, url, url_as,
};

async fn findings(config: &MysqlConfig) -> Vec<StoreFinding> {
    config.diagnose().await.unwrap_or_else(|error: Error| panic!("{error}"))
}

fn ids(findings: &[StoreFinding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id).collect()
}

#[tokio::test]
async fn ops_5_a_server_in_order_has_no_finding() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("k"), "v").await;
    assert_eq!(findings(&table.config()).await, []);
}

#[tokio::test]
async fn ops_5_settings_that_lose_records_are_named() {
    let options = [
        "--log-bin",
        "--server-id=1",
        "--binlog-format=STATEMENT",
        "--sync-binlog=0",
        "--innodb-flush-log-at-trx-commit=2",
        "--skip-innodb-doublewrite",
    ];
    let server = Server::start(&options).await;
    // Migrate with `binlog_format=ROW`, because with STATEMENT, the server refuses the migration's
    // writes.
    let mut root = server.root().await;
    sql(&mut root, "SET GLOBAL binlog_format=ROW").await;
    server.config().migrate().await.expect("migrated");
    sql(&mut root, "SET GLOBAL binlog_format=STATEMENT").await;
    let found = findings(&server.config()).await;
    assert_eq!(
        ids(&found),
        [
            "innodb_flush_log_at_trx_commit",
            "innodb_doublewrite",
            "binlog_format",
            "sync_binlog",
            "replication",
        ]
    );
    assert!(found[0].problem.contains("is 2"), "{found:#?}");
    let severities: Vec<_> = found.iter().map(|finding| finding.severity).collect();
    use Severity::{Error, Note, Warning};
    assert_eq!(severities, [Warning, Warning, Error, Warning, Note]);

    // The finding about `binlog_format` is true: the server refuses an acquire.
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let refused = store.acquire(&id("k"), &request(OwnerId::new())).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");

    sql(&mut root, "SET GLOBAL read_only=ON").await;
    let found = findings(&server.config()).await;
    assert_eq!((found[0].id, found[0].severity), ("role", Error));
    sql(&mut root, "SET GLOBAL read_only=OFF").await;
    for setting in [
        "binlog_format=ROW",
        "sync_binlog=1",
        "innodb_flush_log_at_trx_commit=1",
        "rpl_semi_sync_master_enabled=ON",
        "rpl_semi_sync_master_wait_point=AFTER_COMMIT",
    ] {
        sql(&mut root, &format!("SET GLOBAL {setting}")).await;
    }
    let found = findings(&server.config()).await;
    assert_eq!(ids(&found), ["innodb_doublewrite", "replication"]);
    assert!(found[1].problem.contains("AFTER_COMMIT"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_sto_10_commits_that_stopped_waiting_for_a_replica_are_named() {
    let options = ["--log-bin", "--server-id=1", "--sync-binlog=1"];
    let server = Server::start(&options).await;
    server.config().migrate().await.expect("migrated");
    let mut root = server.root().await;
    for setting in [
        "rpl_semi_sync_master_timeout=10",
        "rpl_semi_sync_master_wait_point=AFTER_SYNC",
        "rpl_semi_sync_master_enabled=ON",
    ] {
        sql(&mut root, &format!("SET GLOBAL {setting}")).await;
    }
    assert_eq!(ids(&findings(&server.config()).await), [] as [&str; 0]);

    // No replica answers, so this commit ends the wait.
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    execute(&store, &id("k"), "v").await;
    let found = findings(&server.config()).await;
    assert_eq!(ids(&found), ["replication"]);
    assert!(found[0].problem.contains("continues asynchronously"), "{found:#?}");
    assert_eq!(found[0].severity, Severity::Warning);
}

#[tokio::test]
async fn ops_5_sto_10_an_account_that_writes_to_a_read_only_server_is_named() {
    let server = Server::start(&["--log-bin", "--server-id=1"]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let mut root = server.root().await;
    sql(&mut root, "SET GLOBAL read_only=ON").await;
    assert_eq!(ids(&findings(&server.config()).await), ["role", "sync_binlog", "replication"]);
    let refused = store.acquire(&id("k"), &request(OwnerId::new())).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");

    sql(&mut root, "GRANT READ_ONLY ADMIN ON *.* TO 'app'@'%'").await;
    let found = findings(&server.config()).await;
    assert_eq!(ids(&found), ["role", "sync_binlog", "replication", "read_only"]);
    assert_eq!(found[3].severity, Severity::Warning);
    // The finding is true: the server takes the account's writes.
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    execute(&store, &id("exempt"), "v").await;
}

#[tokio::test]
async fn ops_5_each_missing_privilege_is_named() {
    let table = Table::new().await;
    let mut root = stranger().await;
    let name = unique("doctor");
    sql(&mut root, &format!("CREATE USER '{name}'@'%' IDENTIFIED BY 'secret'")).await;
    let config = table.config_at(&url_as(&name, "secret", None));
    let on = |what: &str, suffix: &str| {
        format!("GRANT {what} ON `{}{suffix}` TO '{name}'@'%'", table.name)
    };
    // Grant one privilege, because the server refuses the login of a user without any privilege on
    // the database.
    sql(&mut root, &on("INSERT", "")).await;
    let found = findings(&config).await;
    assert_eq!(ids(&found), ["privilege"]);
    assert_eq!(
        found[0].problem,
        "Calls fail because the user lacks these privileges: SELECT on the table, UPDATE on the \
         table, DELETE on the table, SELECT on the `_meta` table."
    );
    sql(&mut root, &on("SELECT, UPDATE", "")).await;
    sql(&mut root, &on("SELECT", "_meta")).await;
    let found = findings(&config).await;
    assert!(found[0].problem.ends_with(": DELETE on the table."), "{found:#?}");
    assert_eq!(found[0].severity, Severity::Error);
    sql(&mut root, &on("DELETE", "")).await;
    assert_eq!(findings(&config).await, []);
    sql(&mut root, &format!("DROP USER '{name}'@'%'")).await;
}

#[tokio::test]
async fn ops_5_missing_and_old_tables_are_named() {
    let absent = MysqlConfig::from_url(&url()).expect("a URL").with_table_name(unique("absent"));
    let found = findings(&absent).await;
    assert_eq!(ids(&found), ["schema"]);
    assert_eq!(found[0].severity, Severity::Error);
    let table = Table::new().await;
    let mut root = stranger().await;
    sql(&mut root, &format!("UPDATE `{}_meta` SET value=0 WHERE name='schema'", table.name)).await;
    let found = findings(&table.config()).await;
    assert!(found[0].problem.contains("too old"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_id_5_another_identity_secret_is_named() {
    let secret = |letter: &str| IdentitySecret::new(letter.repeat(32)).expect("32 bytes");
    let tables = (Table::new().await, Table::named(unique("it")));
    let (plain, hashed) = (tables.0.config(), tables.1.config());
    hashed.clone().with_identity_secret(secret("a")).migrate().await.expect("migrated");
    for (config, text) in [
        (plain.clone().with_identity_secret(secret("a")), "set up without an identity secret"),
        (hashed.clone(), "this program has no identity secret"),
        (hashed.clone().with_identity_secret(secret("b")), "another identity secret"),
    ] {
        let found = findings(&config).await;
        assert_eq!(ids(&found), ["identities"], "{found:#?}");
        assert_eq!(found[0].severity, Severity::Error);
        assert!(found[0].problem.contains(text), "{found:#?}");
    }
    for config in [plain, hashed.with_identity_secret(secret("a"))] {
        assert_eq!(findings(&config).await, []);
    }
}

#[tokio::test]
async fn ops_5_no_purge_for_a_day_is_named() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("k"), "v").await;
    let mut root = stranger().await;
    let mut expired = async |hours: u32| {
        let time = format!("UTC_TIMESTAMP(6) - INTERVAL {hours} HOUR");
        sql(&mut root, &format!("UPDATE `{}` SET expires_at={time},purge_after={time}", table.name))
            .await
    };
    expired(23).await;
    assert_eq!(findings(&table.config()).await, []);
    expired(50).await;
    let found = findings(&table.config()).await;
    assert_eq!(ids(&found), ["purge"]);
    assert!(found[0].problem.contains("50 h"), "{found:#?}");
}

#[tokio::test]
async fn ops_5_a_server_that_is_away_is_an_error() {
    let away = MysqlConfig::from_url("mysql://u:canary-4711@127.0.0.1:1/d").expect("a URL");
    let error = away.diagnose().await.expect_err("away");
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, Some("diagnose")));
    assert_masked(&error);
}
