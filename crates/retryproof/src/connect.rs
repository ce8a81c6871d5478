// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the store that a URL names, if its feature is enabled (STO-1).

use retryproof_core::store::StoreFinding;
use retryproof_core::{Error, ErrorKind, IdempotencyConfig, Result, SharedStore};

mod seal;
mod settings;

#[cfg(feature = "seal")]
pub use seal::seals_with;

/// The time limit for connecting to a server, whatever causes the delay. Without this limit, the
/// application's start-up could wait forever.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
const CONNECTED_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);
/// The time limit for a migration. The migration may wait for another process's migration, for up
/// to a minute.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
const MIGRATED_WITHIN: std::time::Duration = std::time::Duration::from_secs(120);

/// Opens the store that `url` names, with all its capabilities.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory:` | `MemoryStore`; its records are lost when the process ends | `memory` (default) |
/// | `sqlite:FILE` | `SqliteStore` on that file; `?table=NAME` and `&synchronous=normal` may follow | `sqlite` or `sqlite-bundled` |
/// | `postgres://USER:PASSWORD@HOST:PORT/DATABASE` | `PostgresStore`; several hosts (`HOST:PORT,HOST:PORT`) name a primary and its standbys; `?table=`, `max-connections=`, `pooler=`, `dialect=`, `partitions=` and libpq's parameters may follow. Also `postgresql://` | `postgres`, `postgres-tls` |
/// | `mysql://USER:PASSWORD@HOST:PORT/DATABASE` | `MysqlStore`; `?table=`, `max-connections=`, `ssl-mode=` … may follow. Also `mariadb://` | `mysql`, `mysql-tls` |
/// | `redis://USER:PASSWORD@HOST:PORT/DB` | `RedisStore`; `?prefix=`, `wait-replicas=`, `wait-timeout=` may follow. `rediss://` over TLS | `redis`, `redis-tls` |
/// | `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB` | `RedisStore` on the primary of a Sentinel group; `sentinel-user=` and `sentinel-password=` may follow. `rediss+sentinel://` over TLS | `redis`, `redis-tls` |
/// | `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | `RedisStore` in a Redis Cluster, of which the URL names some nodes. `rediss+cluster://` over TLS | `redis`, `redis-tls` |
///
/// This function never creates tables; only [`migrate`] does (STO-3). There is no default store: an
/// empty URL is an error. Opening a SQLite file blocks for a few milliseconds, so open it at
/// start-up. Connecting to a server takes at most 30 s and needs a tokio runtime with IO and time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let engine = retryproof::IdempotencyEngine::new(retryproof::connect("memory:").await?);
/// # Ok::<(), retryproof::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`Config`](ErrorKind::Config) if the URL names no store or is invalid;
/// [`Unsupported`](ErrorKind::Unsupported) if the store's feature is off;
/// [`Unavailable`](ErrorKind::Unavailable) if the server does not answer; otherwise the store's own
/// error. No message shows a password (ID-4).
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn connect(url: &str) -> Result<SharedStore> {
    Named::parse(url)?.open().await
}

/// Like [`connect`], for the store that the configuration names (`idempotency.store`). That store's
/// settings apply too (`idempotency.memory.*`, `sqlite.*`, `postgres.*`, `mysql.*`, `redis.*`). A
/// store with hashed identities needs its `idempotency.identity-secret` (ID-5). The stores' own
/// time limits scale with `idempotency.operation-timeout`. With `idempotency.seal.keys`, engines on
/// the store seal their results (SEAL-8).
///
/// # Errors
/// Like [`connect`]; also `Config` if no store is configured, or if the same option is set both in
/// the URL and in the configuration.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn connect_with(config: &IdempotencyConfig) -> Result<SharedStore> {
    let seals = seal::Configured::of(config).await?;
    seals.on(Named::configured(config)?.open().await?)
}

/// Creates or updates the tables of the store that `url` names (STO-3). Redis has no tables.
/// Instead, this function records in Redis that the keys are stored as plain text (ID-5). Call this
/// function where your other migrations run. It can run repeatedly, and in several processes at the
/// same time. The call ends within two minutes, of which it waits at most one for another process's
/// migration.
///
/// # Errors
/// Like [`connect`], and [`Schema`](ErrorKind::Schema) if the tables need a newer version of this
/// crate.
///
/// # Cancel safety
/// Dropping the future leaves the schema either unchanged or migrated. MySQL commits each statement
/// separately, so the migration may be incomplete there; call the function again.
pub async fn migrate(url: &str) -> Result<()> {
    Named::parse(url)?.migrate().await
}

