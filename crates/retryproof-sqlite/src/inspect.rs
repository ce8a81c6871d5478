// SPDX-License-Identifier: MIT OR Apache-2.0
//! Implements the store's capabilities beyond the contract: purge, inspect, and changes by
//! operators.

use std::sync::Arc;

use retryproof_core::store::{
    Force, ForceAction, ForceRequest, Forced, Inspect, Purge, RecordSummary, ScanCursor, ScanPage,
    StoreStats,
};
use retryproof_core::{Error, Identity, Result};
use retryproof_store_kit::{ScanRows, too_large, unreadable};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::classify;
use crate::execute::transition::{Transition, TransitionResult, unexpected_answer};
use crate::record::summary;
use crate::statement::Statement;
use crate::store::SqliteStore;

/// The most rows that one purging transaction deletes. Acquires wait until that transaction has
/// ended.
const MAX_PURGE_BATCH: usize = 200;

impl Purge for SqliteStore {
    /// Deletes in small transactions, so that other writes can run in between. The file keeps its
    /// size; SQLite reuses the pages.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let mut deleted = 0;
        while deleted < limit {
            let batch = MAX_PURGE_BATCH.min(limit - deleted);
            let purged = match self.writer.run(Transition::Purge(batch)).await {
                Ok(TransitionResult::Purged(purged)) => purged,
                Ok(_) => return Err(unexpected_answer().during("purge")),
                Err(error) => return Err(error.during("purge")),
            };
            deleted += purged;
            if purged < batch {
                break;
            }
        }
        Ok(deleted)
    }
}

impl Inspect for SqliteStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let now = self.now();
        self.readers
            .with(|conn| get(conn, self.statements.get(Statement::Summary), id, now))
            .map_err(|error| error.during("get").for_identity(id))
    }

    /// Scans the table on a separate thread and connection.
    async fn stats(&self) -> Result<StoreStats> {
        let (reply, answer) = oneshot::channel();
        let (config, statements) = (self.config.clone(), Arc::clone(&self.statements));
        std::thread::Builder::new()
            .name("retryproof-stats".to_owned())
            .spawn(move || {
                let stats = connection::open_reader(&config)
                    .and_then(|conn| stats(&conn, statements.get(Statement::Stats)));
                // Sending fails only if the caller has dropped its future.
                let _ = reply.send(stats);
            })
            .map_err(|error| {
                Error::unavailable("the scan thread could not be started").because(error)
            })?;
        answer
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the scan thread ended without a result")))
            .map_err(|error| error.during("stats"))
    }

    /// Reads at most 1,000 rows for a page, on the calling thread.
    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        let (now, sql) = (self.now(), self.statements.get(Statement::Scan));
        ScanRows::start(after)
            .and_then(|start| self.readers.with(|conn| scan(conn, sql, start, limit, now)))
            .map_err(|error| error.during("scan"))
    }
}

impl Force for SqliteStore {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let explain = |error: Error| error.during("force").for_identity(id);
        if let ForceAction::Resolve { done, .. } = &req.action
            && done.value.len() > self.max_value
        {
            return Err(explain(too_large(done.value.len(), self.max_value)));
        }
        match self.write(Transition::Force(id.clone(), req.clone())).await.map_err(explain)? {
            TransitionResult::Forced(forced) => Ok(forced),
            _ => Err(explain(unexpected_answer())),
        }
    }
}

fn scan(
    conn: &Connection,
    sql: &str,
    (scope, key): (&[u8], &[u8]),
    limit: usize,
    now: i64,
) -> Result<ScanPage> {
    let mut page = ScanRows::new(limit);
    let mut statement = conn.prepare_cached(sql).map_err(classify)?;
    let mut rows = statement.query((scope, key, page.limit())).map_err(classify)?;
    while let Some(row) = rows.next().map_err(classify)? {
        // SQLite sorts every text and number before every blob, so the statement returns only
        // blobs.
        let blob = |at: usize, field| {
            let value = row.get_ref(at).ok().and_then(|value| value.as_blob().ok());
            value.ok_or_else(|| unreadable(field))
        };
        page.add(blob(8, "scope")?, blob(9, "key")?, summary(row, now))?;
    }
    Ok(page.finish())
}

fn get(conn: &Connection, sql: &str, id: &Identity, now: i64) -> Result<Option<RecordSummary>> {
    let names = (id.scope().as_str().as_bytes(), id.key().expose().as_bytes());
    let found = conn
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(names, |row| Ok(summary(row, now))));
    match found {
        Ok(summary) => summary,
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(classify(error)),
    }
}

fn stats(conn: &Connection, sql: &str) -> Result<StoreStats> {
    let count = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    conn.query_row(sql, [], |row| {
        Ok(StoreStats::new(count(row, 0)?, count(row, 1)?, count(row, 2)?))
    })
    .map_err(classify)
}
