// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a store URL to a store, by the features that are on (STO-1).

use retryproof_core::{
    Error, ErrorKind, IdempotencyConfig, MemoryStore, MemoryStoreBuilder, Result, SharedStore,
};

/// Opens the store that `url` names, with every capability that it has.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory:` | [`MemoryStore`], gone with the process | – |
/// | `sqlite:FILE` | `SqliteStore` on that file; `?table=NAME` and `&synchronous=normal` may follow | `sqlite` or `sqlite-bundled` |
///
/// It creates no table: see [`migrate`] (STO-3). No store is picked by itself: an empty URL is an error. Opening a SQLite
/// file blocks for some milliseconds, so do it at start-up.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let engine = retryproof::IdempotencyEngine::new(retryproof::connect("memory:").await?);
/// # Ok::<(), retryproof::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`Config`](ErrorKind::Config) for a URL that names no store, [`Unsupported`](ErrorKind::Unsupported) for a store
/// whose feature is off, and what the store says when it cannot be opened. No message shows a password (ID-4).
///
/// # Cancel safety
/// A drop leaves nothing behind.
pub async fn connect(url: &str) -> Result<SharedStore> {
    Named::parse(url)?.open()
}

/// As [`connect`], to the store that the configuration names (`idempotency.store`), with the store's own keys
/// (`idempotency.memory.*`, `idempotency.sqlite.*`).
///
/// # Errors
/// As [`connect`]; `Config` too when no store is configured, or when the URL and a key both say the same thing.
///
/// # Cancel safety
/// A drop leaves nothing behind.
pub async fn connect_with(config: &IdempotencyConfig) -> Result<SharedStore> {
    Named::configured(config)?.open()
}

/// Creates or updates the tables of the store that `url` names; for a store without tables, nothing (STO-3). Run it
/// where your other migrations run. Idempotent, and safe from several processes at once.
///
/// # Errors
/// As [`connect`], and [`Schema`](ErrorKind::Schema) when the tables are newer than this version knows.
///
/// # Cancel safety
/// A drop leaves the schema as it was, or migrated.
pub async fn migrate(url: &str) -> Result<()> {
    Named::parse(url)?.migrate()
}

/// As [`migrate`], for the store that the configuration names.
///
/// # Errors
/// As [`migrate`] and [`connect_with`].
///
/// # Cancel safety
/// As [`migrate`].
pub async fn migrate_with(config: &IdempotencyConfig) -> Result<()> {
    Named::configured(config)?.migrate()
}

/// What a URL names.
enum Named {
    Memory(MemoryStoreBuilder),
    #[cfg(feature = "sqlite")]
    Sqlite(retryproof_sqlite::SqliteConfig),
}

impl Named {
    fn parse(url: &str) -> Result<Self> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory(MemoryStore::builder())),
            Some(("memory", _)) => {
                Err(Error::new(ErrorKind::Config, "a memory store is named `memory:`, with nothing after it"))
            }
            #[cfg(feature = "sqlite")]
            Some(("sqlite", _)) => retryproof_sqlite::SqliteConfig::from_url(url).map(Self::Sqlite),
            #[cfg(not(feature = "sqlite"))]
            Some(("sqlite", _)) => Err(Error::new(
                ErrorKind::Unsupported,
                "store `sqlite:` needs the feature `sqlite` or `sqlite-bundled` of the crate `retryproof`",
            )),
            Some((scheme, _)) if !scheme.is_empty() => Err(unknown(scheme)),
            _ => Err(Error::new(
                ErrorKind::Config,
                "no store is named; write a URL, for example `memory:` or `sqlite:records.db`",
            )),
        }
    }

    fn configured(config: &IdempotencyConfig) -> Result<Self> {
        let Some(url) = config.store.as_deref() else {
            return Err(Error::new(
                ErrorKind::Config,
                "no store is configured; set `idempotency.store` or IDEMPOTENCY_STORE, for example to `sqlite:records.db`",
            ));
        };
        Ok(match Self::parse(url)? {
            Self::Memory(mut store) => {
                if let Some(records) = config.memory.max_records {
                    store = store.max_records(records);
                }
                if let Some(bytes) = config.memory.max_bytes {
                    store = store.max_bytes(bytes as u64);
                }
                Self::Memory(store)
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => Self::Sqlite(sqlite_settings(url, file, config)?),
        })
    }

    fn open(self) -> Result<SharedStore> {
        match self {
            Self::Memory(store) => Ok(store.build().into()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => retryproof_sqlite::SqliteStore::open_with(file)
                .map(retryproof_sqlite::SqliteStore::into_shared),
        }
    }

    fn migrate(self) -> Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.migrate(),
        }
    }
}

/// Adds what the keys say to what the URL says. Saying it twice is refused: which of the two wins would be a guess.
#[cfg(feature = "sqlite")]
fn sqlite_settings(
    url: &str,
    mut file: retryproof_sqlite::SqliteConfig,
    config: &IdempotencyConfig,
) -> Result<retryproof_sqlite::SqliteConfig> {
    use retryproof_core::config::Synchronous;

    let query = url.split_once('?').map_or("", |(_, query)| query);
    let twice = |parameter: &str, key: &str| {
        let named =
            query.split('&').any(|pair| pair.split_once('=').is_some_and(|(name, _)| name == parameter));
        if !named {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Config,
            "the URL of the store and a key say the same thing; drop one of them",
        )
        .with("parameter", parameter)
        .with("key", key))
    };
    if let Some(table) = &config.sqlite.table_name {
        twice("table", "idempotency.sqlite.table-name")?;
        file = file.with_table_name(table);
    }
    if let Some(synchronous) = config.sqlite.synchronous {
        twice("synchronous", "idempotency.sqlite.synchronous")?;
        file = file.with_synchronous(match synchronous {
            Synchronous::Full => retryproof_sqlite::Synchronous::Full,
            Synchronous::Normal => retryproof_sqlite::Synchronous::Normal,
        });
    }
    // A call that asks for a locked file for longer has been given up by the engine (STO-5).
    Ok(file.with_busy_timeout(config.operation_timeout))
}

fn unknown(scheme: &str) -> Error {
    // Whatever stands before the first colon may be a mistyped secret: only a plain word is repeated (ID-4).
    let plain = scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let scheme = if plain { scheme } else { "(hidden)" };
    Error::new(
        ErrorKind::Config,
        format!("store scheme `{scheme}` is not known here; known are `memory:` and `sqlite:FILE`"),
    )
}
