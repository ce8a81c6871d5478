// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger: what was charged, by which process. It lives in the same SQLite file as the records.
//!
//! [`charge`] writes into a transaction of somebody else's: the guard's, which commits the charge and the record of the answer together (CMP-7). A
//! process that dies before that commit leaves neither. [`Ledger::charge_apart`] is a commit of its own: a process that dies between it and the
//! record leaves a charge that its retry repeats. That is the limit of a lease, and `storm --apart` shows it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

/// What a client asks to be charged.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Order {
    /// The customer's account.
    pub(crate) account: String,
    /// In cents.
    pub(crate) amount: i64,
    /// What it is for; shown on the receipt.
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
    /// What it was for.
    pub(crate) reference: String,
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

/// A shared handle; its calls block for one commit.
#[derive(Debug, Clone)]
pub(crate) struct Ledger(Arc<Mutex<Connection>>);

/// Charges: one row, in whatever transaction the connection is in.
pub(crate) fn charge(connection: &Connection, order: &Order) -> rusqlite::Result<Receipt> {
    connection
        .prepare_cached("INSERT INTO ledger (account, amount, reference, process) VALUES (?, ?, ?, ?)")?
        .execute(params![order.account, order.amount, order.reference, std::process::id()])?;
    Ok(Receipt {
        payment: connection.last_insert_rowid(),
        account: order.account.clone(),
        amount: order.amount,
        reference: order.reference.clone(),
    })
}

impl Ledger {
    pub(crate) fn open(file: &Path) -> rusqlite::Result<Self> {
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
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic while it was held left no half-done transaction: each call is one statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges in a commit of its own, apart from the record.
    pub(crate) fn charge_apart(&self, order: &Order) -> rusqlite::Result<Receipt> {
        charge(&self.lock(), order)
    }

    /// The newest charges first.
    pub(crate) fn newest(&self, limit: u32) -> rusqlite::Result<Vec<Charge>> {
        self.rows(
            "SELECT payment, account, amount, reference, process FROM ledger ORDER BY payment DESC LIMIT ?",
            limit,
        )
    }

    /// Every charge, in the order in which they were made.
    pub(crate) fn all(&self) -> rusqlite::Result<Vec<Charge>> {
        self.rows(
            "SELECT payment, account, amount, reference, process FROM ledger ORDER BY payment LIMIT ?",
            u32::MAX,
        )
    }

    fn rows(&self, sql: &str, limit: u32) -> rusqlite::Result<Vec<Charge>> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(sql)?;
        let rows = statement.query_map([limit], |row| {
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
        rows.collect()
    }
}
