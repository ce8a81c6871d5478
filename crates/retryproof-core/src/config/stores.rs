// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stores' own settings (CFG-1): data for the facade, which makes the stores. This crate knows
//! none of them but memory.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{PAUSE_BOUNDS, Refusal, refused, within};

/// Bounds of `max-connections` of a store on a server, as a key and in its URL (CFG-1).
pub const CONNECTION_BOUNDS: RangeInclusive<usize> = 2..=10_000;
/// Bounds of the number of replicas that a Redis store waits for, as a key and in its URL (CFG-1).
pub const REPLICA_BOUNDS: RangeInclusive<usize> = 0..=1_000;

/// Whether `name` may name a table of a store, or be its prefix: 1 to 48 ASCII letters, digits and
/// underscores, not beginning with a digit (STO-3).
#[must_use]
pub fn is_store_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
        && name.len() <= 48
}

/// `memory.*`: data for the memory store, which the facade makes. `None` leaves the store's default
/// (STO-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemorySettings {
    /// `memory.max-records`. 1,000,000.
    pub max_records: Option<usize>,
    /// `memory.max-bytes`. 1 GiB.
    pub max_bytes: Option<usize>,
}

/// `sqlite.*`: data for the SQLite store, which the facade opens. `None` leaves what the URL says,
/// or the store's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SqliteSettings {
    /// `sqlite.table-name`: the table of records (STO-3).
    pub table_name: Option<String>,
    /// `sqlite.synchronous`: how much a commit waits for the disk.
    pub synchronous: Option<Synchronous>,
}

/// How much a commit of the SQLite store waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// `full`: a commit survives a power loss.
    Full,
    /// `normal`: it survives the death of the process; a power loss may forget the last ones.
    Normal,
}

/// `postgres.*`: data for the PostgreSQL store, which the facade connects. `None` leaves what the
/// URL says, or the store's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PostgresSettings {
    /// `postgres.table-name`: the table of records (STO-3).
    pub table_name: Option<String>,
    /// `postgres.max-connections`: how many connections the store opens at most; 2 to 10,000.
    pub max_connections: Option<usize>,
    /// `postgres.pooler`: what stands between the store and the server. `None` has the store find
    /// out.
    pub pooler: Option<Pooler>,
}

/// What stands between the PostgreSQL store and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooler {
    /// `session`: nothing, or a pooler that gives a client one connection for as long as it stays.
    Session,
    /// `transaction`: a pooler that gives each transaction another connection.
    Transaction,
}

/// `mysql.*`: data for the MySQL and MariaDB store, which the facade connects. `None` leaves what
/// the URL says, or the store's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MysqlSettings {
    /// `mysql.table-name`: the table of records (STO-3).
    pub table_name: Option<String>,
    /// `mysql.max-connections`: how many connections the store opens at most; 2 to 10,000.
    pub max_connections: Option<usize>,
}

/// `redis.*`: data for the Redis store, which the facade connects. `None` leaves what the URL says,
/// or the store's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis.prefix`: what keys and channels begin with (STO-3).
    pub prefix: Option<String>,
    /// `redis.wait-replicas`: how many replicas a grant or completion waits for; 0 to 1,000.
    pub wait_replicas: Option<usize>,
    /// `redis.wait-timeout`: for how long. It needs `wait_replicas`.
    pub wait_timeout: Option<Duration>,
}

// The stores check the same names and bounds; here the message can say where the value came from.

impl SqliteSettings {
    pub(super) fn check(&self) -> Result<(), Refusal> {
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
    pub(super) fn check(&self) -> Result<(), Refusal> {
        word("postgres.table-name", self.table_name.as_deref())?;
        count("postgres.max-connections", self.max_connections, &CONNECTION_BOUNDS)
    }
}

impl MysqlSettings {
    pub(super) fn check(&self) -> Result<(), Refusal> {
        word("mysql.table-name", self.table_name.as_deref())?;
        count("mysql.max-connections", self.max_connections, &CONNECTION_BOUNDS)
    }
}

impl RedisSettings {
    pub(super) fn check(&self) -> Result<(), Refusal> {
        word("redis.prefix", self.prefix.as_deref())?;
        count("redis.wait-replicas", self.wait_replicas, &REPLICA_BOUNDS)?;
        self.wait_timeout.map_or(Ok(()), |time| within("redis.wait-timeout", time, &PAUSE_BOUNDS))
    }
}

fn word(key: &'static str, name: Option<&str>) -> Result<(), Refusal> {
    match name {
        Some(name) if !is_store_name(name) => Err(refused(
            key,
            format!("{name:?}"),
            "1 to 48 ASCII letters, digits and underscores, not beginning with a digit",
        )),
        _ => Ok(()),
    }
}

fn count(
    key: &'static str,
    number: Option<usize>,
    bounds: &RangeInclusive<usize>,
) -> Result<(), Refusal> {
    match number {
        Some(number) if !bounds.contains(&number) => {
            Err(refused(key, number, &format!("{} to {}", bounds.start(), bounds.end())))
        }
        _ => Ok(()),
    }
}
