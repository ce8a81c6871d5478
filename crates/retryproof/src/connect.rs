// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a store URL to a store, by the features that are on (STO-1).

use retryproof_core::{Error, ErrorKind, MemoryStore, Result, SharedStore};

/// Opens the store that `url` names, with every capability that it has.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory:` | [`MemoryStore`], gone with the process | – |
/// | `sqlite:FILE` | `SqliteStore` | `sqlite` or `sqlite-bundled` |
///
/// It creates no table: see [`migrate`] (STO-3). No store is picked by itself: an empty URL is an error.
///
/// # Errors
/// `Config` for a URL that names no store, `Unsupported` for a store whose feature is off, and what the store says
/// when it cannot be opened. No message shows a password (ID-4).
///
/// # Cancel safety
/// A drop leaves nothing behind.
pub async fn connect(url: &str) -> Result<SharedStore> {
    match scheme(url)? {
        "memory" => Ok(MemoryStore::new().into()),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            retryproof_sqlite::SqliteStore::open_with(retryproof_sqlite::SqliteConfig::from_url(url)?)
                .map(SharedStore::from)
        }
        other => Err(unknown(other)),
    }
}

/// Creates or updates the tables of the store that `url` names; for a store without tables, nothing (STO-3). Run it
/// where your other migrations run. Idempotent.
///
/// # Errors
/// As [`connect`], and when the schema is newer than this version knows.
///
/// # Cancel safety
/// A drop leaves the schema as it was, or migrated.
pub async fn migrate(url: &str) -> Result<()> {
    match scheme(url)? {
        "memory" => Ok(()),
        #[cfg(feature = "sqlite")]
        "sqlite" => retryproof_sqlite::SqliteConfig::from_url(url)?.migrate(),
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> Result<&str> {
    url.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| !scheme.is_empty()).ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            "no store is configured; name one, for example `memory:` or `sqlite:records.db`",
        )
    })
}

fn unknown(scheme: &str) -> Error {
    // Whatever stands before the first colon may be a mistyped secret: only a plain word is repeated.
    let plain = scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let scheme = if plain { scheme } else { "(hidden)" };
    match scheme {
        "sqlite" => Error::new(
            ErrorKind::Unsupported,
            "store `sqlite:` needs the feature `sqlite` or `sqlite-bundled` of the crate `retryproof`",
        ),
        _ => Error::new(
            ErrorKind::Config,
            format!("store scheme `{scheme}` is not known here; known are `memory:` and `sqlite:FILE`"),
        ),
    }
}
