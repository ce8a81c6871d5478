// SPDX-License-Identifier: MIT OR Apache-2.0
//! The audit table (OPS-10). Each call runs on a separate thread and connection, so the store's
//! other connections never touch the table.

use std::path::Path;
use std::sync::Arc;

use retryproof_core::store::{Audit, AuditEntry, AuditPage, ScanCursor};
use retryproof_core::{Error, Result};
use retryproof_store_kit::{AuditRows, audit_columns, audit_entry, audit_refused, unreadable};
use rusqlite::{Connection, Row};

use crate::config::DEFAULT_TABLE;
use crate::connection::{self, retry_while_locked};
use crate::error::classify;
use crate::execute::write_lock::FileWriteLock;
use crate::store::SqliteStore;

/// Binds the time, scope, key, token, verb, outcome, operator and reason, in this order.
const APPEND: &str = "INSERT INTO retryproof_records_audit \
     (written_at,scope,key,token,verb,outcome,operator,reason) \
     VALUES (?1,?2,?3,nullif(?4,0),?5,?6,?7,?8)";
/// Reads one page by the primary key, newest first. Binds the id that all rows of the page must be
/// below, and the limit.
const ENTRIES: &str = "SELECT id,written_at,scope,key,token,verb,outcome,operator,reason FROM \
     retryproof_records_audit WHERE id<?1 ORDER BY id DESC LIMIT ?2";

impl Audit for SqliteStore {
    async fn append(&self, entry: &AuditEntry) -> Result<()> {
        let explain = |error: Error| error.during("append_audit");
        let table = self.config.table().map_err(explain)?;
        let (sql, entry) = (APPEND.replace(DEFAULT_TABLE, table), entry.clone());
        let (timeout, clock) = (self.config.busy_timeout, Arc::clone(&self.config.wall_clock));
        let appended = self.aside(connection::open_writer, move |conn| {
            // Queue behind this process's other writers. After the timeout, try to get SQLite's
            // lock anyway, so that a failure returns SQLite's own error.
            let lock = FileWriteLock::of(Path::new(conn.path().unwrap_or_default()));
            let _guard = lock.queue().wait(timeout);
            retry_while_locked(timeout, || {
                let now = i64::try_from(clock()).unwrap_or(i64::MAX);
                append(conn, &sql, &entry, now).map(Ok)
            })
        });
        appended.await.map_err(|error| explain(audit_refused(error, false, table)))
    }

    async fn entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        let explain = |error: Error| error.during("audit_entries");
        let table = self.config.table().map_err(explain)?;
        let before = AuditRows::start(after).map_err(explain)?;
        let sql = ENTRIES.replace(DEFAULT_TABLE, table);
        let page =
            self.aside(connection::open_reader, move |conn| entries(conn, &sql, before, limit));
        page.await.map_err(|error| explain(audit_refused(error, false, table)))
    }
}

fn append(
    conn: &Connection,
    sql: &str,
    entry: &AuditEntry,
    now: i64,
) -> Result<(), rusqlite::Error> {
    let (scope, key, token) = audit_columns(entry);
    let AuditEntry { verb, outcome, operator, reason, .. } = entry;
    conn.execute(sql, (now, scope, key, token, verb, outcome, operator, reason)).map(drop)
}

fn entries(conn: &Connection, sql: &str, before: i64, limit: usize) -> Result<AuditPage> {
    let mut page = AuditRows::new(limit);
    let mut statement = conn.prepare(sql).map_err(classify)?;
    let mut rows = statement.query((before, page.limit())).map_err(classify)?;
    while let Some(row) = rows.next().map_err(classify)? {
        page.add(row.get(0).map_err(classify)?, entry_of(row))?;
    }
    Ok(page.finish())
}

fn entry_of(row: &Row<'_>) -> Result<AuditEntry> {
    let bytes = |at, name| row.get::<_, Option<Vec<u8>>>(at).map_err(|_| unreadable(name));
    let text = |at, name| row.get::<_, String>(at).map_err(|_| unreadable(name));
    let (scope, key) = (bytes(2, "scope")?, bytes(3, "key")?);
    let token = row.get(4).map_err(|_| unreadable("token"))?;
    audit_entry(
        row.get(1).map_err(|_| unreadable("written_at"))?,
        (scope.as_deref(), key.as_deref(), token),
        [text(5, "verb")?, text(6, "outcome")?, text(7, "operator")?, text(8, "reason")?],
    )
}
