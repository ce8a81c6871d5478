// SPDX-License-Identifier: MIT OR Apache-2.0
//! Only `migrate()` creates tables, and a schema that does not fit causes an error that says so
//! (STO-3).

mod functions;
mod identity;
mod partitions;
mod versions;

use retryproof_core::store::Peeked;
use retryproof_core::{Error, ErrorKind, IdempotencyStore, Identity, OwnerId};
use retryproof_postgres::{PostgresConfig, PostgresStore, schema_sql};
use sqlx_core::row::Row as _;

use crate::support::{CANARY, Table, assert_masked, execute, id, postgres, replay, request};

async fn refused(table: &Table) -> Error {
    let error = PostgresStore::connect(table.config()).await.expect_err("the schema does not fit");
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Schema, Some("connect")), "{error}");
    error
}

#[tokio::test]
async fn sto_3_connect_makes_no_table() {
    let table = Table::absent(postgres());
    assert!(refused(&table).await.to_string().contains("`retryproof::migrate(url)`"));
    let tables = format!("SELECT count(*) FROM pg_class WHERE relname LIKE '{}%'", table.name);
    assert_eq!(table.stranger().await.number(tables).await, 0);
}

#[tokio::test]
async fn sto_3_migrate_is_idempotent_and_keeps_records() {
    let table = Table::new().await;
    let store = table.store().await;
    execute(&store, &id("kept"), "result").await;
    table.config().migrate().await.expect("again, beside a store in use");
    assert_eq!(replay(&table.store().await, &id("kept")).await, "result");
}

#[tokio::test]
async fn sto_3_migrate_from_many_at_once() {
    let table = Table::absent(postgres());
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
async fn sto_3_older_schemas_are_refused_and_lost_version_rows_come_back() {
    let table = Table::new().await;
    let set = format!("UPDATE \"{}_meta\" SET value=0 WHERE name='schema'", table.name);
    assert_eq!(table.stranger().await.run(set).await, 1);
    let older = refused(&table).await.to_string();
    assert!(older.contains("`retryproof::migrate(url)`"), "{older}");
    table.stranger().await.run(format!("DELETE FROM \"{}_meta\"", table.name)).await;
    assert!(refused(&table).await.to_string().contains("`retryproof::migrate(url)`"));
    table.config().migrate().await.expect("the version rows come back");
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn sto_3_the_shipped_sql_serves_a_migrator_of_ones_own() {
    let table = Table::absent(postgres());
    let sql = schema_sql(&table.name).expect("a valid name");
    let mut own = table.stranger().await;
    own.run(format!("BEGIN; {sql} COMMIT")).await;
    own.run(sql).await;
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn sto_3_two_tables_in_one_database_do_not_meet() {
    let (a, b) = (Table::new().await, Table::new().await);
    let (of_a, of_b) = (a.store().await, b.store().await);
    execute(&of_a, &id("k"), "of a").await;
    assert!(matches!(of_b.peek(&id("k")).await, Ok(Peeked::Absent)));
    execute(&of_b, &id("k"), "of b").await;
    assert_eq!(
        (replay(&of_a, &id("k")).await, replay(&of_b, &id("k")).await),
        ("of a".into(), "of b".into())
    );
}

#[tokio::test]
async fn sto_3_capitals_and_reserved_words_are_names_like_others() {
    let mut table = Table::new().await;
    table.name = format!("Select_{}", table.name);
    table.config().migrate().await.expect("migrated");
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn sto_3_no_name_reaches_the_server_unchecked() {
    for name in ["a;--", "a\"b", "", "public.a", "a b", "é"] {
        let table = Table::absent(postgres());
        let config = table.config().with_table_name(name);
        let error = config.migrate().await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let error = PostgresStore::connect(config).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert_eq!(schema_sql(name).expect_err(name).kind(), ErrorKind::Config);
    }
}

#[tokio::test]
async fn sto_3_a_table_that_goes_away_is_a_schema_error() {
    let table = Table::new().await;
    let store = table.store().await;
    let (id, owner) = (id(CANARY), OwnerId::new());
    table.stranger().await.run(format!("DROP TABLE \"{}\"", table.name)).await;
    for error in [
        store.acquire(&id, &request(owner)).await.map(drop).expect_err("no table"),
        store.peek(&id).await.map(drop).expect_err("no table"),
        store.release(&id, owner).await.map(drop).expect_err("no table"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("`retryproof::migrate(url)`"), "{error}");
        assert_masked(&error);
    }
    // Once the table exists again, the store works without a restart.
    table.stranger().await.run(format!("DROP TABLE \"{}_meta\"", table.name)).await;
    table.config().migrate().await.expect("made again");
    execute(&store, &id, "result").await;
}

/// The migration adds the audit table to the schema of the records, even if another schema comes
/// first in the `search_path`.
#[tokio::test]
async fn ops_10_the_audit_table_is_added_beside_the_records() {
    let table = Table::new().await;
    let (name, mut own) = (&table.name, table.stranger().await);
    own.run(format!("CREATE SCHEMA \"{name}\"; DROP TABLE \"{name}_audit\"")).await;
    let url = format!("{}?options=-c%20search_path={name},public", table.url);
    let config = PostgresConfig::from_url(&url).expect("a valid URL").with_table_name(name);
    config.migrate().await.expect("the table is added");
    let count = format!(
        "SELECT count(*) FROM pg_class WHERE relname='{name}_audit' AND \
         relnamespace='public'::regnamespace"
    );
    assert_eq!(own.number(count).await, 1);
    own.run(format!("DROP SCHEMA \"{name}\"")).await;
}

#[tokio::test]
async fn sto_4_the_sql_of_the_guide_finds_a_record_by_scope_and_key() {
    const PAGE: &str = include_str!("../../../retryproof/src/guide/operations.md");
    let table = Table::new().await;
    let sought = Identity::of("payments", "-:order-17").expect("valid");
    execute(&table.store().await, &sought, "result").await;
    let (_, sql) = PAGE.split_once("```sql\n-- PostgreSQL\n").expect("on the page");
    let sql = sql.split_once("```").expect("its end").0.replace("retryproof_records", &table.name);
    let row = table.stranger().await.row(sql).await;
    assert_eq!(row.try_get::<i16, _>("state").expect("a number"), 1);
}
