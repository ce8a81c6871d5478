// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the table of keys that the configuration names, and reads the master keys (SEAL-8).

use retryproof_core::{Error, ErrorKind, IdempotencyConfig, Result, SharedStore};

#[cfg(feature = "seal")]
use {
    retryproof_seal::{MasterKeys, Seals, SqliteKeyTable},
    std::sync::Arc,
};

// Without the feature `seal`, no value of this type can exist.
#[cfg(not(feature = "seal"))]
use std::convert::Infallible as Seals;

/// What seals the results of the configured store; `None` if they are not sealed.
pub(super) struct Configured(Option<Seals>);

impl Configured {
    /// Opens the table of keys before the store, so that a mistake in the settings is found first.
    pub(super) fn of(config: &IdempotencyConfig) -> Result<Self> {
        match (&config.seal.keys, &config.seal.master) {
            (None, None) => Ok(Self(None)),
            _ => seals_with(config).map(|seals| Self(Some(seals))),
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
/// rotate the master key (SEAL-4, SEAL-7). [`connect_with`](crate::connect_with) does so itself for
/// engines. Opening a SQLite file blocks for a few milliseconds.
///
/// ```no_run
/// use retryproof::IdempotencyConfig;
/// use retryproof::seal::DataSubject;
///
/// # async fn erase(config: &IdempotencyConfig) -> retryproof::Result<()> {
/// let seals = retryproof::seals_with(config)?;
/// if let Some(secret) = &config.identity_secret {
///     seals.destroy(&DataSubject::named(secret, "ada@example.org")).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Config`](ErrorKind::Config) if a setting or a master key is missing or wrong;
/// [`Schema`](ErrorKind::Schema) if there is no table of keys.
#[cfg(feature = "seal")]
pub fn seals_with(config: &IdempotencyConfig) -> Result<Seals> {
    config.validate()?;
    config.check_seal()?;
    let master = config.seal.master.as_deref().unwrap_or_default();
    let master = match master.strip_prefix("env:") {
        Some(variable) => MasterKeys::from_variable(variable)?,
        None => MasterKeys::from_file(master)?,
    };
    let table = SqliteKeyTable::open(file(config)?)?;
    Ok(Seals::caching(table, master, config.seal.cache))
}

/// Creates the table of keys, if the configuration names one.
pub(super) fn migrate(config: &IdempotencyConfig) -> Result<()> {
    if config.seal.keys.is_none() {
        return Ok(());
    }
    created(config)
}

#[cfg(feature = "seal")]
fn created(config: &IdempotencyConfig) -> Result<()> {
    config.check_seal()?;
    SqliteKeyTable::migrate(file(config)?)
}

#[cfg(not(feature = "seal"))]
fn created(_: &IdempotencyConfig) -> Result<()> {
    Err(without())
}

#[cfg(not(feature = "seal"))]
fn seals_with(_: &IdempotencyConfig) -> Result<Seals> {
    Err(without())
}

/// The path in the URL `sqlite:FILE`. The message does not repeat the URL (ID-4).
#[cfg(feature = "seal")]
fn file(config: &IdempotencyConfig) -> Result<&str> {
    let url = config.seal.keys.as_deref().unwrap_or_default();
    let path = url.strip_prefix("sqlite:").filter(|path| !path.is_empty() && !path.contains('?'));
    path.ok_or_else(|| {
        let message = "idempotency.seal.keys is not the URL of a table of keys; expected \
                       `sqlite:FILE`, where FILE is not the store's own file";
        Error::new(ErrorKind::Config, message)
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
