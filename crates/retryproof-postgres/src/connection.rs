// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens connections to the server, finds out whether a connection keeps its server process, and
//! runs statements on a connection.

pub(crate) mod hosts;
pub(crate) mod role;

use std::sync::Arc;

use retryproof_core::store::Param;
use retryproof_core::{Error, ErrorKind, Result};
use sqlx_core::arguments::Arguments as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::query::query_with;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::{PgArguments, PgConnection, PgRow};

use crate::error::{Failure, classify};
use crate::statement::bound::{BoundStatement, ParamList, Returns};

use hosts::{HostSelector, OpenedConnection};

/// How many times to read the server process id of each of two connections, to detect a pooler.
const DETECTION_ROUNDS: u32 = 2;

/// The settings of the store's own connections. A prepared statement is planned once, possibly
/// while the table is nearly empty. Without these settings, the server could then choose a plan
/// that reads the whole table, and keep that plan until the next `ANALYZE`. A purge, for example,
/// would first collect all index entries, and then take only a thousand of them. `jit` is off too:
/// with these settings, an unavoidable scan, such as the count of all records, looks so expensive
/// that the server would compile the query.
macro_rules! planner_settings {
    () => {
        "SET enable_seqscan=off;SET enable_bitmapscan=off;SET jit=off"
    };
}

/// What a statement returned.
#[derive(Default)]
pub(crate) struct StatementResult {
    pub(crate) row: Option<PgRow>,
    /// The rows of a statement that returns any number of rows.
    pub(crate) rows: Vec<PgRow>,
    pub(crate) affected: u64,
}

/// What the store needs to know about the server.
pub(crate) struct ServerInfo {
    /// The settings for each new connection.
    pub(crate) settings: Arc<str>,
}

impl ServerInfo {
    /// Creates the description of a PostgreSQL server. The connections always get READ COMMITTED:
    /// at a higher isolation level, a takeover that conflicts with another takeover would fail
    /// instead of seeing that takeover's result.
    pub(crate) fn of_postgres(reads_committed: bool) -> Self {
        let settings = match reads_committed {
            true => planner_settings!(),
            false => {
                concat!(planner_settings!(), ";SET default_transaction_isolation='read committed'")
            }
        };
        Self { settings: settings.into() }
    }
}

/// Opens a connection to the primary and applies `settings` to it.
pub(crate) async fn open_with(
    hosts: &HostSelector,
    settings: Option<&Arc<str>>,
) -> Result<OpenedConnection, Failure> {
    let mut opened = hosts.connect().await?;
    if let Some(settings) = settings.filter(|settings| !settings.is_empty()) {
        opened.conn.execute(raw_sql(AssertSqlSafe(Arc::clone(settings)))).await?;
    }
    Ok(opened)
}

/// Runs a statement, either prepared (it stays prepared on the connection) or as one text with
/// literals. Both ways take one round trip; the first use of a prepared statement on a connection
/// takes one more.
pub(crate) async fn run(
    conn: &mut PgConnection,
    statement: &BoundStatement<'_>,
    prepared: bool,
) -> Result<StatementResult, Failure> {
    let mut result = StatementResult::default();
    if prepared {
        let arguments = all_arguments(&statement.params, &statement.lists)?;
        let query = query_with(AssertSqlSafe(Arc::clone(&statement.sql)), arguments);
        match statement.returns {
            Returns::Row => result.row = conn.fetch_optional(query).await?,
            Returns::Rows => result.rows = conn.fetch_all(query).await?,
            Returns::Count => result.affected = conn.execute(query).await?.rows_affected(),
        }
    } else {
        let text = raw_sql(AssertSqlSafe(statement.with_literals()));
        match statement.returns {
            Returns::Row => result.row = conn.fetch_optional(text).await?,
            Returns::Rows => result.rows = conn.fetch_all(text).await?,
            Returns::Count => result.affected = conn.execute(text).await?.rows_affected(),
        }
    }
    Ok(result)
}

/// Converts the parameters to the driver's arguments.
pub(crate) fn arguments(params: &[Param<'_>]) -> Result<PgArguments, Failure> {
    all_arguments(params, &[])
}

fn all_arguments(params: &[Param<'_>], lists: &[ParamList<'_>]) -> Result<PgArguments, Failure> {
    let mut arguments = PgArguments::default();
    // Each value needs 4 more bytes for its length, which is sent before the value.
    arguments.reserve(params.len(), params.iter().map(|param| 4 + size(param)).sum());
    for param in params {
        match *param {
            Param::Bytes(bytes) => arguments.add(bytes),
            Param::NoBytes => arguments.add(None::<&[u8]>),
            Param::Int(number) => arguments.add(number),
            Param::Bool(truth) => arguments.add(truth),
            _ => return Err(Failure::Store(unsupported_param())),
        }
        .map_err(sqlx_core::Error::Encode)?;
    }
    for list in lists {
        match list {
            ParamList::Bytes(list) => arguments.add(list),
            ParamList::Int(list) => arguments.add(list),
        }
        .map_err(sqlx_core::Error::Encode)?;
    }
    Ok(arguments)
}

/// Returns the number of bytes that a parameter's value takes in a message.
pub(crate) fn size(param: &Param<'_>) -> usize {
    match *param {
        Param::Bytes(bytes) => bytes.len(),
        Param::Int(_) => 8,
        _ => 0,
    }
}

pub(crate) fn unsupported_param() -> Error {
    Error::new(ErrorKind::Unsupported, "this store cannot bind a value of that type")
}

/// Runs one or more statements as plain text.
pub(crate) async fn execute_text(
    conn: &mut PgConnection,
    sql: String,
) -> Result<(), sqlx_core::Error> {
    conn.execute(raw_sql(AssertSqlSafe(sql))).await.map(drop)
}

/// Runs a statement as plain text, and returns its first row.
pub(crate) async fn fetch_row(
    conn: &mut PgConnection,
    sql: String,
) -> Result<Option<PgRow>, sqlx_core::Error> {
    conn.fetch_optional(raw_sql(AssertSqlSafe(sql))).await
}

/// Whether each of the two connections keeps its own server process. If not, a pooler may run each
/// transaction in a different server process.
pub(crate) async fn are_direct(one: &mut PgConnection, other: &mut PgConnection) -> Result<bool> {
    let (first, second) = (backend(one).await?, backend(other).await?);
    let mut direct = first != second;
    for _ in 0..DETECTION_ROUNDS {
        // Query each connection twice in succession. If a pooler hands out its server connections
        // in turn, the two queries reach different processes.
        direct &= second == backend(other).await?;
        direct &= first == backend(one).await?;
        direct &= first == backend(one).await?;
        direct &= second == backend(other).await?;
    }
    Ok(direct)
}

/// Returns the id of the server process that serves the connection.
async fn backend(conn: &mut PgConnection) -> Result<i64> {
    let answer = fetch_row(conn, "SELECT pg_backend_pid()::bigint".to_owned()).await;
    match answer.map_err(|error| classify(&error))? {
        Some(row) => row.try_get(0).map_err(|error| classify(&error)),
        None => Err(not_postgres()),
    }
}

pub(crate) fn not_postgres() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the server does not answer like PostgreSQL; check the host and port",
    )
}
