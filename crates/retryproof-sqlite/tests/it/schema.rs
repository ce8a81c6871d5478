// SPDX-License-Identifier: MIT OR Apache-2.0
//! Only `migrate()` creates tables (STO-3). A program starts on tables that it can use. For other
//! tables, the error says whether to upgrade the program or the tables (REC-1).

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

/// A URL has to be passed to `from_url`. If the URL were used as a path, SQLite would create a file
/// with that name.
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
    let config = SqliteConfig::from_url(&url).expect("a URL passed to `from_url`");
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

/// Writes the versions of the tables, as another version of the library would.
fn set_versions(dir: &Dir, schema: i64, compatible_from: i64) {
    let changed = dir
        .stranger()
        .execute(
            "UPDATE retryproof_records_meta SET value = iif(name = 'schema', ?1, ?2) \
             WHERE name IN ('schema', 'compatible_from')",
            [schema, compatible_from],
        )
        .expect("the versions are set");
    assert_eq!(changed, 2);
}

/// Returns the values of `schema` and `compatible_from`.
fn versions(dir: &Dir) -> (i64, i64) {
    let read = |name| {
        dir.stranger()
            .query_row("SELECT value FROM retryproof_records_meta WHERE name = ?1", [name], |row| {
                row.get(0)
            })
            .expect("the row exists")
    };
    (read("schema"), read("compatible_from"))
}

fn delete_version(dir: &Dir, name: &str) {
    let deleted = dir
        .stranger()
        .execute("DELETE FROM retryproof_records_meta WHERE name = ?1", [name])
        .expect("deleted");
    assert_eq!(deleted, 1);
}

#[tokio::test]
async fn rec_1_newer_tables_that_allow_this_version_are_used_and_left_alone() {
    let dir = Dir::new();
    execute(&dir.store(), &id("before"), "result").await;
    set_versions(&dir, 2, 1);
    SqliteConfig::new(dir.file()).migrate().expect("a roll-back that migrates at its start");
    assert_eq!(versions(&dir), (2, 1));
    let store = SqliteStore::open(dir.file()).expect("the tables allow this version");
    assert_eq!(replay(&store, &id("before")).await, "result");
    execute(&store, &id("after"), "another").await;
}

#[test]
fn rec_1_tables_that_need_a_newer_program_are_refused() {
    let dir = Dir::new();
    drop(dir.store());
    set_versions(&dir, 3, 2);
    let text = refused(&dir);
    for part in ["upgrade this program", "found = 3", "compatible_from = 2", "expected = 1"] {
        assert!(text.contains(part), "{text}");
    }
    let error = SqliteConfig::new(dir.file()).migrate().expect_err("it does not go back");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("upgrade this program"), "{error}");
    assert_eq!(versions(&dir), (3, 2));
}

#[test]
fn sto_3_rec_1_tables_that_are_too_old_are_refused_until_they_are_migrated() {
    let dir = Dir::new();
    drop(dir.store());
    set_versions(&dir, 0, 0);
    let text = refused(&dir);
    for part in ["upgrade the tables", "retryproof::migrate(url)", "found = 0"] {
        assert!(text.contains(part), "{text}");
    }
    SqliteConfig::new(dir.file()).migrate().expect("upgraded");
    assert_eq!(versions(&dir), (1, 1));
    SqliteStore::open(dir.file()).expect("the tables fit now");
    delete_version(&dir, "schema");
    assert!(refused(&dir).contains("retryproof::migrate(url)"));
}

/// The tables are of a newer version, so only a program of that version can create the missing
/// table in the right form.
#[tokio::test]
async fn rec_1_a_record_table_that_is_missing_under_newer_rows_is_not_created() {
    let dir = Dir::new();
    drop(dir.store());
    set_versions(&dir, 2, 1);
    dir.stranger().execute_batch("DROP TABLE retryproof_records").expect("dropped");
    let error = SqliteConfig::new(dir.file()).migrate().expect_err("the table's form is unknown");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    for text in [refused(&dir), error.to_string()] {
        for part in ["record table is missing", "backup", "found = 2", "expected = 1"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    assert_eq!(versions(&dir), (2, 1));
    // If the recorded version is that of this program, `migrate` creates the missing table.
    set_versions(&dir, 1, 1);
    assert!(refused(&dir).contains("retryproof::migrate(url)"));
    SqliteConfig::new(dir.file()).migrate().expect("created again");
    execute(&SqliteStore::open(dir.file()).expect("opened"), &id("k"), "result").await;
}

#[test]
fn rec_1_tables_without_a_lower_bound_accept_programs_of_their_version() {
    let dir = Dir::new();
    drop(dir.store());
    delete_version(&dir, "compatible_from");
    SqliteStore::open(dir.file()).expect("the tables have this version");
    dir.stranger()
        .execute("UPDATE retryproof_records_meta SET value = 2 WHERE name = 'schema'", [])
        .expect("the version is set");
    assert!(refused(&dir).contains("upgrade this program"));
}

#[test]
fn rec_1_the_shipped_sql_run_again_lowers_no_version() {
    let dir = Dir::new();
    drop(dir.store());
    set_versions(&dir, 3, 2);
    let stranger = dir.stranger();
    stranger
        .execute("UPDATE retryproof_records_meta SET value = 4711 WHERE name = 'fence'", [])
        .expect("the counter is set");
    let sql = schema_sql("retryproof_records").expect("a valid name");
    stranger.execute_batch(&format!("BEGIN; {sql} COMMIT;")).expect("the shipped SQL runs again");
    assert_eq!(versions(&dir), (3, 2));
    let fence: i64 = stranger
        .query_row("SELECT value FROM retryproof_records_meta WHERE name = 'fence'", [], |row| {
            row.get(0)
        })
        .expect("the row exists");
    assert_eq!(fence, 4711, "tokens continue from the last one (ACQ-10)");
    // Without the row `compatible_from`, the tables are compatible only with their own version.
    delete_version(&dir, "compatible_from");
    stranger.execute_batch(&format!("BEGIN; {sql} COMMIT;")).expect("the shipped SQL runs again");
    assert_eq!(versions(&dir), (3, 3));
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
