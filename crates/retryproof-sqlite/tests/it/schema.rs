// SPDX-License-Identifier: MIT OR Apache-2.0
//! Only `migrate()` creates tables, and a schema that does not fit is an error that names it
//! (STO-3).

use retryproof_core::store::{Acquired, Peeked};
use retryproof_core::{ErrorKind, IdempotencyStore, OwnerId};
use retryproof_sqlite::{SqliteConfig, SqliteStore, SqliteTxSource, schema_sql};

use crate::support::{Dir, assert_masked, execute, id, replay, request};

fn refused(dir: &Dir) -> String {
    let error = SqliteStore::open(dir.file()).expect_err("the schema does not fit");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    error.to_string()
}

#[tokio::test]
async fn sto_3_open_makes_neither_file_nor_table() {
    let dir = Dir::new();
    assert!(refused(&dir).contains("retryproof::migrate(url)"));
    assert!(!dir.file().exists());
    dir.stranger().execute_batch("CREATE TABLE theirs (x)").expect("another table");
    assert!(refused(&dir).contains("retryproof::migrate(url)"));
    let tables: i64 = dir
        .stranger()
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .expect("the tables are counted");
    assert_eq!(tables, 1);
}

/// URLs belong to `from_url`. As a path, the URL would create a file of that name.
#[test]
fn sto_1_sto_3_a_url_in_place_of_a_path_is_refused() {
    let dir = Dir::new();
    let url = format!("sqlite:{}", dir.file().display());
    let refusals = [
        SqliteConfig::new(&url).migrate().expect_err("a URL"),
        SqliteStore::open(&url).expect_err("a URL"),
        SqliteTxSource::open("sqlite:k.db").expect_err("a URL"),
    ];
    for error in refusals {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let text = error.to_string();
        assert!(text.contains("`sqlite:`") && text.contains("`retryproof::connect`"), "{text}");
    }
    assert!(!std::path::Path::new(&url).exists() && !dir.file().exists());
    let config = SqliteConfig::from_url(&url).expect("a URL where it belongs");
    config.migrate().expect("migrated");
    SqliteStore::open_with(config).expect("opened");
}

#[tokio::test]
async fn sto_3_migrate_is_idempotent_and_keeps_records() {
    let dir = Dir::new();
    let store = dir.store();
    execute(&store, &id("kept"), "result").await;
    SqliteConfig::new(dir.file()).migrate().expect("again, beside an open store");
    drop(store);
    SqliteConfig::new(dir.file()).migrate().expect("and again");
    assert_eq!(replay(&dir.store(), &id("kept")).await, "result");
}

#[tokio::test]
async fn sto_3_migrate_from_many_at_once() {
    let dir = Dir::new();
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..8).map(|_| scope.spawn(|| SqliteConfig::new(dir.file()).migrate())).collect();
        for one in all {
            one.join().expect("no panic").expect("migrated");
        }
    });
    execute(&SqliteStore::open(dir.file()).expect("it opens"), &id("k"), "result").await;
}

#[test]
fn sto_3_older_and_newer_schemas_are_refused() {
    let dir = Dir::new();
    drop(dir.store());
    let set = |version: i64| {
        dir.stranger()
            .execute(
                "UPDATE retryproof_records_meta SET value = ?1 WHERE name = 'schema'",
                [version],
            )
            .expect("the version is set");
    };
    set(0);
    let text = refused(&dir);
    assert!(
        text.contains("older")
            && text.contains("retryproof::migrate(url)")
            && text.contains("found = 0"),
        "{text}"
    );
    set(2);
    let text = refused(&dir);
    assert!(
        text.contains("newer")
            && text.contains("retryproof::migrate(url)")
            && text.contains("found = 2"),
        "{text}"
    );
    let error = SqliteConfig::new(dir.file()).migrate().expect_err("it does not go back");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    set(0);
    SqliteConfig::new(dir.file()).migrate().expect("an older one is brought up");
    SqliteStore::open(dir.file()).expect("and fits now");
    dir.stranger()
        .execute("DELETE FROM retryproof_records_meta WHERE name = 'schema'", [])
        .expect("deleted");
    assert!(refused(&dir).contains("retryproof::migrate(url)"));
}

#[tokio::test]
async fn sto_3_shipped_sql_serves_another_migrator() {
    let dir = Dir::new();
    let sql = schema_sql("retryproof_records").expect("a valid name");
    dir.stranger()
        .execute_batch(&format!("PRAGMA journal_mode = WAL; BEGIN; {sql} COMMIT;"))
        .expect("the shipped SQL runs");
    let store = SqliteStore::open(dir.file()).expect("the store opens");
    execute(&store, &id("k"), "result").await;
    assert_eq!(replay(&store, &id("k")).await, "result");
}

#[tokio::test]
async fn sto_3_two_tables_in_one_file_do_not_meet() {
    let dir = Dir::new();
    let open = |table: &str| {
        let config = SqliteConfig::new(dir.file()).with_table_name(table);
        config.migrate().expect("migrated");
        SqliteStore::open_with(config).expect("opened")
    };
    let (a, b) = (open("a"), open("b_records"));
    execute(&a, &id("k"), "of a").await;
    assert!(matches!(b.peek(&id("k")).await, Ok(Peeked::Absent)));
    execute(&b, &id("k"), "of b").await;
    assert_eq!(
        (replay(&a, &id("k")).await, replay(&b, &id("k")).await),
        ("of a".into(), "of b".into())
    );
    for name in ["a;--", "sqlite_records", ""] {
        let config = SqliteConfig::new(dir.file()).with_table_name(name);
        let kinds = (
            config.migrate().map_err(|e| e.kind()),
            schema_sql(name).map_err(|e| e.kind()).map(drop),
        );
        assert_eq!(kinds, (Err(ErrorKind::Config), Err(ErrorKind::Config)), "{name:?}");
        assert_eq!(
            SqliteStore::open_with(config).expect_err("refused").kind(),
            ErrorKind::Config,
            "{name:?}"
        );
    }
}

#[tokio::test]
async fn sto_3_a_table_that_goes_away_is_a_schema_error() {
    let dir = Dir::new();
    let store = dir.store();
    let id = id(crate::support::CANARY);
    dir.stranger().execute_batch("DROP TABLE retryproof_records").expect("dropped");
    let owner = OwnerId::new();
    let error = match store.acquire(&id, &request(owner)).await {
        Err(error) => error,
        Ok(Acquired::Granted(_) | Acquired::Busy(_) | Acquired::Complete(_)) => {
            panic!("there is no table")
        }
    };
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("retryproof::migrate(url)"), "{error}");
    assert_masked(&error);
    let error = store.release(&id, owner).await.expect_err("there is no table");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
}
