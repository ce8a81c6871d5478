// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger: one row for each booking. The table has no unique key, so the account of the storm
//! would show a double booking.

use std::path::Path;
use std::time::Duration;

use retryproof::sqlite::SqliteTx;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use crate::BoxError;

/// The message that is published when an order has been paid.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OrderPaid {
    /// The order's number, which is also the message's id and key.
    pub(crate) id: String,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// Creates the table.
pub(crate) fn migrate(file: &Path) -> Result<(), BoxError> {
    let connection = open(file)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS bookings (
            booking  INTEGER PRIMARY KEY,
            id       TEXT NOT NULL,
            customer TEXT NOT NULL,
            cents    INTEGER NOT NULL,
            process  INTEGER NOT NULL
        );
        CREATE INDEX IF NOT EXISTS bookings_by_id ON bookings (id);",
    )?;
    Ok(())
}

/// Books an order in a transaction that the message's record joins (CMP-7). The booking and the
/// record commit together, or not at all.
pub(crate) fn book(tx: &mut SqliteTx, order: &OrderPaid) -> Result<(), BoxError> {
    tx.prepare_cached("INSERT INTO bookings (id, customer, cents, process) VALUES (?, ?, ?, ?)")?
        .execute(params![order.id, order.customer, order.cents, std::process::id()])?;
    Ok(())
}

/// Opens the ledger, which listeners can have open at the same time.
pub(crate) fn open(file: &Path) -> Result<Connection, BoxError> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}
