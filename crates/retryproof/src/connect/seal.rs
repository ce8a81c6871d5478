// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the table of keys that the configuration names, and reads the master keys (SEAL-8).

use retryproof_core::{Error, ErrorKind, IdempotencyConfig, Result, SharedStore};

#[cfg(feature = "seal")]
use {
    retryproof_seal::{MasterKeys, Seals, SqliteKeyTable},
    std::path::{Path, PathBuf},
    std::sync::Arc,
};

#[cfg(feature = "seal-postgres")]
use retryproof_postgres::{PostgresConfig, PostgresKeyTable};

// Without the feature `seal`, no value of this type can exist.
#[cfg(not(feature = "seal"))]
use std::convert::Infallible as Seals;

/// The sealer of the configured store; `None` if its results are not sealed.
pub(super) struct Configured(Option<Seals>);

impl Configured {
    /// Opens the table of keys before the store, so that a mistake in its settings is reported
    /// before the store is opened.
    pub(super) async fn of(config: &IdempotencyConfig) -> Result<Self> {
        match (&config.seal.keys, &config.seal.master) {
            (None, None) => Ok(Self(None)),
            _ => seals_with(config).await.map(|seals| Self(Some(seals))),
        }
    }

    pub(super) fn on(self, store: SharedStore) -> Result<SharedStore> {
        match self.0 {
            None => Ok(store),
            #[cfg(feature = "seal")]
            Some(seals) => store.sealed_by(Arc::new(seals)),
            #[cfg(not(feature = "seal"))]
            Some(never) => match never {},
        }
    }
}

/// Opens the table of keys and the master keys that the configuration names, to destroy a key or to
/// rotate the master key (SEAL-4, SEAL-7). For engines, [`connect_with`](crate::connect_with) does
/// this itself, and keeps its own copies of plain keys: they use a destroyed key for up to
/// `seal.cache`, also in this process. Opening a SQLite file blocks for a few milliseconds.
/// Connecting to a server takes at most 10 s.
///
/// ```no_run
/// use retryproof::IdempotencyConfig;
/// use retryproof::seal::DataSubject;
///
/// # async fn erase(config: &IdempotencyConfig) -> retryproof::Result<()> {
/// let seals = retryproof::seals_with(config).await?;
/// if let Some(secret) = &config.identity_secret {
///     seals.destroy(&DataSubject::named(secret, "ada@example.org")).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Config`](ErrorKind::Config) if a setting or a master key is missing or wrong;
/// [`Schema`](ErrorKind::Schema) if there is no table of keys; `Unavailable` if its server does not
/// answer; `Unsupported` for a table in PostgreSQL without the feature `seal-postgres`.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
#[cfg(feature = "seal")]
pub async fn seals_with(config: &IdempotencyConfig) -> Result<Seals> {
    config.validate()?;
    config.check_seal()?;
    let master = config.seal.master.as_deref().unwrap_or_default();
    let master = match master.strip_prefix("env:") {
        Some(variable) => MasterKeys::from_variable(variable)?,
        None => MasterKeys::from_file(master)?,
    };
    let keeps = config.seal.cache;
    Ok(match place(config)? {
        KeysLocation::File(path) => Seals::caching(SqliteKeyTable::open(path)?, master, keeps),
        #[cfg(feature = "seal-postgres")]
        KeysLocation::Server(server) => {
            Seals::caching(PostgresKeyTable::connect(*server).await?, master, keeps)
        }
    })
}

/// Checks the settings of the table of keys, if the configuration names one. Changes nothing.
pub(super) fn check(config: &IdempotencyConfig) -> Result<()> {
    match config.seal.keys {
        None => Ok(()),
        Some(_) => checked(config),
    }
}

#[cfg(feature = "seal")]
fn checked(config: &IdempotencyConfig) -> Result<()> {
    config.check_seal()?;
    place(config).map(drop)
}

#[cfg(not(feature = "seal"))]
fn checked(_: &IdempotencyConfig) -> Result<()> {
    Err(without())
}

