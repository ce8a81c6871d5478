// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store for the kit: a real one, in a table for this program, with a defect or without.

use std::path::PathBuf;

use defects::{Defect, Defective};
use retryproof::mysql::{MysqlConfig, MysqlStore};
use retryproof::postgres::{PostgresConfig, PostgresStore};
use retryproof::redis::{RedisConfig, RedisStore};
use retryproof::sqlite::{SqliteConfig, SqliteStore};
use retryproof::{Error, MemoryStore, Result, SharedStore};
use retryproof_testkit::Subject;

/// The table of a store on a server. No two cases use the same identities, so one table is enough
/// for all runs.
const TABLE: &str = "retryproof_bite";

/// Returns the folder of this run's SQLite file.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("retryproof-bite-{}", std::process::id()))
}

/// Removes the folder of this run's SQLite file.
pub(crate) fn clean_up() {
    let _ = std::fs::remove_dir_all(folder());
}

/// Checks that the store can be opened.
pub(crate) fn reach(store: &str) -> std::result::Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(open(store, true)).map(drop).map_err(|error| error.to_string())
}

/// Opens the store of that name.
pub(crate) async fn subject(store: String, defect: Option<Defect>) -> Subject {
    let first = opened(&store, true).await;
    let subject =
        Subject::of(Defective::new(first, defect)).with_purge().with_inspect().with_wake_ups();
    if store == "memory" {
        return subject.build();
    }
    let another = move || {
        let store = store.clone();
        async move { SharedStore::new(Defective::new(opened(&store, false).await, defect)) }
    };
    subject.with_another(another).build()
}

async fn opened(store: &str, migrates: bool) -> SharedStore {
    let opened = open(store, migrates).await;
    opened.unwrap_or_else(|error| panic!("the store {store} should open: {error}"))
}

async fn open(store: &str, migrates: bool) -> Result<SharedStore> {
    match store {
        "memory" => {
            let store = SharedStore::builder(MemoryStore::new());
            Ok(store.with_purge().with_inspect().build())
        }
        "sqlite" => {
            std::fs::create_dir_all(folder())
                .map_err(|error| Error::unavailable("the folder cannot be made").because(error))?;
            let config = SqliteConfig::new(folder().join("records.db"));
            if migrates {
                config.migrate()?;
            }
            Ok(SqliteStore::open_with(config)?.into_shared())
        }
        "postgres" => {
            let config = PostgresConfig::from_url(&url(store))?.with_table_name(TABLE);
            if migrates {
                config.migrate().await?;
            }
            Ok(PostgresStore::connect(config).await?.into_shared())
        }
        "mariadb" => {
            let config = MysqlConfig::from_url(&url(store))?.with_table_name(TABLE);
            if migrates {
                config.migrate().await?;
            }
            Ok(MysqlStore::connect(config).await?.into_shared())
        }
        _ => {
            let config = RedisConfig::from_url(&url(store))?.with_prefix(TABLE);
            Ok(RedisStore::connect(config).await?.into_shared())
        }
    }
}

/// Returns the server's address, which `cargo xtask bite` sets.
fn url(store: &str) -> String {
    let name = format!("RETRYPROOF_TEST_{}", store.to_uppercase());
    std::env::var(&name).unwrap_or_else(|_| panic!("{name} should be the address of the server"))
}
