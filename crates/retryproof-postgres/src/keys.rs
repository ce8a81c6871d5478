// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PostgresKeyTable`]: a table of keys for sealed results, in a database apart from the store.

use std::fmt;

use retryproof_core::config::{Pooler, SqlDialect};
use retryproof_core::seal::DataSubject;
use retryproof_core::store::Param;
use retryproof_core::{Error, ErrorKind, Result};
use retryproof_seal::{KeyId, KeyRow, KeyTable, TableFuture, WrappedKey};
use retryproof_store_kit::CallPriority;
use sqlx_postgres::{PgConnectOptions, PgRow};
use tokio::time::timeout;

use crate::config::PostgresConfig;
use crate::connection::hosts::HostSelector;
use crate::connection::{StatementResult, are_direct, execute_text};
use crate::error::{Failure, lacks_privilege};
use crate::execute::Executor;
use crate::pool::Pool;
use crate::record::column;
use crate::schema::plain;
use crate::statement::bound::{BoundStatement, Returns};

const SCHEMA: &str = include_str!("../migrations/R__keys.sql");
/// Lets only one process at a time create the table, because concurrent creation can fail.
const LOCK: &str = "BEGIN; SELECT pg_advisory_xact_lock(hashtext('retryproof.keys'));";
const BY_SUBJECT: &str = "SELECT id,subject,master,wrapped FROM retryproof_keys WHERE subject=$1";
const BY_ID: &str = "SELECT id,subject,master,wrapped FROM retryproof_keys WHERE id=$1";
const ADD: &str = "INSERT INTO retryproof_keys(id,subject,master,wrapped) \
     VALUES($1,$2,convert_from($3,'UTF8'),$4) ON CONFLICT(subject) DO NOTHING";
/// Locks the row before the change, and returns the row's values from before the change.
const DESTROY: &str = "UPDATE retryproof_keys k \
     SET master=NULL,wrapped=NULL,destroyed_at=coalesce(k.destroyed_at,now()) \
     FROM (SELECT id,subject,master,wrapped FROM retryproof_keys WHERE subject=$1 FOR UPDATE) old \
     WHERE k.id=old.id RETURNING old.id,old.subject,old.master,old.wrapped";
const NOT_UNDER: &str = "SELECT id,subject,master,wrapped FROM retryproof_keys \
     WHERE wrapped IS NOT NULL AND master<>convert_from($1,'UTF8') AND id>$2 ORDER BY id LIMIT $3";
const REPLACE: &str = "UPDATE retryproof_keys SET master=convert_from($1,'UTF8'),wrapped=$2 \
     WHERE id=$3 AND wrapped=$4";
/// Whether the database has a table of records under the store's default name.
const HAS_RECORDS: &str = "SELECT (to_regclass('retryproof_records') IS NOT NULL)::int::bigint \
     FROM (SELECT 1) one LEFT JOIN retryproof_keys ON false";
/// Statements of the plain dialect that fail if the table is missing.
const NO_KEYS: &str = "SELECT id FROM retryproof_keys WHERE 1=0";
const NO_RECORDS: &str = "SELECT state FROM retryproof_records WHERE 1=0";

/// The table `retryproof_keys` in a PostgreSQL database that processes of several hosts share
/// (SEAL-3). Use a database other than the store's, and back it up separately.
///
/// PostgreSQL keeps old versions of a row in its files until a `VACUUM`, and in its log and backups
/// for longer. These old versions still contain wrapped keys that have since been
/// [destroyed](KeyTable::destroy). So after an erasure, rotate the master key, and destroy the old
/// one.
pub struct PostgresKeyTable {
    executor: Executor,
    database: String,
}

