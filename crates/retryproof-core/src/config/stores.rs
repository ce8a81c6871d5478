// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of the stores (CFG-1). The settings are plain data, because this crate depends on
//! no database driver. The facade opens the stores.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{OutOfBounds, PAUSE_BOUNDS, refused, within};

/// Bounds of a store's `max-connections`, both as a setting and in the store's URL (CFG-1).
pub const CONNECTION_BOUNDS: RangeInclusive<usize> = 2..=10_000;
/// Bounds of a PostgreSQL store's `partitions`, both as a setting and in the store's URL (CFG-1).
/// One partition has no use, and with each partition a call takes longer.
pub const PARTITION_BOUNDS: RangeInclusive<usize> = 2..=128;
/// Bounds of a Redis store's `wait-replicas`, both as a setting and in the store's URL (CFG-1).
pub const REPLICA_BOUNDS: RangeInclusive<usize> = 0..=1_000;

/// Whether `name` is valid as a store's table name or key prefix (STO-3): 1 to 48 ASCII letters,
/// digits and underscores, not beginning with a digit. SQLite also refuses names that begin with
/// `sqlite_`.
#[must_use]
pub fn is_store_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
        && name.len() <= 48
}

/// `memory.*`: the bounds of the memory store (STO-1). `None` keeps the store's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemorySettings {
    /// `memory.max-records`: how many records the store keeps at most. Default: 1,000,000.
    pub max_records: Option<usize>,
    /// `memory.max-bytes`: how many bytes all records together may occupy. Default: 1 GiB.
    pub max_bytes: Option<usize>,
}

/// `sqlite.*`: settings of the SQLite store. `None` keeps the URL's value, or the store's default
/// if the URL has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SqliteSettings {
    /// `sqlite.table-name`: the name of the table that holds the records (STO-3).
    pub table_name: Option<String>,
    /// `sqlite.synchronous`: whether each commit waits until it is on disk.
    pub synchronous: Option<Synchronous>,
}

/// Whether each commit of the SQLite store waits until it is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// `full`: every commit is on disk before it is acknowledged, and survives a power loss.
    #[default]
    Full,
    /// `normal`: commits survive a crash of the process. A power loss can undo the latest commits,
    /// and their actions may then run again.
    Normal,
}

/// `postgres.*`: settings of the PostgreSQL store. `None` keeps the URL's value, or the store's
/// default if the URL has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PostgresSettings {
    /// `postgres.table-name`: the name of the table that holds the records (STO-3).
    pub table_name: Option<String>,
    /// `postgres.max-connections`: how many connections the store opens at most; 2 to 10,000.
    pub max_connections: Option<usize>,
    /// `postgres.pooler`: whether there is a pooler between the store and the server.
    pub pooler: Option<Pooler>,
    /// `postgres.dialect`: which SQL the store sends to the server.
    pub dialect: Option<SqlDialect>,
    /// `postgres.partitions`: into how many hash partitions `migrate` divides a new record table; 2
    /// to 128. Without this setting, `migrate` creates a table without partitions, and leaves an
    /// existing table as it is.
    pub partitions: Option<usize>,
}

/// Which SQL the PostgreSQL store sends to the server (STO-9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SqlDialect {
    /// `postgres`: the SQL of PostgreSQL, with functions in the store's schema, notifications and
    /// advisory locks.
    #[default]
    Postgres,
    /// `plain`: only tables, indexes and single statements that read or write rows. This dialect is
    /// for other servers that speak PostgreSQL's protocol, and for users who may not create
    /// functions. Waiters poll.
    Plain,
}

/// Whether there is a pooler between the PostgreSQL store and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooler {
    /// The store detects a pooler when it connects. On each of two connections, it checks several
    /// times which server process answers.
    #[default]
    Detect,
    /// `session`: no pooler, or a pooler that keeps one connection for a client until the client
    /// disconnects (pgbouncer's `session`).
    Session,
    /// `transaction`: a pooler that can give each transaction a different connection (pgbouncer's
    /// `transaction`). The store then uses no prepared statements, and its waiters poll.
    Transaction,
}

/// `mysql.*`: settings of the MySQL and MariaDB store. `None` keeps the URL's value, or the store's
/// default if the URL has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MysqlSettings {
    /// `mysql.table-name`: the name of the table that holds the records (STO-3).
    pub table_name: Option<String>,
    /// `mysql.max-connections`: how many connections the store opens at most; 2 to 10,000.
    pub max_connections: Option<usize>,
}

/// `redis.*`: settings of the Redis store. `None` keeps the URL's value, or the store's default if
/// the URL has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis.prefix`: the prefix of all keys and channels (STO-3).
    pub prefix: Option<String>,
    /// `redis.wait-replicas`: how many replicas a grant or a completion waits for; 0 to 1,000.
    pub wait_replicas: Option<usize>,
    /// `redis.wait-timeout`: how long a grant or a completion waits for the replicas. This setting
    /// requires `wait_replicas`.
    pub wait_timeout: Option<Duration>,
}

// The stores check the same names and bounds again. The checks here come first, because only their
// messages can name the file or the variable of a wrong value.

impl SqliteSettings {
    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        let Some(name) = &self.table_name else { return Ok(()) };
        if is_store_name(name)
            && !name.get(..7).is_some_and(|head| head.eq_ignore_ascii_case("sqlite_"))
        {
            return Ok(());
        }
        Err(refused(
            "sqlite.table-name",
            format!("{name:?}"),
            "1 to 48 ASCII letters, digits and underscores, not beginning with a digit or `sqlite_`",
        ))
    }
}

impl PostgresSettings {
    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        check_name("postgres.table-name", self.table_name.as_deref())?;
        check_count("postgres.max-connections", self.max_connections, &CONNECTION_BOUNDS)?;
        check_count("postgres.partitions", self.partitions, &PARTITION_BOUNDS)
    }
}

impl MysqlSettings {
    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        check_name("mysql.table-name", self.table_name.as_deref())?;
        check_count("mysql.max-connections", self.max_connections, &CONNECTION_BOUNDS)
    }
}

impl RedisSettings {
    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        check_name("redis.prefix", self.prefix.as_deref())?;
        check_count("redis.wait-replicas", self.wait_replicas, &REPLICA_BOUNDS)?;
        self.wait_timeout.map_or(Ok(()), |time| within("redis.wait-timeout", time, &PAUSE_BOUNDS))
    }
}

fn check_name(key: &'static str, name: Option<&str>) -> Result<(), OutOfBounds> {
    match name {
        Some(name) if !is_store_name(name) => Err(refused(
            key,
            format!("{name:?}"),
            "1 to 48 ASCII letters, digits and underscores, not beginning with a digit",
        )),
        _ => Ok(()),
    }
}

fn check_count(
    key: &'static str,
    number: Option<usize>,
    bounds: &RangeInclusive<usize>,
) -> Result<(), OutOfBounds> {
    match number {
        Some(number) if !bounds.contains(&number) => {
            Err(refused(key, number, &format!("{} to {}", bounds.start(), bounds.end())))
        }
        _ => Ok(()),
    }
}