/// Creates the table of keys, if the configuration names one.
pub(super) async fn migrate(config: &IdempotencyConfig) -> Result<()> {
    if config.seal.keys.is_none() {
        return Ok(());
    }
    created(config).await
}

#[cfg(feature = "seal")]
async fn created(config: &IdempotencyConfig) -> Result<()> {
    config.check_seal()?;
    match place(config)? {
        KeysLocation::File(path) => SqliteKeyTable::migrate(path),
        #[cfg(feature = "seal-postgres")]
        KeysLocation::Server(server) => PostgresKeyTable::migrate(&server).await,
    }
}

#[cfg(not(feature = "seal"))]
async fn created(_: &IdempotencyConfig) -> Result<()> {
    Err(without())
}

#[cfg(not(feature = "seal"))]
async fn seals_with(_: &IdempotencyConfig) -> Result<Seals> {
    Err(without())
}

/// The location of the table of keys.
#[cfg(feature = "seal")]
enum KeysLocation<'a> {
    File(&'a str),
    #[cfg(feature = "seal-postgres")]
    Server(Box<PostgresConfig>),
}

#[cfg(feature = "seal")]
fn place(config: &IdempotencyConfig) -> Result<KeysLocation<'_>> {
    let url = config.seal.keys.as_deref().unwrap_or_default();
    match url.split_once(':') {
        #[cfg(feature = "seal-postgres")]
        Some(("postgres" | "postgresql", _)) => server(config, url).map(KeysLocation::Server),
        #[cfg(not(feature = "seal-postgres"))]
        Some(("postgres" | "postgresql", _)) => Err(Error::new(
            ErrorKind::Unsupported,
            "this build cannot open a table of keys in PostgreSQL (`idempotency.seal.keys`); enable \
             the feature `seal-postgres` of the crate `retryproof`",
        )),
        _ => file(config, url).map(KeysLocation::File),
    }
}

/// Returns the server that the URL `postgres://…` names.
#[cfg(feature = "seal-postgres")]
fn server(config: &IdempotencyConfig, url: &str) -> Result<Box<PostgresConfig>> {
    let refuse = |message: &'static str| Err(Error::new(ErrorKind::Config, message));
    let keys = PostgresConfig::from_url(url)?;
    let (_, query) = url.split_once('?').unwrap_or_default();
    if query.split('&').any(|parameter| parameter.starts_with("table=")) {
        return refuse(
            "idempotency.seal.keys has the parameter `table`, but the table of keys is always \
             named `retryproof_keys`; remove the parameter",
        );
    }
    let store = config.store.as_deref().and_then(|store| PostgresConfig::from_url(store).ok());
    if store.is_some_and(|store| store.names_same_database(&keys)) {
        return refuse(
            "idempotency.seal.keys names the store's database; keep the table of keys in another \
             database, because a backup of both can be read after a key was destroyed",
        );
    }
    Ok(Box::new(keys))
}

/// Returns the path in the URL `sqlite:FILE`. No message repeats a URL (ID-4).
#[cfg(feature = "seal")]
fn file<'a>(config: &IdempotencyConfig, url: &'a str) -> Result<&'a str> {
    let usable = |path: &&str| {
        let names_a_file = !path.is_empty() && *path != ":memory:";
        names_a_file && !path.contains('?') && !path.starts_with("file:")
    };
    let Some(path) = path_in(url).filter(usable) else {
        let message = "idempotency.seal.keys is not the URL of a table of keys; expected \
                       `sqlite:FILE`, where FILE is not the store's own file, or \
                       `postgres://USER:PASSWORD@HOST:PORT/DATABASE`";
        return Err(Error::new(ErrorKind::Config, message));
    };
    let store = config.store.as_deref().and_then(path_in);
    if store.is_some_and(|store| store.starts_with("file:")) {
        // SQLite decodes such a name in its own way, so it cannot be compared with the path.
        let message = "idempotency.store names its file by a URI `file:…`, so \
                       idempotency.seal.keys may name the same file; name the store's file by its \
                       path";
        return Err(Error::new(ErrorKind::Config, message));
    }
    let store = store.and_then(|store| whole(store.split('?').next()?));
    if store.is_some() && store == whole(path) {
        let message = "idempotency.seal.keys names the store's file; keep the table of keys apart \
                       from the store, because a backup of both can be read after a key was \
                       destroyed";
        return Err(Error::new(ErrorKind::Config, message));
    }
    Ok(path)
}

