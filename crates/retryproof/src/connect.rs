// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a store URL to a store, by the features that are on (STO-1).

use retryproof_core::{
    Error, ErrorKind, IdempotencyConfig, MemoryStore, MemoryStoreBuilder, Result, SharedStore,
};

mod settings;

/// How long a server may take to be connected, whatever it does: at start-up somebody waits for it.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
const CONNECTED_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);
/// A migration may have to wait for one of another process, which the stores give a minute.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const MIGRATED_WITHIN: std::time::Duration = std::time::Duration::from_secs(120);

/// Opens the store that `url` names, with every capability that it has.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory:` | [`MemoryStore`], gone with the process | – |
/// | `sqlite:FILE` | `SqliteStore` on that file; `?table=NAME` and `&synchronous=normal` may follow | `sqlite` or `sqlite-bundled` |
/// | `postgres://USER:PASSWORD@HOST:PORT/DATABASE` | `PostgresStore`; `?table=`, `max-connections=`, `pooler=` and the parameters of libpq may follow. `postgresql://` too | `postgres`, `postgres-tls` |
/// | `mysql://USER:PASSWORD@HOST:PORT/DATABASE` | `MysqlStore`; `?table=`, `max-connections=`, `ssl-mode=` … may follow. `mariadb://` too | `mysql`, `mysql-tls` |
/// | `redis://USER:PASSWORD@HOST:PORT/DB` | `RedisStore`; `?prefix=`, `wait=`, `wait-timeout=` may follow. `rediss://` over TLS | `redis`, `redis-tls` |
/// | `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB` | the same on the primary of a Sentinel group; `sentinel-user=` and `sentinel-password=` may follow. `rediss+sentinel://` over TLS | `redis`, `redis-tls` |
///
/// It creates no table: see [`migrate`] (STO-3). No store is picked by itself: an empty URL is an
/// error. Opening a SQLite file blocks for some milliseconds, so do it at start-up. A server is
/// connected within seconds, 30 at the most, and needs a tokio runtime with IO and time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let engine = retryproof::IdempotencyEngine::new(retryproof::connect("memory:").await?);
/// # Ok::<(), retryproof::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`Config`](ErrorKind::Config) for a URL that names no store,
/// [`Unsupported`](ErrorKind::Unsupported) for a store whose feature is off,
/// [`Unavailable`](ErrorKind::Unavailable) for a server that does not answer, and what the store
/// says when it cannot be opened. No message shows a password (ID-4).
///
/// # Cancel safety
/// A drop leaves nothing behind.
pub async fn connect(url: &str) -> Result<SharedStore> {
    Named::parse(url)?.open().await
}

/// As [`connect`], to the store that the configuration names (`idempotency.store`), with the
/// store's own keys (`idempotency.memory.*`, `sqlite.*`, `postgres.*`, `mysql.*`, `redis.*`). What
/// the stores bound by themselves follows `idempotency.operation-timeout`.
///
/// # Errors
/// As [`connect`]; `Config` too when no store is configured, or when the URL and a key both say the
/// same thing.
///
/// # Cancel safety
/// A drop leaves nothing behind.
pub async fn connect_with(config: &IdempotencyConfig) -> Result<SharedStore> {
    Named::configured(config)?.open().await
}

/// Creates or updates the tables of the store that `url` names; for a store without tables, nothing
/// (STO-3). Run it where your other migrations run. Idempotent, and safe from several processes at
/// once. It ends within two minutes, of which it waits one at most for another process that
/// migrates.
///
/// # Errors
/// As [`connect`], and [`Schema`](ErrorKind::Schema) when the tables are newer than this version
/// knows.
///
/// # Cancel safety
/// A drop leaves the schema as it was, or migrated; on MySQL, which commits each statement by
/// itself, perhaps half-way: call it again.
pub async fn migrate(url: &str) -> Result<()> {
    Named::parse(url)?.migrate().await
}

/// As [`migrate`], for the store that the configuration names.
///
/// # Errors
/// As [`migrate`] and [`connect_with`].
///
/// # Cancel safety
/// As [`migrate`].
pub async fn migrate_with(config: &IdempotencyConfig) -> Result<()> {
    Named::configured(config)?.migrate().await
}