impl PostgresKeyTable {
    /// Creates the table, if it is missing. Call this method where your migrations run. The user
    /// needs the privilege to create tables in the first schema of its `search_path`. The name of
    /// the record table in `config` has no effect.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached; `Unexpected` if the user may not create
    /// tables.
    ///
    /// # Cancel safety
    /// A dropped call took effect either completely or not at all.
    pub async fn migrate(config: &PostgresConfig) -> Result<()> {
        let create = async {
            config.check_dialect().map_err(Failure::Store)?;
            let mut opened = HostSelector::new(config).connect().await?;
            match config.dialect {
                SqlDialect::Postgres => {
                    execute_text(&mut opened.conn, format!("{LOCK}{SCHEMA}COMMIT")).await?;
                }
                SqlDialect::Plain => plain::create(&mut opened.conn, SCHEMA).await?,
            }
            Ok(())
        };
        let created: Result<(), Failure> = in_time(config, create).await?;
        created.map_err(|failure| failure.at_connect().during("migrate_keys"))
    }

    /// Connects to the database. Logs a warning if the database also has the table
    /// `retryproof_records` (the default name of the store's table), because a backup would then
    /// contain both tables.
    ///
    /// # Errors
    /// `Schema` if the table is missing; `Config` if the login is rejected; `Unavailable` if the
    /// server cannot be reached.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        config.check_dialect()?;
        let pool = Pool::new(&config);
        let direct = in_time(&config, is_direct(pool.hosts(), config.pooler)).await?;
        pool.set_direct(direct.map_err(|error| config.undetected(error))?, None);
        let executor = Executor::new(pool, config.call_timeout, config.dialect);
        let options = config.source.options(0);
        let database = options.get_database().unwrap_or("(default)").to_owned();
        let table = Self { executor, database };
        if table.is_beside_records(config.dialect).await? {
            tracing::warn!(
                database = table.database,
                "the database of the table of keys also has the table `retryproof_records`; keep \
                 keys and records in different databases, because a backup that contains both can \
                 be read even after a key was destroyed (SEAL-8)"
            );
        }
        Ok(table)
    }

    /// Whether the database also has a table of records under the store's default name. Fails if
    /// the table of keys is missing.
    async fn is_beside_records(&self, dialect: SqlDialect) -> Result<bool> {
        if dialect == SqlDialect::Plain {
            self.run(NO_KEYS, Returns::Row, Vec::new()).await?;
            return Ok(self.run(NO_RECORDS, Returns::Row, Vec::new()).await.is_ok());
        }
        let found = self.run(HAS_RECORDS, Returns::Row, Vec::new()).await?;
        Ok(found.row.is_some_and(|row| column::<i64>(&row, 0, "records").is_ok_and(|has| has == 1)))
    }

    async fn run(
        &self,
        sql: &'static str,
        returns: Returns,
        params: Vec<Param<'_>>,
    ) -> Result<StatementResult> {
        let statement = BoundStatement::new(sql.into(), returns, params);
        let done = self.executor.run(CallPriority::Normal, &statement).await;
        done.map_err(|failure| refused(failure).with("database", &self.database))
    }

    async fn find(&self, sql: &'static str, value: &[u8]) -> Result<Option<KeyRow>> {
        let found = self.run(sql, Returns::Row, vec![Param::Bytes(value)]).await?;
        found.row.as_ref().map(key_row).transpose()
    }
}

impl KeyTable for PostgresKeyTable {
    fn of_subject<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>> {
        Box::pin(self.find(BY_SUBJECT, subject.digest()))
    }

