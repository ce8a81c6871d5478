// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger: the charges, and the process that made each. It is in the database that contains the
//! records: a SQLite file, or PostgreSQL.
//!
//! [`in_sqlite`] and [`in_postgres`] write in the guard's transaction, which commits the charge
//! together with the answer's record (CMP-7). If the process dies before that commit, neither is
//! stored. [`Ledger::charge_apart`] commits the charge separately. If the process dies after that
//! commit but before the record is stored, a retry charges again. A lease alone cannot prevent
//! this; `storm --apart` shows the effect.

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
    /// The price in cents.
    pub(crate) amount: i64,
    /// The purpose, shown on the receipt.
    pub(crate) reference: String,
}

/// The answer to a charge.
#[derive(Debug, Clone, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The number of the charge in the ledger.
    pub(crate) payment: i64,
    /// The account charged.
    pub(crate) account: String,
    /// The price in cents.
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

/// One row of the ledger, as `GET /payments` and the storm's account show it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Charge {
    /// The receipt of the charge, whether or not the client got it.
    #[serde(flatten)]
    pub(crate) receipt: Receipt,
    /// The process that made the charge.
    pub(crate) process: u32,
}

/// A handle to the ledger. Clones share the connections.
#[derive(Debug, Clone)]
pub(crate) enum Ledger {
    /// Each call blocks until its commit ends.
    Sqlite(Arc<Mutex<Connection>>),
    Postgres(PgPool),
}

/// Charges by inserting one row, in the connection's current transaction.
pub(crate) fn in_sqlite(connection: &Connection, order: &Order) -> Result<Receipt, BoxError> {
    connection
        .prepare_cached(
            "INSERT INTO ledger (account, amount, reference, process) VALUES (?, ?, ?, ?)",
        )?
        .execute(params![order.account, order.amount, order.reference, std::process::id()])?;
    Ok(Receipt::of(order, connection.last_insert_rowid()))
}

/// Does the same as [`in_sqlite`] on PostgreSQL.
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
    /// Opens the ledger in the database of `store`, and creates the ledger's table.
    pub(crate) async fn open(store: &str) -> Result<Self, BoxError> {
        match store.strip_prefix("sqlite:") {
            Some(file) => Ok(Self::in_file(Path::new(file))?),
            None => Self::on_server(store).await,
        }
    }

    fn in_file(file: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(file)?;
        // The records and the ledger share the file's single write lock. Each transaction holds the
        // lock only briefly.
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
        // The options after the `?` apply only to the store.
        let url = url.split_once('?').map_or(url, |(url, _)| url);
        let pool = PgPoolOptions::new().max_connections(16).connect(url).await;
        // Drop the driver's error, because it may show the URL and its password.
        let pool = pool.map_err(|_| "the ledger's database cannot be reached")?;
        // Try twice, because if two processes create the table at the same time, one of them may
        // get an error.
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

    /// Makes a charge and commits it separately from the record.
    pub(crate) async fn charge_apart(&self, order: &Order) -> Result<Receipt, BoxError> {
        match self {
            Self::Sqlite(connection) => {
                let (connection, order) = (Arc::clone(connection), order.clone());
                blocking(move || in_sqlite(&lock(&connection), &order)).await
            }
            Self::Postgres(pool) => in_postgres(&mut *pool.acquire().await?, order).await,
        }
    }

    /// Returns up to `limit` charges, the newest first.
    pub(crate) async fn newest(&self, limit: u32) -> Result<Vec<Charge>, BoxError> {
        self.rows("", "payment DESC", limit).await
    }

    /// Returns all charges whose reference begins with `prefix`, in the order in which they were
    /// made.
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
    // Ignore a panic of an earlier holder of the lock. Each call is one statement, so no
    // transaction was left unfinished.
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