/// What a URL names.
enum Named {
    Memory(MemoryStoreBuilder),
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
            Some(("memory", "")) => Ok(Self::Memory(MemoryStore::builder())),
            Some(("memory", _)) => Err(Error::new(
                ErrorKind::Config,
                "a memory store is named `memory:`, with nothing after it",
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
            Some(("redis" | "rediss" | "redis+sentinel" | "rediss+sentinel", _)) => {
                let config = retryproof_redis::RedisConfig::from_url(url);
                let named = config.map(|config| Self::Redis(Box::new(config)));
                named.map_err(|error| encrypted(error, cfg!(feature = "redis-tls"), "redis-tls"))
            }
            #[cfg(not(feature = "redis"))]
            Some((scheme @ ("redis" | "redis+sentinel"), _)) => Err(without("`redis`", scheme)),
            #[cfg(not(feature = "redis"))]
            Some((scheme @ ("rediss" | "rediss+sentinel"), _)) => {
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

    async fn migrate(self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.migrate(),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => within(MIGRATED_WITHIN, server.migrate()).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => within(MIGRATED_WITHIN, server.migrate()).await,
            // Nothing to make, and nothing to ask for: `connect` says whether the server is there.
            #[cfg(feature = "redis")]
            Self::Redis(_) => Ok(()),
        }
    }
}

/// The stores bound each of their steps; this bounds them together.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "redis"))]
async fn within<T>(most: std::time::Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::unavailable("the server of the store did not answer in time");
    tokio::time::timeout(most, work).await.map_err(late)?
}

#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis")))]
fn without(feature: &str, scheme: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("store `{scheme}:` needs the feature {feature} of the crate `retryproof`"),
    )
}

/// Names the facade's feature where a store names its own.
#[cfg(any(feature = "mysql", feature = "redis"))]
fn encrypted(error: Error, is_on: bool, feature: &str) -> Error {
    if is_on || error.kind() != ErrorKind::Unsupported {
        return error;
    }
    let says =
        format!("encrypted connections need the feature `{feature}` of the crate `retryproof`");
    Error::new(ErrorKind::Unsupported, says).because(error)
}

/// Nothing of it is repeated: what has no scheme may be a mistyped secret (ID-4).
fn unnamed(is_empty: bool) -> Error {
    let what = if is_empty { "no store is named" } else { "the URL of the store has no scheme" };
    let message = format!("{what}; write for example `sqlite:records.db`: {}", forms());
    Error::new(ErrorKind::Config, message)
}

fn unknown(scheme: &str) -> Error {
    // Whatever stands before the first colon may be a mistyped secret: only a plain word is
    // repeated (ID-4).
    let plain =
        scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let scheme = if plain { scheme } else { "(hidden)" };
    Error::new(ErrorKind::Config, format!("store scheme `{scheme}` is not known here; {}", forms()))
}

/// What a URL looks like, and which of them this build takes.
fn forms() -> String {
    let all = [
        ("`memory:`", true, ""),
        ("`sqlite:FILE`", cfg!(feature = "sqlite"), "`sqlite` or `sqlite-bundled`"),
        ("`postgres://USER:PASSWORD@HOST:PORT/DATABASE`", cfg!(feature = "postgres"), "`postgres`"),
        ("`mysql://USER:PASSWORD@HOST:PORT/DATABASE`", cfg!(feature = "mysql"), "`mysql`"),
        ("`redis://HOST:PORT/DB`", cfg!(feature = "redis"), "`redis`"),
        ("`redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`", cfg!(feature = "redis"), "`redis`"),
    ];
    let of = |on: bool| all.iter().filter(move |(_, is_on, _)| *is_on == on);
    let known: Vec<_> = of(true).map(|(form, ..)| *form).collect();
    let off: Vec<_> =
        of(false).map(|(form, _, feature)| format!("{form} with the feature {feature}")).collect();
    let mut said = format!("this build takes {}", known.join(", "));
    if !off.is_empty() {
        said.push_str(&format!("; the crate `retryproof` takes also {}", off.join(", ")));
    }
    said
}
