// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-3, SEAL-4: the table of keys in PostgreSQL keeps the same promises as the one in a SQLite
//! file.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::ErrorKind;
use retryproof_core::IdentitySecret;
use retryproof_core::seal::{DataSubject, Sealer as _};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresKeyTable};
use retryproof_seal::{Destruction, KeyTable as _, MasterKeys, Seals};

use crate::support::{CANARY, Stranger, Table, pgbouncer, postgres};
use crate::table;

pub(crate) fn secret() -> IdentitySecret {
    IdentitySecret::new("s".repeat(32)).unwrap()
}

fn ada() -> DataSubject {
    DataSubject::named(&secret(), "ada")
}

fn master() -> MasterKeys {
    MasterKeys::parse(&format!("one:{}", "0f".repeat(32))).unwrap()
}

/// Runs a test in a separate schema, which has no table of keys.
async fn in_schema(test: impl AsyncFnOnce(PostgresConfig, Stranger)) {
    let name = Table::absent(postgres()).name.clone();
    let mut admin = Stranger::to(&postgres()).await;
    admin.run(format!("CREATE SCHEMA {name}")).await;
    let mark = if postgres().contains('?') { '&' } else { '?' };
    let url = format!("{}{mark}options[search_path]={name}", postgres());
    let config = PostgresConfig::from_url(&url).unwrap().with_pooler(Pooler::Session);
    test(config, Stranger::to(&url).await).await;
    admin.run(format!("DROP SCHEMA {name} CASCADE")).await;
}

/// The time in which the table's connections reach the lock that the test holds.
const REACHED: Duration = Duration::from_millis(300);

#[tokio::test]
async fn seal_3_a_table_in_postgres_keeps_its_promises() {
    in_schema(async |config, mut stranger| {
        let missing = PostgresKeyTable::connect(config.clone()).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Schema, "{missing}");
        assert!(missing.to_string().contains("no table of keys"), "{missing}");
        let at_once = [0; 4].map(|_| {
            let config = config.clone();
            tokio::spawn(async move { PostgresKeyTable::migrate(&config).await })
        });
        for migrated in at_once {
            migrated.await.unwrap().unwrap();
        }
        let keys = PostgresKeyTable::connect(config.clone()).await.unwrap();
        table::judged(&keys).await;
        PostgresKeyTable::migrate(&config).await.unwrap();
        assert_eq!(keys.not_under("", None, 9).await.unwrap().len(), 4, "nothing has changed");
        let destroyed = "SELECT count(*) FROM retryproof_keys WHERE destroyed_at IS NOT NULL";
        assert_eq!(stranger.number(destroyed).await, 1);
    })
    .await;
}

/// The table of keys keeps its promises although each statement may run on another connection of
/// the pooler.
#[tokio::test]
async fn seal_3_a_table_behind_a_pooler_keeps_its_promises() {
    let config = PostgresConfig::from_url(&pgbouncer()).unwrap();
    let mut stranger = Stranger::to(&pgbouncer()).await;
    stranger.run("DROP TABLE IF EXISTS retryproof_keys").await;
    PostgresKeyTable::migrate(&config).await.unwrap();
    table::judged(&PostgresKeyTable::connect(config).await.unwrap()).await;
    stranger.run("DROP TABLE retryproof_keys").await;
}

/// Two processes use a new subject at the same time: both get the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seal_3_two_processes_create_one_key() {
    in_schema(async |config, mut stranger| {
        PostgresKeyTable::migrate(&config).await.unwrap();
        let mut seals = Vec::new();
        for _ in 0..2 {
            let table = PostgresKeyTable::connect(config.clone()).await.unwrap();
            seals.push(Seals::caching(table, master(), Duration::ZERO));
        }
        for round in 0..20 {
            let subject = DataSubject::named(&secret(), &format!("subject {round}"));
            let both = [0, 1].map(|at| {
                let seals: Seals = seals[at].clone();
                tokio::spawn(async move { seals.key_for(&subject).await.map(drop) })
            });
            for created in both {
                created.await.unwrap().unwrap();
            }
        }
        assert_eq!(stranger.number("SELECT count(*) FROM retryproof_keys").await, 20);
    })
    .await;
}

