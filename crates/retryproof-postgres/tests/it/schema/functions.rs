// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two releases that both migrate at each start do not undo each other's functions (REC-1).

use std::fmt;
use std::sync::{Arc, Mutex};

use retryproof_postgres::{PostgresStore, schema_sql};
use sqlx_core::row::Row as _;
use tracing::subscriber::set_default;

use crate::support::{Stranger, Table, execute, id};

/// Returns the body and the settings of the function, as the catalogue stores them.
async fn stored(stranger: &mut Stranger, table: &Table, suffix: &str) -> (String, String) {
    let sql = format!(
        "SELECT prosrc,coalesce(proconfig::text,'') FROM pg_proc WHERE proname='{}_{suffix}'",
        table.name
    );
    let row = stranger.row(sql).await;
    (row.try_get(0).expect("a body"), row.try_get(1).expect("settings"))
}

/// Replaces the function in the database with an edited version of its current definition.
async fn edit(table: &Table, suffix: &str, edit: impl Fn(&str) -> String) {
    let mut stranger = table.stranger().await;
    let sql = format!("SELECT pg_get_functiondef('\"{}_{suffix}\"'::regproc)", table.name);
    let current: String = stranger.row(sql).await.try_get(0).expect("a definition");
    let edited = edit(&current);
    assert_ne!(edited, current);
    stranger.run(edited).await;
}

/// Changes only the revision of the function, not what it does.
async fn revise(table: &Table, suffix: &str, declaration: &str) {
    edit(table, suffix, |current| current.replace("revision CONSTANT integer := 1;", declaration))
        .await;
}

#[tokio::test]
async fn rec_1_migrate_never_puts_an_older_body_over_a_newer_one() {
    let table = Table::new().await;
    for suffix in ["grant_1", "complete_1"] {
        revise(
            &table,
            suffix,
            "revision CONSTANT integer := 9; -- A correction of a later release.",
        )
        .await;
        let reset = format!("ALTER FUNCTION \"{}_{suffix}\" SET work_mem='8MB'", table.name);
        let mut stranger = table.stranger().await;
        stranger.run(reset).await;
        let newer = stored(&mut stranger, &table, suffix).await;
        table.config().migrate().await.expect("there is nothing to do");
        assert_eq!(stored(&mut stranger, &table, suffix).await, newer);
    }
    // This release works with the newer functions.
    execute(&table.store().await, &id("k"), "result").await;
}

#[tokio::test]
async fn rec_1_a_lower_revision_is_one_warning_until_migrate_replaces_it() {
    let table = Table::new().await;
    let mut stranger = table.stranger().await;
    let bodies = async |stranger: &mut Stranger| {
        [stored(stranger, &table, "grant_1").await, stored(stranger, &table, "complete_1").await]
    };
    let shipped = bodies(&mut stranger).await;
    // A function whose revision cannot be read counts as having the lowest revision.
    revise(&table, "grant_1", "revision CONSTANT integer := 0;").await;
    revise(&table, "complete_1", "revised CONSTANT boolean := true;").await;
    let warnings = Warnings::default();
    let logged = set_default(warnings.clone());
    let store = PostgresStore::connect(table.config()).await.expect("connected");
    drop(logged);
    let lines = warnings.0.lock().expect("no panic").clone();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["grant_1", "complete_1", "`retryproof::migrate(url)`"] {
        assert!(lines[0].contains(part), "{lines:?}");
    }
    execute(&store, &id("k"), "result").await;
    table.config().migrate().await.expect("replaced");
    assert_eq!(bodies(&mut stranger).await, shipped);
    let warnings = Warnings::default();
    let _logged = set_default(warnings.clone());
    PostgresStore::connect(table.config()).await.expect("connected");
    assert!(warnings.0.lock().expect("no panic").is_empty());
}

/// The revisions survive a migrator that removes comments and joins lines before it sends the SQL.
#[tokio::test]
async fn rec_1_a_migrator_that_rewrites_the_sql_keeps_the_revisions() {
    let table = Table::new().await;
    let sql = schema_sql(&table.name).expect("a valid name");
    let code = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    let words: Vec<_> = code.flat_map(str::split_whitespace).collect();
    let mut stranger = table.stranger().await;
    stranger.run(words.join(" ")).await;
    let rewritten = stored(&mut stranger, &table, "grant_1").await;
    let warnings = Warnings::default();
    let _logged = set_default(warnings.clone());
    let store = PostgresStore::connect(table.config()).await.expect("connected");
    let lines = warnings.0.lock().expect("no panic").clone();
    assert!(lines.is_empty(), "{lines:?}");
    execute(&store, &id("k"), "result").await;
    table.config().migrate().await.expect("there is nothing to do");
    assert_eq!(stored(&mut stranger, &table, "grant_1").await, rewritten);
}

#[tokio::test]
async fn rec_1_lost_settings_of_the_same_revision_come_back() {
    let table = Table::new().await;
    let mut stranger = table.stranger().await;
    let shipped = stored(&mut stranger, &table, "complete_1").await;
    stranger.run(format!("ALTER FUNCTION \"{}_complete_1\" RESET ALL", table.name)).await;
    assert_ne!(stored(&mut stranger, &table, "complete_1").await, shipped);
    table.config().migrate().await.expect("replaced");
    assert_eq!(stored(&mut stranger, &table, "complete_1").await, shipped);
}

#[tokio::test]
async fn rec_1_another_generation_of_a_function_is_left_alone() {
    let table = Table::new().await;
    let mut stranger = table.stranger().await;
    let name = format!("\"{}_grant_2\"", table.name);
    stranger.run(format!("CREATE FUNCTION {name}() RETURNS int LANGUAGE sql AS 'SELECT 2'")).await;
    let newer = stored(&mut stranger, &table, "grant_2").await;
    table.config().migrate().await.expect("there is nothing to do");
    execute(&table.store().await, &id("k"), "result").await;
    assert_eq!(stored(&mut stranger, &table, "grant_2").await, newer);
    stranger.run(format!("DROP FUNCTION {name}")).await;
}

/// Keeps the warnings of this thread, each as one line.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line<'a>(&'a mut String);

impl tracing::field::Visit for Line<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Line(&mut line));
        self.0.lock().expect("no panic").push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
