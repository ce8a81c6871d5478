// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receipts: a table in the SQLite file that contains the records. A receipt and its order's
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
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.execute(
        "CREATE TABLE IF NOT EXISTS receipts (receipt INTEGER PRIMARY KEY AUTOINCREMENT, paid \
         TEXT NOT NULL, amount INTEGER NOT NULL)",
        [],
    )?;
    Ok(connection)
}

/// Books one receipt in the connection's current transaction. Returns its number.
pub(crate) fn book(connection: &Connection, paid: &OrderPaid) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("INSERT INTO receipts (paid, amount) VALUES (?, ?)")?
        .execute(params![paid.order, paid.amount])?;
    Ok(connection.last_insert_rowid())
}

/// Counts the receipts, and the orders that have a receipt.
pub(crate) fn count(connection: &Connection) -> rusqlite::Result<(usize, usize)> {
    connection.query_row("SELECT COUNT(*), COUNT(DISTINCT paid) FROM receipts", [], |row| {
        let number = |at| row.get::<_, i64>(at).map(|count| usize::try_from(count).unwrap_or(0));
        Ok((number(0)?, number(1)?))
    })
}
