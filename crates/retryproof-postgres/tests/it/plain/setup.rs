// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of the plain dialect, and what keeps a store from starting.

use retryproof_core::{Error, ErrorKind, IdentitySecret};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore, plain_schema_sql};

use super::place::Place;
use crate::support::{Table, execute, id, postgres, replay};

async fn refused(config: PostgresConfig) -> Error {
    PostgresStore::connect(config).await.expect_err("it is refused")
}

/// Returns how many functions and how many tables and indexes belong to the table.
async fn made(table: &Table) -> (i64, i64) {
    let mut admin = table.stranger().await;
    let functions = format!("SELECT count(*) FROM pg_proc WHERE proname LIKE '{}%'", table.name);
    let tables = format!(
        "SELECT count(*) FROM pg_class WHERE relname LIKE '{}%' AND relkind IN ('r','i')",
        table.name
    );
    (admin.number(functions).await, admin.number(tables).await)
}

#[tokio::test]
async fn sto_9_sto_3_migrate_creates_tables_and_indexes_only() {
    let place = Place::absent("").await;
    let error = refused(place.config()).await;
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert_eq!(made(&place.table).await, (0, 0), "`connect` creates nothing");
    for _ in 0..2 {
        place.config().migrate().await.expect("migrated");
        // Three tables, their primary keys, and the index of the purge.
        assert_eq!(made(&place.table).await, (0, 7));
    }
    let store = PostgresStore::connect(place.config()).await.expect("connected");
    execute(&store, &id("k"), "result").await;
    place.config().migrate().await.expect("there is nothing to do");
    assert_eq!(replay(&store, &id("k")).await, "result");
    // Tables without functions are not enough for the other dialect, whose migration adds them.
    let admin = PostgresConfig::from_url(&place.table.url).expect("a valid URL");
    let admin = admin.with_table_name(&place.table.name);
    assert_eq!(refused(admin.clone()).await.kind(), ErrorKind::Schema);
    admin.migrate().await.expect("migrated");
    assert_eq!(made(&place.table).await, (2, 7));
    let postgres = PostgresStore::connect(admin).await.expect("connected");
    assert_eq!(replay(&postgres, &id("k")).await, "result");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_sto_3_migrate_from_many_at_once() {
    for _ in 0..3 {
        let place = Place::absent("").await;
        let all: Vec<_> = (0..8)
            .map(|_| {
                let config = place.config();
                tokio::spawn(async move { config.migrate().await })
            })
            .collect();
        for one in all {
            one.await.expect("no panic").expect("migrated");
        }
        assert_eq!(made(&place.table).await, (0, 7));
    }
}

/// A migration that was broken off after any of its statements is finished by the next one.
#[tokio::test]
async fn sto_9_sto_3_a_migration_that_broke_off_is_finished() {
    for done in [1, 3, 5, 6] {
        let place = Place::absent("").await;
        let sql = plain_schema_sql(&place.table.name).expect("a valid name");
        let mut role = crate::support::Stranger::to(&place.url).await;
        for statement in sql.split(";\n").take(done) {
            role.run(statement).await;
        }
        if done < 6 {
            assert_eq!(refused(place.config()).await.kind(), ErrorKind::Schema, "{done}");
        }
        place.config().migrate().await.expect("migrated");
        assert_eq!(made(&place.table).await, (0, 7), "{done}");
        let store = PostgresStore::connect(place.config()).await.expect("connected");
        execute(&store, &id("k"), "result").await;
    }
}

#[tokio::test]
async fn sto_9_id_5_one_secret_sets_the_tables_up() {
    let secret = |byte: &str| IdentitySecret::new(byte.repeat(32)).expect("long enough");
    let place = Place::absent("").await;
    let both = ["a", "b"].map(|byte| {
        let config = place.config().with_identity_secret(secret(byte));
        tokio::spawn(async move { config.migrate().await.is_ok() })
    });
    let mut migrated = Vec::new();
    for one in both {
        migrated.push(one.await.expect("no panic"));
    }
    assert_eq!(migrated.iter().filter(|is_ok| **is_ok).count(), 1, "{migrated:?}");
    let winner = if migrated[0] { "a" } else { "b" };
    let config = place.config().with_identity_secret(secret(winner));
    PostgresStore::connect(config).await.expect("connected");
    assert_eq!(refused(place.config()).await.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn sto_9_missing_privileges_are_named() {
    let place = Place::new("").await;
    let mut admin = place.table.stranger().await;
    let name = &place.table.name;
    // The role owns its tables, so take one privilege after the other from it.
    for privilege in ["INSERT", "UPDATE", "DELETE"] {
        admin.run(format!("REVOKE {privilege} ON \"{name}\" FROM retryproof_plain")).await;
        let error = refused(place.config()).await;
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
        assert!(error.to_string().contains("GRANT it SELECT, INSERT"), "{error}");
        let found = place.config().diagnose().await.expect("diagnosed");
        let finding = found.iter().find(|finding| finding.id == "privilege").expect("named");
        let named = format!("privileges: {privilege} on {name}.");
        assert!(finding.problem.ends_with(&named), "{finding:?}");
        admin.run(format!("GRANT {privilege} ON \"{name}\" TO retryproof_plain")).await;
    }
    // The diagnosis tries to read PostgreSQL's settings.
    place.tap.take_forbidden();
    PostgresStore::connect(place.config()).await.expect("connected");
}

#[tokio::test]
async fn sto_9_a_pooler_that_cannot_be_detected_has_to_be_named() {
    let place = Place::new("").await;
    let error = refused(place.config().with_pooler(Pooler::Detect)).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("`pooler=session`"), "{error}");
    // That question is the only function of PostgreSQL's catalogue in the dialect.
    let asked = place.tap.take_forbidden();
    assert!(asked.iter().all(|text| text.contains("pg_backend_pid")), "{asked:?}");
    // A server that has the function needs no parameter.
    let table = Table::new().await;
    let url = format!("{}?dialect=plain&table={}", postgres(), table.name);
    let config = PostgresConfig::from_url(&url).expect("a valid URL");
    let store = PostgresStore::connect(config).await.expect("connected");
    assert!(format!("{store:?}").contains("direct: true"), "{store:?}");
}

#[tokio::test]
async fn sto_9_cfg_1_several_hosts_are_refused_before_a_connection() {
    let config = PostgresConfig::from_url("postgres://app@127.0.0.1:1,127.0.0.1:2/d");
    let config = config.expect("a valid URL").with_dialect(retryproof_postgres::SqlDialect::Plain);
    for error in [
        refused(config.clone()).await,
        config.migrate().await.expect_err("refused"),
        config.diagnose().await.expect_err("refused"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("`dialect=plain`"), "{error}");
    }
}

#[tokio::test]
async fn sto_9_a_read_only_server_is_named() {
    let place = Place::new("").await;
    let parameter = "&options[default_transaction_read_only]=on&dialect=plain";
    let config = PostgresConfig::from_url(&format!("{}{parameter}", place.url));
    let config = config.expect("a valid URL").with_table_name(&place.table.name);
    let config = config.with_pooler(Pooler::Session);
    let error = refused(config.clone()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    let found = config.diagnose().await.expect("diagnosed");
    assert!(found.iter().any(|finding| finding.id == "role"), "{found:?}");
    place.tap.take_forbidden();
}
