// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two versions of the program on one store (REC-1): this one, and a newer one that adds to the
//! tables and writes notes of a later layout.
//!
//! The newer program is this one with [`Newer`] around its store. After each grant, [`Newer`]
//! bypasses the store, and makes the changes to the record that a later version may make and an
//! earlier version has to tolerate.

use std::fmt;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Script};
use retryproof::store::{AcquireRequest, Acquired};
use retryproof::{Error, ErrorKind, IdempotencyStore, Identity, OwnerId, Result, SharedStore};
use rusqlite::Connection;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::query;

/// Gives the tables a newer version, which this program may use.
const ADDED: [&str; 2] = [
    "ALTER TABLE retryproof_records ADD COLUMN added_later INT NULL",
    "UPDATE retryproof_records_meta SET value=2 WHERE name='schema'",
];
/// Gives the tables a version that this program may not use.
const CONTRACTED: [&str; 2] = [
    "UPDATE retryproof_records_meta SET value=3 WHERE name='schema'",
    "UPDATE retryproof_records_meta SET value=2 WHERE name='compatible_from'",
];

const SQLITE: &str = "UPDATE retryproof_records SET holder=CAST(X'02' || substr(holder,2) AS BLOB) \
                      WHERE scope=?1 AND key=?2 AND owner=?3 AND state=0 AND holder IS NOT NULL";
const POSTGRES: &str = "UPDATE retryproof_records SET holder=set_byte(holder,0,2) WHERE scope=$1 AND \
                        key=$2 AND owner=$3 AND state=0 AND holder IS NOT NULL";
const MARIADB: &str = "UPDATE retryproof_records SET holder=CONCAT(X'02',SUBSTRING(holder,2)) WHERE \
                       scope=? AND k=? AND owner=? AND state=0 AND holder IS NOT NULL";
const REDIS: &str = "
    local head = redis.call('GETRANGE', KEYS[1], 0, 54)
    local mine = string.sub(head, 1, 4) == 'rp2P' and string.sub(head, 5, 20) == ARGV[1]
    if mine and string.sub(head, 39, 40) ~= '\\0\\0' then
        redis.call('SETRANGE', KEYS[1], 55, '\\2')
    end";

/// Direct access to the records, without the store.
pub(crate) enum Behind {
    Sqlite(String),
    Postgres(PgPool),
    Mariadb(MySqlPool),
    Redis(MultiplexedConnection, Script),
}

impl Behind {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        match url.split(':').next().unwrap_or_default() {
            "sqlite" => Ok(Self::Sqlite(url.trim_start_matches("sqlite:").to_owned())),
            "postgres" | "postgresql" => {
                let pool = PgPoolOptions::new().max_connections(2).connect_lazy(url);
                pool.map(Self::Postgres).map_err(broken)
            }
            "mysql" | "mariadb" => {
                let pool = MySqlPoolOptions::new().max_connections(2).connect_lazy(url);
                pool.map(Self::Mariadb).map_err(broken)
            }
            "redis" => {
                let client = Client::open(url).map_err(broken)?;
                let link = client.get_multiplexed_async_connection().await.map_err(broken)?;
                Ok(Self::Redis(link, Script::new(REDIS)))
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "this store has only one form of records")),
        }
    }

    /// Brings the tables to the newer form. Redis has no tables.
    pub(crate) async fn add(&self) -> Result<()> {
        self.run(ADDED).await
    }

    /// Brings the tables to a form that this program may not use.
    pub(crate) async fn contract(&self) -> Result<()> {
        self.run(CONTRACTED).await
    }

    async fn run(&self, statements: [&'static str; 2]) -> Result<()> {
        for statement in statements {
            match self {
                Self::Sqlite(path) => {
                    open(path)?.execute(statement, []).map_err(broken)?;
                }
                Self::Postgres(pool) => {
                    query(statement).execute(pool).await.map_err(broken)?;
                }
                Self::Mariadb(pool) => {
                    query(statement).execute(pool).await.map_err(broken)?;
                }
                Self::Redis(..) => {}
            }
        }
        Ok(())
    }

    /// Writes what the newer program adds to its grant.
    async fn stamp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        let ((scope, key), owner) = (bytes(id), owner.as_bytes());
        match self {
            Self::Sqlite(path) => {
                open(path)?.execute(SQLITE, (scope, key, owner)).map_err(broken)?;
            }
            Self::Postgres(pool) => {
                let stamp = query(POSTGRES).bind(scope).bind(key).bind(&owner[..]);
                stamp.execute(pool).await.map_err(broken)?;
            }
            Self::Mariadb(pool) => {
                let stamp = query(MARIADB).bind(scope).bind(key).bind(&owner[..]);
                stamp.execute(pool).await.map_err(broken)?;
            }
            Self::Redis(link, script) => {
                let mut call = script.prepare_invoke();
                call.key(redis_key(id)).arg(&owner[..]);
                call.invoke_async::<()>(&mut link.clone()).await.map_err(broken)?;
            }
        }
        Ok(())
    }
}

fn open(path: &str) -> Result<Connection> {
    let file = Connection::open(path).map_err(broken)?;
    file.busy_timeout(Duration::from_secs(5)).map_err(broken)?;
    Ok(file)
}

/// The store of the newer program.
pub(crate) struct Newer {
    pub(crate) inner: SharedStore,
    pub(crate) behind: Behind,
}

impl fmt::Debug for Newer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Newer").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Newer {
    retryproof_testkit::forward!(inner: peek, wait_for_change, extend, complete, release, profile);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let acquired = self.inner.acquire(id, req).await?;
        if matches!(acquired, Acquired::Granted(_)) {
            self.behind.stamp(id, req.owner).await?;
        }
        Ok(acquired)
    }
}

/// Returns the scope and the key in the form of the tables.
fn bytes(id: &Identity) -> (&[u8], &[u8]) {
    (id.scope().as_str().as_bytes(), id.key().expose().as_bytes())
}

fn redis_key(id: &Identity) -> String {
    let (scope, key) = (id.scope().as_str(), id.key().expose());
    format!("retryproof:{{{}:{scope}:{key}}}", scope.len())
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::unavailable("the newer program cannot reach the records").because(error)
}