/// Like [`migrate`], for the store that the configuration names. If the configuration has an
/// identity secret, a new store is set up for hashed identities (ID-5). With
/// `idempotency.seal.keys`, this function also creates the table of keys (SEAL-8).
///
/// # Errors
/// Like [`migrate`] and [`connect_with`].
///
/// # Cancel safety
/// Like [`migrate`].
pub async fn migrate_with(config: &IdempotencyConfig) -> Result<()> {
    let named = Named::configured(config)?;
    seal::check(config)?;
    named.migrate().await?;
    seal::migrate(config).await
}

/// Looks for problems of the store that the configuration names: the server's role and settings,
/// its clock, tables and privileges, and a purge that does not run (OPS-5). Changes nothing, and
/// needs no tables. The command `retryproof doctor` prints the findings.
///
/// # Errors
/// Like [`connect_with`], but only if the store cannot be examined at all. All other problems are
/// findings.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn diagnose_with(config: &IdempotencyConfig) -> Result<Vec<StoreFinding>> {
    Named::configured(config)?.diagnose().await
}

/// The store that a URL names, with its settings.
enum Named {
    #[cfg(feature = "memory")]
    Memory(retryproof_memory::MemoryStoreBuilder),
    #[cfg(feature = "sqlite")]
    Sqlite(retryproof_sqlite::SqliteConfig),
    #[cfg(feature = "postgres")]
    Postgres(Box<retryproof_postgres::PostgresConfig>),
    #[cfg(feature = "mysql")]
    Mysql(Box<retryproof_mysql::MysqlConfig>),
    #[cfg(feature = "redis")]
    Redis(Box<retryproof_redis::RedisConfig>),
}

impl Named {
    fn parse(url: &str) -> Result<Self> {
        match url.split_once(':') {
            #[cfg(feature = "memory")]
            Some(("memory", "")) => Ok(Self::Memory(retryproof_memory::MemoryStore::builder())),
            #[cfg(not(feature = "memory"))]
            Some(("memory", "")) => Err(without("`memory`", "memory")),
            Some(("memory", _)) => Err(Error::new(
                ErrorKind::Config,
                "the URL of the memory store must be `memory:` without anything after it",
            )),
            #[cfg(feature = "sqlite")]
            Some(("sqlite", _)) => retryproof_sqlite::SqliteConfig::from_url(url).map(Self::Sqlite),
            #[cfg(not(feature = "sqlite"))]
            Some(("sqlite", _)) => Err(without("`sqlite` or `sqlite-bundled`", "sqlite")),
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => {
                let config = retryproof_postgres::PostgresConfig::from_url(url);
                config.map(|config| Self::Postgres(Box::new(config)))
            }
            #[cfg(not(feature = "postgres"))]
            Some((scheme @ ("postgres" | "postgresql"), _)) => Err(without("`postgres`", scheme)),
            #[cfg(feature = "mysql")]
            Some(("mysql" | "mariadb", _)) => {
                let config = retryproof_mysql::MysqlConfig::from_url(url);
                let named = config.map(|config| Self::Mysql(Box::new(config)));
                named.map_err(|error| encrypted(error, cfg!(feature = "mysql-tls"), "mysql-tls"))
            }
            #[cfg(not(feature = "mysql"))]
            Some((scheme @ ("mysql" | "mariadb"), _)) => Err(without("`mysql`", scheme)),
            #[cfg(feature = "redis")]
            Some((
                "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
                | "rediss+cluster",
                _,
            )) => {
                let config = retryproof_redis::RedisConfig::from_url(url);
                let named = config.map(|config| Self::Redis(Box::new(config)));
                named.map_err(|error| encrypted(error, cfg!(feature = "redis-tls"), "redis-tls"))
            }
            #[cfg(not(feature = "redis"))]
            Some((scheme @ ("redis" | "redis+sentinel" | "redis+cluster"), _)) => {
                Err(without("`redis`", scheme))
            }
            #[cfg(not(feature = "redis"))]
            Some((scheme @ ("rediss" | "rediss+sentinel" | "rediss+cluster"), _)) => {
                Err(without("`redis-tls`", scheme))
            }
            Some((scheme, _)) if !scheme.is_empty() => Err(unknown(scheme)),
            _ => Err(unnamed(url.is_empty())),
        }
    }

    fn configured(config: &IdempotencyConfig) -> Result<Self> {
        let Some(url) = config.store.as_deref() else {
            return Err(Error::new(
                ErrorKind::Config,
                "no store is configured; set `idempotency.store` or IDEMPOTENCY_STORE, for \
                 example to `sqlite:records.db`",
            ));
        };
        Self::parse(url)?.with(config, url)
    }