/// Of two processes that destroy a key at the same time, one destroys it, and the other finds it
/// destroyed.
#[tokio::test]
async fn seal_4_of_two_processes_one_destroys() {
    in_schema(async |config, mut stranger| {
        PostgresKeyTable::migrate(&config).await.unwrap();
        let mut both = Vec::new();
        for _ in 0..2 {
            let table = PostgresKeyTable::connect(config.clone()).await.unwrap();
            both.push(Seals::new(table, master()));
        }
        assert_eq!(both[0].destroy(&ada()).await.unwrap(), Destruction::Absent);
        both[0].key_for(&ada()).await.unwrap();
        stranger.run("BEGIN; SELECT 1 FROM retryproof_keys FOR UPDATE").await;
        let tasks: Vec<_> = both
            .into_iter()
            .map(|seals| tokio::spawn(async move { seals.destroy(&ada()).await.unwrap() }))
            .collect();
        tokio::time::sleep(REACHED).await;
        stranger.run("COMMIT").await;
        let mut found = Vec::new();
        for task in tasks {
            found.push(task.await.unwrap());
        }
        found.sort_by_key(|found| *found != Destruction::Destroyed);
        assert_eq!(found, [Destruction::Destroyed, Destruction::Already]);
    })
    .await;
}

/// A key that a rotation wraps during a `destroy` is destroyed nevertheless, and its new form is
/// returned.
#[tokio::test]
async fn seal_4_a_destruction_beside_a_rotation_destroys() {
    in_schema(async |config, mut stranger| {
        PostgresKeyTable::migrate(&config).await.unwrap();
        let table = Arc::new(PostgresKeyTable::connect(config.clone()).await.unwrap());
        let other = PostgresKeyTable::connect(config).await.unwrap();
        Seals::new(other, master()).key_for(&ada()).await.unwrap();
        let new = "BEGIN; UPDATE retryproof_keys SET master='two', wrapped='\\x77'::bytea";
        stranger.run(new).await;
        let destroying = tokio::spawn({
            let table = Arc::clone(&table);
            async move { table.destroy(&ada()).await.unwrap().unwrap() }
        });
        tokio::time::sleep(REACHED).await;
        stranger.run("COMMIT").await;
        let found = destroying.await.unwrap().wrapped.unwrap();
        assert_eq!((found.master.as_str(), &found.bytes[..]), ("two", &b"w"[..]));
        assert_eq!(table.of_subject(&ada()).await.unwrap().unwrap().wrapped, None);
    })
    .await;
}

/// A key that another process creates during a `destroy` is either destroyed or left unchanged, and
/// the result says which.
#[tokio::test]
async fn seal_4_a_destruction_beside_the_creation_tells_the_truth() {
    in_schema(async |config, mut stranger| {
        PostgresKeyTable::migrate(&config).await.unwrap();
        let table = Arc::new(PostgresKeyTable::connect(config).await.unwrap());
        let digest: String = ada().digest().iter().map(|byte| format!("{byte:02x}")).collect();
        let row = format!(
            "BEGIN; INSERT INTO retryproof_keys(id,subject,master,wrapped) \
             VALUES('\\x{}'::bytea,'\\x{digest}'::bytea,'one','\\x77'::bytea)",
            "01".repeat(16)
        );
        stranger.run(row).await;
        let destroying = tokio::spawn({
            let table = Arc::clone(&table);
            async move { table.destroy(&ada()).await.unwrap() }
        });
        tokio::time::sleep(REACHED).await;
        stranger.run("COMMIT").await;
        let found = destroying.await.unwrap().and_then(|row| row.wrapped);
        let left = table.of_subject(&ada()).await.unwrap().unwrap().wrapped;
        assert_ne!(found.is_some(), left.is_some(), "found {found:?}, left {left:?}");
    })
    .await;
}

#[tokio::test]
async fn seal_2_a_server_that_is_away_is_an_error_without_the_password() {
    let config = PostgresConfig::from_url(&format!("postgres://u:{CANARY}@127.0.0.1:1/d")).unwrap();
    for error in [
        PostgresKeyTable::migrate(&config).await.unwrap_err(),
        PostgresKeyTable::connect(config.clone()).await.unwrap_err(),
        PostgresKeyTable::connect(config.with_pooler(Pooler::Session)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    }
}
