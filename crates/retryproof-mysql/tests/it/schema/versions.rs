// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs and tables of different versions (REC-1): which of them work together, and what a
//! refusal says.

use retryproof_core::store::{FencedWrite, Purge as _};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_mysql::{MysqlStore, schema_sql};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use super::refused;
use crate::support::{Table, execute, grant, id, replay, sql, stranger};

/// Writes the version rows, or deletes those whose value is `None`.
async fn set(table: &Table, schema: Option<i64>, compatible_from: Option<i64>) {
    let mut conn = stranger().await;
    sql(&mut conn, &format!("DELETE FROM `{}_meta`", table.name)).await;
    for (name, value) in [("schema", schema), ("compatible_from", compatible_from)] {
        if let Some(value) = value {
            let row = format!("INSERT INTO `{}_meta` VALUES ('{name}', {value})", table.name);
            sql(&mut conn, &row).await;
        }
    }
}

/// Returns the version rows: `schema`, then `compatible_from`.
async fn versions(table: &Table) -> Vec<i64> {
    let text = format!(
        "SELECT value FROM `{}_meta` WHERE name<>'identity' ORDER BY name DESC",
        table.name
    );
    let rows = stranger().await.fetch_all(AssertSqlSafe(text)).await.expect("read");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn migration_refused(table: &Table) -> String {
    let error = table.config().migrate().await.expect_err("the tables need a newer program");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    error.to_string()
}

#[tokio::test]
async fn rec_1_migrate_writes_both_versions() {
    let table = Table::new().await;
    assert_eq!(versions(&table).await, [1, 1]);
}

/// A newer release has added to the tables. Programs of this version still run on them, for example
/// after the release was rolled back.
#[tokio::test]
async fn rec_1_tables_that_a_newer_version_added_to_are_used_and_left_alone() {
    let table = Table::new().await;
    let mut conn = stranger().await;
    let added = format!("ALTER TABLE `{}` ADD COLUMN added BIGINT NULL FIRST", table.name);
    sql(&mut conn, &added).await;
    set(&table, Some(2), Some(1)).await;
    for returning in [true, false] {
        let config = table.config().with_returning(returning);
        config.migrate().await.expect("nothing to do");
        let store = MysqlStore::connect(config).await.expect("the tables are compatible");
        let (key, owner) = (id(&format!("k{returning}")), OwnerId::new());
        execute(&store, &key, "result").await;
        assert_eq!(replay(&store, &key).await, "result");
        let released = id(&format!("released {returning}"));
        grant(&store, &released, owner).await;
        let fenced = store.release(&released, owner).await.expect("answered");
        assert_eq!(fenced, FencedWrite::Applied);
        grant(&store, &released, OwnerId::new()).await;
        assert_eq!(store.purge(10).await.expect("purged"), 0);
    }
    assert_eq!(versions(&table).await, [2, 1]);
}

#[tokio::test]
async fn rec_1_tables_that_need_a_newer_program_are_refused() {
    let table = Table::new().await;
    for (schema, compatible_from) in [(3, Some(2)), (2, None)] {
        set(&table, Some(schema), compatible_from).await;
        let before = versions(&table).await;
        for text in [refused(table.config()).await, migration_refused(&table).await] {
            assert!(text.contains("upgrade this program"), "{text}");
            assert!(text.contains(&format!("found = {schema}")), "{text}");
            assert!(
                text.contains("compatible_from = 2") && text.contains("expected = 1"),
                "{text}"
            );
        }
        assert_eq!(versions(&table).await, before);
    }
}

#[tokio::test]
async fn rec_1_tables_that_are_too_old_are_refused_until_they_are_migrated() {
    let table = Table::new().await;
    set(&table, Some(0), Some(0)).await;
    let text = refused(table.config()).await;
    assert!(text.contains("upgrade the tables"), "{text}");
    assert!(text.contains("retryproof::migrate(url)") && text.contains("found = 0"), "{text}");
    table.config().migrate().await.expect("upgraded");
    assert_eq!(versions(&table).await, [1, 1]);
    drop(table.store().await);
}

/// The tables are of a newer version, so only a program of that version can create the missing
/// table in the right form.
#[tokio::test]
async fn rec_1_a_record_table_that_is_missing_under_newer_rows_is_not_created() {
    let table = Table::new().await;
    set(&table, Some(2), Some(1)).await;
    sql(&mut stranger().await, &format!("DROP TABLE `{}`", table.name)).await;
    for text in [refused(table.config()).await, migration_refused(&table).await] {
        for part in ["record table is missing", "backup", "found = 2", "expected = 1"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    assert_eq!(versions(&table).await, [2, 1]);
    // If the recorded version is that of this program, `migrate` creates the missing table.
    set(&table, Some(1), Some(1)).await;
    assert!(refused(table.config()).await.contains("retryproof::migrate(url)"));
    table.config().migrate().await.expect("created again");
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn rec_1_a_missing_lower_bound_is_the_version_of_the_tables() {
    let table = Table::new().await;
    set(&table, Some(1), None).await;
    execute(&table.store().await, &id("k"), "result").await;
    set(&table, None, Some(1)).await;
    let text = refused(table.config()).await;
    assert!(text.contains("missing") && text.contains("retryproof::migrate(url)"), "{text}");
}

/// A migrator that runs the SQL of an old release once more on newer tables changes nothing.
#[tokio::test]
async fn rec_1_the_shipped_sql_never_lowers_a_version() {
    let table = Table::new().await;
    let script = schema_sql(&table.name).expect("a valid name");
    let rows = [
        ((3, Some(2)), [3, 2]),
        ((2, Some(0)), [2, 1]),
        ((0, Some(0)), [1, 1]),
        // Without the row `compatible_from`, the tables are compatible only with their own version.
        ((3, None), [3, 3]),
        ((0, None), [1, 1]),
    ];
    for (found, left) in rows {
        set(&table, Some(found.0), found.1).await;
        let script = sqlx::raw_sql(AssertSqlSafe(script.clone()));
        stranger().await.execute(script).await.expect("the shipped SQL runs");
        assert_eq!(versions(&table).await, left);
    }
}
