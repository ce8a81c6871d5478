// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds a store's settings from the configuration to the options in its URL (CFG-1).

use retryproof_core::{IdempotencyConfig, Result};

use super::Named;

impl Named {
    /// Adds the configuration's settings to the options of the `url`.
    ///
    /// A store's own time limits scale with `operation-timeout`, in proportion to the defaults.
    /// They never exceed `operation-timeout`, so the store can report what it waited for. They grow
    /// with `operation-timeout`, so the store does not give up while the engine still waits for the
    /// call (STO-5).
    pub(super) fn with(self, config: &IdempotencyConfig, url: &str) -> Result<Self> {
        // If only some store features are enabled, `config` or `url` can be unused.
        let _ = (config, url);
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(mut store) => {
                if let Some(records) = config.memory.max_records {
                    store = store.max_records(records);
                }
                if let Some(bytes) = config.memory.max_bytes {
                    store = store.max_bytes(bytes as u64);
                }
                if let Some(secret) = &config.identity_secret {
                    store = store.identity_secret(secret.clone());
                }
                Ok(Self::Memory(store))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => sqlite(url, file, config).map(Self::Sqlite),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => {
                postgres(url, *server, config).map(|server| Self::Postgres(Box::new(server)))
            }
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => {
                mysql(url, *server, config).map(|server| Self::Mysql(Box::new(server)))
            }
            #[cfg(feature = "redis")]
            Self::Redis(server) => {
                redis(url, *server, config).map(|server| Self::Redis(Box::new(server)))
            }
        }
    }
}

/// Rejects an option that is set both in the URL and in the configuration, because preferring
/// either value would be a guess.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
fn once(url: &str, parameter: &str, key: &str) -> Result<()> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let is_named = query.split('&').any(|pair| pair.split('=').next() == Some(parameter));
    if !is_named {
        return Ok(());
    }
    Err(retryproof_core::Error::new(
        retryproof_core::ErrorKind::Config,
        "an option is set both in the store's URL and in the configuration; remove one of them",
    )
    .with("parameter", parameter)
    .with("key", key))
}

#[cfg(feature = "sqlite")]
fn sqlite(
    url: &str,
    mut file: retryproof_sqlite::SqliteConfig,
    config: &IdempotencyConfig,
) -> Result<retryproof_sqlite::SqliteConfig> {
    if let Some(table) = &config.sqlite.table_name {
        once(url, "table", "idempotency.sqlite.table-name")?;
        file = file.with_table_name(table);
    }
    if let Some(synchronous) = config.sqlite.synchronous {
        once(url, "synchronous", "idempotency.sqlite.synchronous")?;
        file = file.with_synchronous(synchronous);
    }
    if let Some(secret) = &config.identity_secret {
        file = file.with_identity_secret(secret.clone());
    }
    // Wait for a locked file only as long as the engine waits for the call (STO-5).
    Ok(file.with_busy_timeout(config.operation_timeout))
}

#[cfg(feature = "postgres")]
fn postgres(
    url: &str,
    mut server: retryproof_postgres::PostgresConfig,
    config: &IdempotencyConfig,
) -> Result<retryproof_postgres::PostgresConfig> {
    if let Some(table) = &config.postgres.table_name {
        once(url, "table", "idempotency.postgres.table-name")?;
        server = server.with_table_name(table);
    }
    if let Some(connections) = config.postgres.max_connections {
        once(url, "max-connections", "idempotency.postgres.max-connections")?;
        server = server.with_max_connections(connections);
    }
    if let Some(pooler) = config.postgres.pooler {
        once(url, "pooler", "idempotency.postgres.pooler")?;
        server = server.with_pooler(pooler);
    }
    if let Some(dialect) = config.postgres.dialect {
        once(url, "dialect", "idempotency.postgres.dialect")?;
        server = server.with_dialect(dialect);
    }
    if let Some(partitions) = config.postgres.partitions {
        once(url, "partitions", "idempotency.postgres.partitions")?;
        server = server.with_partitions(partitions);
    }
    if let Some(secret) = &config.identity_secret {
        server = server.with_identity_secret(secret.clone());
    }
    Ok(server
        .with_connect_timeout(config.operation_timeout * 4 / 5)
        .with_call_timeout(config.operation_timeout * 4 / 5))
}

