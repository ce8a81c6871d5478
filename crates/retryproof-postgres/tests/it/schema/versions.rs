// SPDX-License-Identifier: MIT OR Apache-2.0
//! The versions of the tables and of the program may differ while a fleet is upgraded (REC-1).

use retryproof_core::ErrorKind;
use retryproof_postgres::schema_sql;

use super::refused;
use crate::support::{Table, execute, id, replay};

/// Sets the version rows. If `compatible_from` is `None`, removes that row.
async fn set(table: &Table, schema: i64, compatible_from: Option<i64>) {
    let meta = format!("\"{}_meta\"", table.name);
    let from = compatible_from.map_or(String::new(), |from| format!(",('compatible_from',{from})"));
    let sql = format!("DELETE FROM {meta}; INSERT INTO {meta} VALUES ('schema',{schema}){from}");
    table.stranger().await.run(sql).await;
}

/// Returns the values of both version rows.
async fn versions(table: &Table) -> (i64, i64) {
    let mut stranger = table.stranger().await;
    let mut read = async |name: &str| {
        let sql = format!("SELECT value FROM \"{}_meta\" WHERE name='{name}'", table.name);
        stranger.number(sql).await
    };
    (read("schema").await, read("compatible_from").await)
}

#[tokio::test]
async fn rec_1_new_tables_say_which_programs_can_use_them() {
    let table = Table::new().await;
    assert_eq!(versions(&table).await, (1, 1));
}

#[tokio::test]
async fn rec_1_newer_tables_that_are_compatible_are_used_and_left_unchanged() {
    let table = Table::new().await;
    execute(&table.store().await, &id("kept"), "result").await;
    // Add a column to the table, as a newer program would.
    let add = format!("ALTER TABLE \"{}\" ADD COLUMN later bigint", table.name);
    table.stranger().await.run(add).await;
    set(&table, 2, Some(1)).await;
    let store = table.store().await;
    assert_eq!(replay(&store, &id("kept")).await, "result");
    execute(&store, &id("new"), "result").await;
    table.config().migrate().await.expect("there is nothing to do");
    assert_eq!(versions(&table).await, (2, 1));
}

#[tokio::test]
async fn rec_1_tables_that_need_a_newer_program_are_refused() {
    let table = Table::new().await;
    // Without the row `compatible_from`, the tables are compatible only with their own version.
    for from in [Some(2), None] {
        set(&table, 2, from).await;
        let error = refused(&table).await.to_string();
        for part in ["found = 2", "compatible_from = 2", "expected = 1", "upgrade"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let error = table.config().migrate().await.expect_err("it would go back");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Schema, Some("migrate")));
        assert!(error.to_string().contains("upgrade"), "{error}");
    }
    set(&table, 3, Some(2)).await;
    assert!(table.config().migrate().await.is_err());
    assert_eq!(versions(&table).await, (3, 2));
}

/// The tables are of a newer version, so only a program of that version can create the missing
/// table in the right form.
#[tokio::test]
async fn rec_1_a_record_table_that_is_missing_under_newer_rows_is_not_created() {
    let table = Table::new().await;
    set(&table, 2, Some(1)).await;
    table.stranger().await.run(format!("DROP TABLE \"{}\"", table.name)).await;
    let migrated = table.config().migrate().await.expect_err("the table's form is unknown");
    for error in [refused(&table).await, migrated] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        let text = error.to_string();
        for part in ["record table is missing", "backup", "found = 2", "expected = 1"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    assert_eq!(versions(&table).await, (2, 1));
    // If the recorded version is that of this program, `migrate` creates the missing table.
    set(&table, 1, Some(1)).await;
    assert!(refused(&table).await.to_string().contains("`retryproof::migrate(url)`"));
    table.config().migrate().await.expect("created again");
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn rec_1_the_shipped_sql_never_lowers_a_version() {
    let table = Table::new().await;
    let sql = schema_sql(&table.name).expect("a valid name");
    let rows = [
        ((3, Some(2)), (3, 2)),
        ((2, Some(0)), (2, 1)),
        ((0, Some(0)), (1, 1)),
        // Without the row `compatible_from`, the tables are compatible only with their own version.
        ((3, None), (3, 3)),
        ((0, None), (1, 1)),
    ];
    for ((schema, from), left) in rows {
        set(&table, schema, from).await;
        table.stranger().await.run(format!("BEGIN; {sql} COMMIT")).await;
        assert_eq!(versions(&table).await, left, "of {schema} and {from:?}");
    }
}

/// A migrator may run the SQL while the service works: no statement waits for open transactions, so
/// no later transaction queues behind it.
#[tokio::test]
async fn rec_1_the_shipped_sql_runs_again_beside_open_transactions() {
    let table = Table::new().await;
    let sql = schema_sql(&table.name).expect("a valid name");
    let mut writer = table.stranger().await;
    writer.run(format!("BEGIN; LOCK TABLE \"{}\" IN ROW EXCLUSIVE MODE", table.name)).await;
    let bounded = format!("SET lock_timeout='3s'; BEGIN; {sql} COMMIT");
    table.stranger().await.run(bounded).await;
    writer.run("COMMIT").await;
}

/// Columns with encoded bytes are stored without compression, even after a restore or a copy of the
/// table has changed this setting.
#[tokio::test]
async fn sto_3_the_shipped_sql_sets_the_storage_of_the_byte_columns() {
    let table = Table::new().await;
    let compressed = format!(
        "SELECT count(*) FROM pg_attribute WHERE attrelid='\"{}\"'::regclass \
         AND attname IN ('result','log') AND attstorage<>'e'",
        table.name
    );
    let mut stranger = table.stranger().await;
    assert_eq!(stranger.number(compressed.as_str()).await, 0);
    stranger
        .run(format!("ALTER TABLE \"{}\" ALTER COLUMN log SET STORAGE EXTENDED", table.name))
        .await;
    assert_eq!(stranger.number(compressed.as_str()).await, 1);
    stranger.run(schema_sql(&table.name).expect("a valid name")).await;
    assert_eq!(stranger.number(compressed.as_str()).await, 0);
}
