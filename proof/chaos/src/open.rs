// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the store that a URL names.

use retryproof::mysql::{MysqlConfig, MysqlStore};
use retryproof::postgres::{PostgresConfig, PostgresStore};
use retryproof::redis::{RedisConfig, RedisStore};
use retryproof::sqlite::{SqliteConfig, SqliteStore};
use retryproof::{Error, ErrorKind, MemoryStore, Result, SharedStore};

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

/// Opens the store, with every capability that it has.
pub(crate) async fn connect(url: &str) -> Result<SharedStore> {
    match scheme(url) {
        "memory" => {
            let store = SharedStore::builder(MemoryStore::new()).with_purge();
            Ok(store.with_inspect().with_force().build())
        }
        "sqlite" => Ok(SqliteStore::open_with(SqliteConfig::from_url(url)?)?.into_shared()),
        "postgres" | "postgresql" => {
            Ok(PostgresStore::connect(PostgresConfig::from_url(url)?).await?.into_shared())
        }
        "mysql" | "mariadb" => {
            Ok(MysqlStore::connect(MysqlConfig::from_url(url)?).await?.into_shared())
        }
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => {
            Ok(RedisStore::connect(RedisConfig::from_url(url)?).await?.into_shared())
        }
        // Do not show the URL, because it may contain a password (ID-4).
        _ => Err(Error::new(ErrorKind::Unsupported, "the URL does not name a known store")),
    }
}

/// Opens the store so that a write waits for the disk on the caller's thread, if the store can do
/// that.
pub(crate) async fn connect_in_place(url: &str) -> Result<SharedStore> {
    match scheme(url) {
        "sqlite" => {
            let config = SqliteConfig::from_url(url)?.with_in_place(true);
            Ok(SqliteStore::open_with(config)?.into_shared())
        }
        _ => connect(url).await,
    }
}

/// Creates the store's tables, if it has any.
pub(crate) async fn migrate(url: &str) -> Result<()> {
    match scheme(url) {
        "sqlite" => SqliteConfig::from_url(url)?.migrate(),
        "postgres" | "postgresql" => PostgresConfig::from_url(url)?.migrate().await,
        "mysql" | "mariadb" => MysqlConfig::from_url(url)?.migrate().await,
        _ => Ok(()),
    }
}
