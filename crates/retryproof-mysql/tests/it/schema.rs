// SPDX-License-Identifier: MIT OR Apache-2.0
//! Only `migrate()` creates tables, and a schema that does not fit causes an error that says so
//! (STO-3).

mod identity;
mod versions;

use retryproof_core::store::Peeked;
use retryproof_core::{ErrorKind, IdempotencyStore, Identity, OwnerId};
use retryproof_mysql::{MysqlConfig, MysqlStore, schema_sql};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::support::{
    CANARY, Table, assert_masked, execute, id, replay, request, sql, stranger, unique, url,
};

/// Checks that `connect` fails because of the schema, and returns the text of the error.
pub(crate) async fn refused(config: MysqlConfig) -> String {
    let error = MysqlStore::connect(config).await.expect_err("the schema does not fit");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    error.to_string()
}

async fn tables_like(name: &str) -> i64 {
    let text = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
         AND table_name LIKE ?";
    let row = sqlx::query(text)
        .bind(format!("{name}%"))
        .fetch_one(&mut stranger().await)
        .await
        .expect("counted");
    row.get(0)
}

#[tokio::test]
async fn sto_3_connect_makes_no_table() {
    let name = unique("none");
    let text = refused(MysqlConfig::from_url(&url()).expect("valid").with_table_name(&name)).await;
    assert!(text.contains("retryproof::migrate(url)") && text.contains(&name), "{text}");
    assert_eq!(tables_like(&name).await, 0);
}

#[tokio::test]
async fn sto_3_migrate_is_idempotent_and_keeps_records() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("kept"), "result").await;
    table.config().migrate().await.expect("again, beside a store in use");
    assert_eq!(replay(&table.store().await, &id("kept")).await, "result");
    // The three tables are for records, versions and the audit.
    assert_eq!(tables_like(&table.name).await, 3);
}

#[tokio::test]
async fn sto_3_migrate_from_many_at_once() {
    let table = Table::new().await;
    let mut conn = stranger().await;
    for name in [&table.name, &format!("{}_meta", table.name)] {
        sql(&mut conn, &format!("DROP TABLE `{name}`")).await;
    }
    let all: Vec<_> = (0..8)
        .map(|_| {
            let config = table.config();
            tokio::spawn(async move { config.migrate().await })
        })
        .collect();
    for one in all {
        one.await.expect("no panic").expect("migrated");
    }
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn sto_3_shipped_sql_serves_another_migrator() {
    let table = Table::new().await;
    let mut conn = stranger().await;
    for name in [&table.name, &format!("{}_meta", table.name)] {
        sql(&mut conn, &format!("DROP TABLE `{name}`")).await;
    }
    let script = schema_sql(&table.name).expect("a valid name");
    conn.execute(sqlx::raw_sql(AssertSqlSafe(script))).await.expect("the shipped SQL runs");
    let store = table.store().await;
    execute(&store, &id("k"), "result").await;
    assert_eq!(replay(&store, &id("k")).await, "result");
}

#[tokio::test]
async fn sto_3_two_tables_in_one_database_do_not_meet() {
    let (one, two) = (Table::new().await, Table::new().await);
    let (a, b) = (one.store().await, two.store().await);
    execute(&a, &id("k"), "of a").await;
    assert!(matches!(b.peek(&id("k")).await, Ok(Peeked::Absent)));
    execute(&b, &id("k"), "of b").await;
    assert_eq!(
        (replay(&a, &id("k")).await, replay(&b, &id("k")).await),
        ("of a".into(), "of b".into())
    );
}

/// Names that would be SQL keywords without quotes, and names that are refused before anything is
/// sent.
#[tokio::test]
async fn sto_3_a_table_name_cannot_inject() {
    let config = |name: &str| MysqlConfig::from_url(&url()).expect("valid").with_table_name(name);
    let word = config("select");
    word.migrate().await.expect("migrated");
    execute(&MysqlStore::connect(word).await.expect("connected"), &id(&unique("k")), "result")
        .await;
    sql(&mut stranger().await, "DROP TABLE `select`, `select_meta`").await;
    for name in ["", "a b", "a`b", "a;DROP TABLE x", "a--", "mysql.user", "a'b", "a\\b", "a\0", "é"]
    {
        for error in [
            config(name).migrate().await.expect_err("refused"),
            MysqlStore::connect(config(name)).await.map(drop).expect_err("refused"),
            schema_sql(name).map(drop).expect_err("refused"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Config, "{name:?}: {error}");
        }
    }
}

#[tokio::test]
async fn sto_3_a_table_that_goes_away_is_a_schema_error() {
    let table = Table::new().await;
    let store = table.store().await;
    let (id, owner) = (id(CANARY), OwnerId::new());
    execute(&store, &crate::support::id("before"), "result").await;
    sql(&mut stranger().await, &format!("DROP TABLE `{}`", table.name)).await;
    for error in [
        store.acquire(&id, &request(owner)).await.map(drop).expect_err("there is no table"),
        store.peek(&id).await.map(drop).expect_err("there is no table"),
        store.release(&id, owner).await.map(drop).expect_err("there is no table"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("retryproof::migrate(url)"), "{error}");
        assert_masked(&error);
    }
    // Once the table exists again, the store works without a restart.
    table.config().migrate().await.expect("migrated");
    execute(&store, &id, "result").await;
}

#[tokio::test]
async fn sto_4_the_sql_of_the_guide_finds_a_record_by_scope_and_key() {
    const PAGE: &str = include_str!("../../../retryproof/src/guide/operations.md");
    let table = Table::new().await;
    let sought = Identity::of("payments", "-:order-17").expect("valid");
    execute(&table.store().await, &sought, "result").await;
    let (_, sql) = PAGE.split_once("```sql\n-- MySQL, MariaDB\n").expect("on the page");
    let sql = sql.split_once("```").expect("its end").0.replace("retryproof_records", &table.name);
    let row = stranger().await.fetch_one(AssertSqlSafe(sql)).await.expect("found");
    assert_eq!(row.get::<i8, _>("state"), 1);
}
