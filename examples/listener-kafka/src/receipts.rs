// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receipts: a table in the SQLite file of the records, so that a receipt and the record of its
//! order are one commit (CMP-7).

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

/// The message that is published when an order was paid.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct OrderPaid {
    /// The order's id.
    pub(crate) order: String,
    /// In cents.
    pub(crate) amount: i64,
}

/// Creates the file and the table. The table has no unique key, so it would show an order that was
/// booked twice; the listener prevents that.
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

/// How many receipts there are, and for how many orders.
pub(crate) fn count(connection: &Connection) -> rusqlite::Result<(usize, usize)> {
    connection.query_row("SELECT COUNT(*), COUNT(DISTINCT paid) FROM receipts", [], |row| {
        let number = |at| row.get::<_, i64>(at).map(|count| usize::try_from(count).unwrap_or(0));
        Ok((number(0)?, number(1)?))
    })
}
