// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger: what was charged, by which process. It lives in the database of the records: a
//! SQLite file, or PostgreSQL.
//!
//! [`in_sqlite`] and [`in_postgres`] write into a transaction that they do not own: the guard's,
//! which commits the charge and the record of the answer together (CMP-7). A process that dies
//! before that commit leaves neither. [`Ledger::charge_apart`] commits separately: a process that
//! dies between it and the record leaves a charge that its retry repeats. That is the limit of a
//! lease, and `storm --apart` shows it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{Executor as _, Row as _, query};

use crate::BoxError;

/// A client's order.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Order {
    /// The customer's account.
    pub(crate) account: String,
    /// In cents.
    pub(crate) amount: i64,
    /// The purpose, shown on the receipt.
    pub(crate) reference: String,
}

/// What a charge answers.
#[derive(Debug, Clone, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The number of the charge in the ledger.
    pub(crate) payment: i64,
    /// The account charged.
    pub(crate) account: String,
    /// In cents.
    pub(crate) amount: i64,
    /// The purpose.
    pub(crate) reference: String,
}

impl Receipt {
    fn of(order: &Order, payment: i64) -> Self {
        let Order { account, amount, reference } = order.clone();
        Self { payment, account, amount, reference }
    }
}

/// One row, as `GET /payments` and the storm's account show it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Charge {
    /// The receipt that was given, or would have been.
    #[serde(flatten)]
    pub(crate) receipt: Receipt,
    /// The process that wrote it.
    pub(crate) process: u32,
}

/// A shared handle.
#[derive(Debug, Clone)]
pub(crate) enum Ledger {
    /// Its calls block for one commit.
    Sqlite(Arc<Mutex<Connection>>),
    Postgres(PgPool),
}

/// Charges: one row, in whatever transaction the connection is in.
pub(crate) fn in_sqlite(connection: &Connection, order: &Order) -> Result<Receipt, BoxError> {
    connection
        .prepare_cached(
            "INSERT INTO ledger (account, amount, reference, process) VALUES (?, ?, ?, ?)",
        )?
        .execute(params![order.account, order.amount, order.reference, std::process::id()])?;
    Ok(Receipt::of(order, connection.last_insert_rowid()))
}

/// The same on PostgreSQL.
pub(crate) async fn in_postgres(
    connection: &mut PgConnection,
    order: &Order,
) -> Result<Receipt, BoxError> {
    let insert = query(
        "INSERT INTO payments_ledger (account, amount, reference, process) VALUES ($1, $2, $3, \
         $4) RETURNING payment",
    )
    .bind(&order.account)
    .bind(order.amount)
    .bind(&order.reference)
    .bind(i64::from(std::process::id()));
    let row = connection.fetch_one(insert).await?;
    Ok(Receipt::of(order, row.try_get(0)?))
}

impl Ledger {
    /// Opens the ledger beside the records that the URL names, and makes its table.
    pub(crate) async fn open(store: &str) -> Result<Self, BoxError> {
        match store.strip_prefix("sqlite:") {
            Some(file) => Ok(Self::in_file(Path::new(file))?),
            None => Self::on_server(store).await,
        }
    }

    fn in_file(file: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(file)?;
        // Records and ledger share the file's one write lock; each holds it for a commit.
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute(
            "CREATE TABLE IF NOT EXISTS ledger (
                payment   INTEGER PRIMARY KEY AUTOINCREMENT,
                account   TEXT NOT NULL,
                amount    INTEGER NOT NULL,
                reference TEXT NOT NULL,
                process   INTEGER NOT NULL
            )",
            [],
        )?;
        Ok(Self::Sqlite(Arc::new(Mutex::new(connection))))
    }

    async fn on_server(url: &str) -> Result<Self, BoxError> {
        // What follows the `?` is for the store.
        let url = url.split_once('?').map_or(url, |(url, _)| url);
        let pool = PgPoolOptions::new().max_connections(16).connect(url).await;
        // The driver's error may show the URL, and with it a password.
        let pool = pool.map_err(|_| "the ledger's database cannot be reached")?;
        // If two processes create it at once, one of them may get an error because the other was
        // first.
        let table = "CREATE TABLE IF NOT EXISTS payments_ledger (
            payment   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            account   text NOT NULL,
            amount    bigint NOT NULL,
            reference text NOT NULL,
            process   bigint NOT NULL
        )";
        if pool.execute(table).await.is_err() {
            pool.execute(table).await?;
        }
        Ok(Self::Postgres(pool))
    }

    /// Charges in a separate commit, apart from the record.
    pub(crate) async fn charge_apart(&self, order: &Order) -> Result<Receipt, BoxError> {
        match self {
            Self::Sqlite(connection) => {
                let (connection, order) = (Arc::clone(connection), order.clone());
                blocking(move || in_sqlite(&lock(&connection), &order)).await
            }
            Self::Postgres(pool) => in_postgres(&mut *pool.acquire().await?, order).await,
        }
    }

    /// The newest charges first.
    pub(crate) async fn newest(&self, limit: u32) -> Result<Vec<Charge>, BoxError> {
        self.rows("", "payment DESC", limit).await
    }

    /// Every charge whose reference begins so, in the order in which they were made.
    pub(crate) async fn all(&self, prefix: &str) -> Result<Vec<Charge>, BoxError> {
        self.rows(prefix, "payment", u32::MAX).await
    }

    async fn rows(&self, prefix: &str, order: &str, limit: u32) -> Result<Vec<Charge>, BoxError> {
        const COLUMNS: &str = "SELECT payment, account, amount, reference, process FROM";
        match self {
            Self::Sqlite(connection) => {
                let sql = format!(
                    "{COLUMNS} ledger WHERE substr(reference, 1, length(?1)) = ?1 ORDER BY {order} LIMIT ?2"
                );
                let (connection, prefix) = (Arc::clone(connection), prefix.to_owned());
                blocking(move || {
                    let connection = lock(&connection);
                    let mut statement = connection.prepare_cached(&sql)?;
                    let rows = statement.query_map(params![prefix, limit], |row| {
                        Ok(Charge {
                            receipt: Receipt {
                                payment: row.get(0)?,
                                account: row.get(1)?,
                                amount: row.get(2)?,
                                reference: row.get(3)?,
                            },
                            process: row.get(4)?,
                        })
                    })?;
                    Ok(rows.collect::<Result<_, _>>()?)
                })
                .await
            }
            Self::Postgres(pool) => {
                let sql = format!(
                    "{COLUMNS} payments_ledger WHERE starts_with(reference, $1) ORDER BY {order} LIMIT $2"
                );
                let select = query(sqlx::AssertSqlSafe(sql)).bind(prefix).bind(i64::from(limit));
                let rows = pool.fetch_all(select).await?;
                rows.iter()
                    .map(|row| {
                        Ok(Charge {
                            receipt: Receipt {
                                payment: row.try_get(0)?,
                                account: row.try_get(1)?,
                                amount: row.try_get(2)?,
                                reference: row.try_get(3)?,
                            },
                            process: u32::try_from(row.try_get::<i64, _>(4)?)?,
                        })
                    })
                    .collect()
            }
        }
    }
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    // A panic while it was held left no half-done transaction: each call is one statement.
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, BoxError> + Send + 'static,
) -> Result<T, BoxError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