#[cfg(feature = "mysql")]
fn mysql(
    url: &str,
    mut server: retryproof_mysql::MysqlConfig,
    config: &IdempotencyConfig,
) -> Result<retryproof_mysql::MysqlConfig> {
    if let Some(table) = &config.mysql.table_name {
        once(url, "table", "idempotency.mysql.table-name")?;
        server = server.with_table_name(table);
    }
    if let Some(connections) = config.mysql.max_connections {
        once(url, "max-connections", "idempotency.mysql.max-connections")?;
        server = server.with_max_connections(connections);
    }
    if let Some(secret) = &config.identity_secret {
        server = server.with_identity_secret(secret.clone());
    }
    Ok(server
        .with_connect_timeout(config.operation_timeout * 3 / 5)
        .with_call_timeout(config.operation_timeout * 4 / 5))
}

#[cfg(feature = "redis")]
fn redis(
    url: &str,
    mut server: retryproof_redis::RedisConfig,
    config: &IdempotencyConfig,
) -> Result<retryproof_redis::RedisConfig> {
    use std::time::Duration;

    use retryproof_core::{Error, ErrorKind};

    if let Some(prefix) = &config.redis.prefix {
        once(url, "prefix", "idempotency.redis.prefix")?;
        server = server.with_prefix(prefix);
    }
    let time = config.redis.wait_timeout;
    if time.is_some() {
        once(url, "wait-timeout", "idempotency.redis.wait-timeout")?;
    }
    match config.redis.wait_replicas {
        Some(replicas) => {
            // `from_url` has already rejected a URL with `wait-timeout` but no `wait-replicas`, so
            // checking `wait-replicas` is enough.
            once(url, "wait-replicas", "idempotency.redis.wait-replicas")?;
            let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
            server = server.with_wait_replicas(replicas, time.unwrap_or(Duration::from_secs(1)));
        }
        None if time.is_some() => {
            return Err(Error::new(
                ErrorKind::Config,
                "`idempotency.redis.wait-timeout` has no effect without \
                 `idempotency.redis.wait-replicas`; set both or neither",
            ));
        }
        None => {}
    }
    if let Some(secret) = &config.identity_secret {
        server = server.with_identity_secret(secret.clone());
    }
    Ok(server
        .with_connect_timeout(config.operation_timeout / 5)
        .with_call_timeout(config.operation_timeout * 2 / 5))
}

#[cfg(all(test, feature = "postgres", feature = "mysql", feature = "redis"))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn shown(url: &str, config: &IdempotencyConfig) -> String {
        let mut config = config.clone();
        config.store = Some(url.to_owned());
        match Named::configured(&config) {
            Ok(Named::Postgres(server)) => format!("{server:?}"),
            Ok(Named::Mysql(server)) => format!("{server:?}"),
            Ok(Named::Redis(server)) => format!("{server:?}"),
            Ok(_) => "another store".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn cfg_1_sto_5_the_keys_and_the_operation_timeout_reach_the_stores() {
        let mut config = IdempotencyConfig::default();
        config.operation_timeout = Duration::from_secs(20);
        config.postgres.table_name = Some("pay".to_owned());
        config.postgres.max_connections = Some(33);
        config.postgres.pooler = Some(retryproof_core::config::Pooler::Transaction);
        config.postgres.dialect = Some(retryproof_core::config::SqlDialect::Plain);
        config.postgres.partitions = Some(5);
        config.mysql.table_name = Some("pay".to_owned());
        config.mysql.max_connections = Some(33);
        config.redis.prefix = Some("pay".to_owned());
        config.redis.wait_replicas = Some(2);
        for (url, all) in [
            (
                "postgres://h/d",
                &[
                    "\"pay\"",
                    "connections: 33",
                    "Transaction",
                    "Plain",
                    "partitions: Some(5)",
                    "call_timeout: 16s",
                ][..],
            ),
            (
                "mysql://h/d",
                &["\"pay\"", "connections: 33", "connect_timeout: 12s", "call_timeout: 16s"],
            ),
            ("redis://h", &["\"pay\"", "(2, 1s)", "connect_timeout: 4s", "call_timeout: 8s"]),
        ] {
            let shown = shown(url, &config);
            for part in all {
                assert!(shown.contains(part), "{part}: {shown}");
            }
        }
    }

    #[test]
    fn sto_5_without_settings_the_stores_keep_their_defaults() {
        let defaults = IdempotencyConfig::default();
        for url in ["postgres://h/d", "mysql://h/d", "redis://h"] {
            let plain = match Named::parse(url) {
                Ok(Named::Postgres(server)) => format!("{server:?}"),
                Ok(Named::Mysql(server)) => format!("{server:?}"),
                Ok(Named::Redis(server)) => format!("{server:?}"),
                _ => "another store".to_owned(),
            };
            assert_eq!(shown(url, &defaults), plain);
        }
    }
}