    fn by_id(&self, id: KeyId) -> TableFuture<'_, Option<KeyRow>> {
        Box::pin(async move { self.find(BY_ID, &id.0).await })
    }

    fn add(&self, row: KeyRow) -> TableFuture<'_, KeyRow> {
        Box::pin(async move {
            let wrapped = row.wrapped.as_ref();
            let master = wrapped.map(|key| key.master.as_bytes());
            let params = vec![
                Param::Bytes(&row.id.0),
                Param::Bytes(&row.subject),
                master.map_or(Param::NoBytes, Param::Bytes),
                wrapped.map_or(Param::NoBytes, |key| Param::Bytes(&key.bytes)),
            ];
            self.run(ADD, Returns::Count, params).await?;
            let found = self.find(BY_SUBJECT, &row.subject).await?;
            found.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "a row of the table of keys was deleted")
            })
        })
    }

    fn destroy<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>> {
        Box::pin(self.find(DESTROY, subject.digest()))
    }

    fn not_under<'a>(
        &'a self,
        master: &'a str,
        after: Option<KeyId>,
        limit: usize,
    ) -> TableFuture<'a, Vec<KeyRow>> {
        Box::pin(async move {
            let after = after.map_or_else(Vec::new, |id| id.0.to_vec());
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let params =
                vec![Param::Bytes(master.as_bytes()), Param::Bytes(&after), Param::Int(limit)];
            self.run(NOT_UNDER, Returns::Rows, params).await?.rows.iter().map(key_row).collect()
        })
    }

    fn replace<'a>(
        &'a self,
        id: KeyId,
        old: &'a WrappedKey,
        new: &'a WrappedKey,
    ) -> TableFuture<'a, bool> {
        Box::pin(async move {
            let params = [new.master.as_bytes(), &new.bytes, &id.0, &old.bytes];
            let params = params.into_iter().map(Param::Bytes).collect();
            Ok(self.run(REPLACE, Returns::Count, params).await?.affected == 1)
        })
    }
}

impl PostgresConfig {
    /// Whether both configurations name the same host, port and database. If a configuration has
    /// several hosts, one of them is enough. A server can have several names, so `false` does not
    /// prove that the databases are different.
    #[must_use]
    pub fn names_same_database(&self, other: &Self) -> bool {
        let [nodes, others] = [self, other].map(|config| config.source.nodes());
        let [one, other] = [self, other].map(|config| config.source.options(0));
        let database = |options: &PgConnectOptions| {
            options.get_database().unwrap_or(options.get_username()).to_owned()
        };
        nodes.iter().any(|node| others.contains(node)) && database(&one) == database(&other)
    }
}

/// Whether each connection keeps its server process. The store makes the same check.
async fn is_direct(hosts: &HostSelector, pooler: Pooler) -> Result<bool> {
    match pooler {
        Pooler::Session => Ok(true),
        Pooler::Transaction => Ok(false),
        Pooler::Detect => {
            let mut one = hosts.connect().await.map_err(Failure::at_connect)?;
            let mut other = hosts.connect().await.map_err(Failure::at_connect)?;
            are_direct(&mut one.conn, &mut other.conn).await
        }
    }
}

fn key_row(row: &PgRow) -> Result<KeyRow> {
    let (master, bytes) = (column::<Option<String>>(row, 2, "master")?, column(row, 3, "wrapped")?);
    let wrapped = master.zip(bytes).map(|(master, bytes)| WrappedKey { master, bytes });
    Ok(KeyRow { id: KeyId(column(row, 0, "id")?), subject: column(row, 1, "subject")?, wrapped })
}

/// Runs start-up work under a time limit.
async fn in_time<T>(config: &PostgresConfig, work: impl Future<Output = T>) -> Result<T> {
    let limit = config.connect_timeout.max(config.call_timeout);
    timeout(limit, work).await.map_err(|_| {
        Error::unavailable(
            "the server of the table of keys did not answer in time; check that it is running and \
             reachable",
        )
    })
}

fn refused(failure: Failure) -> Error {
    let is_denied = lacks_privilege(&failure);
    let error = failure.into_error();
    let (kind, message) = match error.kind() {
        _ if is_denied => (
            ErrorKind::Unexpected,
            "the user lacks a privilege; GRANT it SELECT, INSERT and UPDATE on `retryproof_keys`",
        ),
        ErrorKind::Schema => {
            (ErrorKind::Schema, "the database has no table of keys; `migrate` creates it")
        }
        _ => return error,
    };
    Error::new(kind, message).because(error)
}

/// Prints the database, but no user or password (ID-4).
impl fmt::Debug for PostgresKeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresKeyTable").field("database", &self.database).finish_non_exhaustive()
    }
}
