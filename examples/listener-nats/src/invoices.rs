// SPDX-License-Identifier: MIT OR Apache-2.0
//! The invoices: a table in the SQLite file that contains the records. An invoice and its order's
//! record therefore commit together (CMP-7).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

/// The message that is published when an order has been paid.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct OrderPaid {
    /// The order's id.
    pub(crate) order: String,
    /// The amount in cents.
    pub(crate) amount: i64,
}

/// Creates the file and the table. The table has no unique key, so a double booking would be
/// visible. The listener prevents double bookings.
pub(crate) fn open(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    // Several consumers write to the file, and SQLite allows only one writer at a time.
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.execute(
        "CREATE TABLE IF NOT EXISTS invoices (
            invoice INTEGER PRIMARY KEY AUTOINCREMENT,
            paid    TEXT NOT NULL,
            amount  INTEGER NOT NULL,
            process INTEGER NOT NULL
        )",
        [],
    )?;
    Ok(connection)
}

/// Books one invoice in the connection's current transaction. Returns its number.
pub(crate) fn book(connection: &Connection, paid: &OrderPaid) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("INSERT INTO invoices (paid, amount, process) VALUES (?, ?, ?)")?
        .execute(params![paid.order, paid.amount, std::process::id()])?;
    Ok(connection.last_insert_rowid())
}

/// Returns how often each order was booked.
pub(crate) fn booked(connection: &Connection) -> rusqlite::Result<Vec<(String, usize)>> {
    let mut statement = connection.prepare("SELECT paid, COUNT(*) FROM invoices GROUP BY paid")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    rows.map(|row| row.map(|(paid, times)| (paid, usize::try_from(times).unwrap_or(usize::MAX))))
        .collect()
}