    async fn open(self) -> Result<SharedStore> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(store) => Ok(store.build().into()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => retryproof_sqlite::SqliteStore::open_with(file)
                .map(retryproof_sqlite::SqliteStore::into_shared),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => {
                let store = retryproof_postgres::PostgresStore::connect(*server);
                Ok(within(CONNECTED_WITHIN, store).await?.into_shared())
            }
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => {
                let store = retryproof_mysql::MysqlStore::connect(*server);
                Ok(within(CONNECTED_WITHIN, store).await?.into_shared())
            }
            #[cfg(feature = "redis")]
            Self::Redis(server) => {
                let store = retryproof_redis::RedisStore::connect(*server);
                Ok(within(CONNECTED_WITHIN, store).await?.into_shared())
            }
        }
    }

    async fn diagnose(self) -> Result<Vec<StoreFinding>> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => Ok(vec![StoreFinding::note(
                "memory",
                "The records are in the memory of each process: other processes do not see them, \
                 and they are lost when the process ends.",
                "Use another store for work that a restart must not repeat.",
            )]),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.diagnose(),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.diagnose().await,
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.diagnose().await,
            #[cfg(feature = "redis")]
            Self::Redis(server) => server.diagnose().await,
        }
    }

    async fn migrate(self) -> Result<()> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.migrate(),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => within(MIGRATED_WITHIN, server.migrate()).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => within(MIGRATED_WITHIN, server.migrate()).await,
            #[cfg(feature = "redis")]
            Self::Redis(server) => within(MIGRATED_WITHIN, server.migrate()).await,
        }
    }
}

/// Limits the total time of all steps. The stores themselves limit each single step.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
async fn within<T>(most: std::time::Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| {
        Error::unavailable(
            "the store's server did not answer in time; check that it is running and reachable",
        )
    };
    tokio::time::timeout(most, work).await.map_err(late)?
}

#[cfg(not(all(
    feature = "memory",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
)))]
fn without(feature: &str, scheme: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "this build cannot open the store `{scheme}:`; enable the feature {feature} of the \
             crate `retryproof`"
        ),
    )
}

/// Replaces an error that names a feature of the store's crate with an error that names the
/// facade's feature.
#[cfg(any(feature = "mysql", feature = "redis"))]
fn encrypted(error: Error, is_on: bool, feature: &str) -> Error {
    if is_on || error.kind() != ErrorKind::Unsupported {
        return error;
    }
    let message = format!(
        "this build cannot encrypt connections; enable the feature `{feature}` of the crate \
         `retryproof`"
    );
    Error::new(ErrorKind::Unsupported, message).because(error)
}

/// Returns the error for a URL without a scheme. The message does not repeat the URL, because text
/// without a scheme may be a mistyped secret (ID-4).
fn unnamed(is_empty: bool) -> Error {
    let what = if is_empty { "no store is named" } else { "the store's URL has no scheme" };
    let message = format!("{what}; use, for example, `sqlite:records.db`; {}", forms());
    Error::new(ErrorKind::Config, message)
}

fn unknown(scheme: &str) -> Error {
    // The text before the first colon can be a mistyped secret, so the message repeats only a plain
    // word (ID-4).
    let plain =
        scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let scheme = if plain { scheme } else { "(hidden)" };
    Error::new(ErrorKind::Config, format!("unknown store scheme `{scheme}`; {}", forms()))
}

/// Lists the forms of a URL, and says which of them this build supports.
fn forms() -> String {
    let all = [
        ("`memory:`", cfg!(feature = "memory"), "`memory`"),
        ("`sqlite:FILE`", cfg!(feature = "sqlite"), "`sqlite` or `sqlite-bundled`"),
        ("`postgres://USER:PASSWORD@HOST:PORT/DATABASE`", cfg!(feature = "postgres"), "`postgres`"),
        ("`mysql://USER:PASSWORD@HOST:PORT/DATABASE`", cfg!(feature = "mysql"), "`mysql`"),
        ("`redis://HOST:PORT/DB`", cfg!(feature = "redis"), "`redis`"),
        ("`redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`", cfg!(feature = "redis"), "`redis`"),
        ("`redis+cluster://HOST:PORT,HOST:PORT`", cfg!(feature = "redis"), "`redis`"),
    ];
    let of = |on: bool| all.iter().filter(move |(_, is_on, _)| *is_on == on);
    let known: Vec<_> = of(true).map(|(form, ..)| *form).collect();
    let off: Vec<_> =
        of(false).map(|(form, _, feature)| format!("{form} with the feature {feature}")).collect();
    let mut message = match &known[..] {
        [] => "this build supports no store".to_owned(),
        known => format!("this build supports {}", known.join(", ")),
    };
    if !off.is_empty() {
        message.push_str(&format!("; `retryproof` also supports {}", off.join(", ")));
    }
    message
}