/// Returns the path in the URL of a SQLite file, as the store reads it.
#[cfg(feature = "seal")]
fn path_in(url: &str) -> Option<&str> {
    let path = url.strip_prefix("sqlite:")?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

/// Returns the absolute path without symbolic links, `.` and `..`, of a file that may not exist
/// yet.
#[cfg(feature = "seal")]
fn whole(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    path.canonicalize().ok().or_else(|| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    })
}

#[cfg(not(feature = "seal"))]
fn without() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "this build cannot seal results (`idempotency.seal.keys`); enable the feature `seal` of \
         the crate `retryproof`",
    )
}

#[cfg(all(test, feature = "seal"))]
mod tests {
    use super::*;

    fn configured(store: &str, keys: &str) -> IdempotencyConfig {
        let mut config = IdempotencyConfig::default();
        config.store = Some(store.to_owned());
        config.seal.keys = Some(keys.to_owned());
        config
    }

    #[test]
    fn seal_8_the_table_of_keys_is_not_in_the_stores_file() {
        for (store, keys) in [
            ("sqlite:records.db?table=canary", "sqlite:records.db"),
            ("sqlite:./records.db", "sqlite:records.db"),
            ("sqlite://src/../records.db", "sqlite:records.db"),
            ("sqlite:Cargo.toml", "sqlite://src/../Cargo.toml"),
        ] {
            let error = file(&configured(store, keys), keys).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let said = error.to_string();
            assert!(said.contains("the store's file") && !said.contains("canary"), "{said}");
        }
        for store in ["memory:", "sqlite:other.db", "sqlite:no/such/folder/keys.db"] {
            let keys = "sqlite://keys.db";
            let path = file(&configured(store, keys), keys).unwrap();
            assert_eq!(path, "keys.db", "as the URL of a store is read");
        }
        for keys in [
            "keys.db",
            "sqlite:",
            "sqlite::memory:",
            "sqlite:keys.db?table=x",
            "sqlite:file:keys.db",
        ] {
            let error = file(&configured("memory:", keys), keys).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
        }
        for store in ["sqlite:file:records.db", "sqlite://file:./records.db"] {
            let keys = "sqlite:records.db";
            let said = file(&configured(store, keys), keys).unwrap_err().to_string();
            assert!(said.contains("by its path"), "{said}");
        }
    }

    #[cfg(feature = "seal-postgres")]
    #[test]
    fn seal_8_the_table_of_keys_is_not_in_the_stores_database() {
        let keys = "postgres://keys:canary@db.internal/pay";
        for (store, keys, part) in [
            ("postgres://app:canary@db.internal:5432/pay?table=t", keys, "the store's database"),
            ("postgresql://app@db.internal/pay?sslmode=require", keys, "the store's database"),
            ("memory:", "postgres://db.internal/keys?table=canary", "parameter `table`"),
            ("memory:", "postgres://db.internal/keys?tabel=canary", "tabel"),
        ] {
            let error = place(&configured(store, keys)).err().expect("refused");
            assert_eq!(error.kind(), ErrorKind::Config);
            let said = format!("{error} {error:?}");
            assert!(said.contains(part) && !said.contains("canary"), "{said}");
        }
        for store in ["memory:", "postgres://db.internal/records", "postgres://other/pay"] {
            assert!(
                matches!(place(&configured(store, keys)), Ok(KeysLocation::Server(_))),
                "{store}"
            );
        }
    }
}
