// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Door`]: the way past a store to its records.

use std::time::Duration;

use retryproof::store::AcquireRequest;
use retryproof::{Error, ErrorKind, Identity, OwnerId, Result};

use super::mariadb::Mariadb;
use super::postgres::Postgres;
use super::redis::Redis;
use super::sqlite::Sqlite;

/// An expired lease, as it was read.
pub(super) struct Seen {
    pub(super) token: i64,
    /// What stands behind the token, where a record is one text.
    pub(super) rest: Vec<u8>,
}

/// The driver's own connection to the same records.
pub(super) enum Door {
    Sqlite(Sqlite),
    Postgres(Postgres),
    Mariadb(Mariadb),
    Redis(Redis),
}

impl Door {
    pub(super) async fn open(url: &str) -> Result<Self> {
        match url.split(':').next().unwrap_or_default() {
            "sqlite" => Sqlite::open(url).map(Self::Sqlite),
            "postgres" | "postgresql" => Postgres::open(url).map(Self::Postgres),
            "mysql" | "mariadb" => Mariadb::open(url).map(Self::Mariadb),
            "redis" => Redis::open(url).await.map(Self::Redis),
            _ => {
                let why = "a defect can only be planted in SQLite, PostgreSQL, MariaDB or one \
                    Redis server";
                Err(Error::new(ErrorKind::Config, why))
            }
        }
    }

    /// Makes `owner` the owner of whatever is in progress.
    pub(super) async fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        match self {
            Self::Sqlite(door) => door.usurp(id, owner),
            Self::Postgres(door) => door.usurp(id, owner).await,
            Self::Mariadb(door) => door.usurp(id, owner).await,
            Self::Redis(door) => door.usurp(id, owner).await,
        }
    }

    /// Ends the lease of an owner other than `owner`, if less than `left` of it remains.
    pub(super) async fn hurry(&self, id: &Identity, owner: OwnerId, left: Duration) -> Result<()> {
        match self {
            Self::Sqlite(door) => door.hurry(id, owner, left),
            Self::Postgres(door) => door.hurry(id, owner, left).await,
            Self::Mariadb(door) => door.hurry(id, owner, left).await,
            Self::Redis(door) => door.hurry(id, owner, left).await,
        }
    }

    /// Reads an expired lease.
    pub(super) async fn expired(&self, id: &Identity) -> Result<Option<Seen>> {
        match self {
            Self::Sqlite(door) => door.expired(id),
            Self::Postgres(door) => door.expired(id).await,
            Self::Mariadb(door) => door.expired(id).await,
            Self::Redis(door) => door.expired(id).await,
        }
    }

    /// Writes a lease in its place, whatever is there now; its token.
    pub(super) async fn overwrite(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        seen: Seen,
    ) -> Result<i64> {
        match self {
            Self::Sqlite(door) => door.overwrite(id, req, &seen),
            Self::Postgres(door) => door.overwrite(id, req, &seen).await,
            Self::Mariadb(door) => door.overwrite(id, req, &seen).await,
            Self::Redis(door) => door.overwrite(id, req, &seen).await,
        }
    }
}

/// Scope and key as the tables hold them.
pub(crate) fn bytes(id: &Identity) -> (&[u8], &[u8]) {
    (id.scope().as_str().as_bytes(), id.key().expose().as_bytes())
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::unavailable("the planted defect cannot reach the records").because(error)
}
