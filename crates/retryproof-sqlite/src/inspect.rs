// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store can do beyond the contract: purge and inspect.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{Inspect, Purge, RecordState, RecordSummary, StoreStats};
use retryproof_core::{Error, ErrorKind, FencingToken, Identity, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::classify;
use crate::execute::transition::{Answer, Step, mixed_up};
use crate::record::{COMPLETE, IN_PROGRESS};
use crate::schema::Statement;
use crate::store::SqliteStore;

/// Most rows that one purging transaction deletes: acquires queue behind it.
const PURGE_BATCH: usize = 200;

impl Purge for SqliteStore {
    /// Deletes in small transactions between which others write. The file keeps its size; SQLite
    /// uses the pages again.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let mut gone = 0;
        while gone < limit {
            let batch = PURGE_BATCH.min(limit - gone);
            let purged = match self.writer.call(Step::Purge(batch)).await {
                Ok(Answer::Purged(purged)) => purged,
                Ok(_) => return Err(mixed_up().during("purge")),
                Err(error) => return Err(error.during("purge")),
            };
            gone += purged;
            if purged < batch {
                break;
            }
        }
        Ok(gone)
    }
}

impl Inspect for SqliteStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let now = self.now();
        self.readers
            .with(|conn| summary(conn, self.sql.of(Statement::Summary), id, now))
            .map_err(|error| error.during("get").for_identity(id))
    }

    /// Scans the table, on a thread and a connection of its own.
    async fn stats(&self) -> Result<StoreStats> {
        let (reply, answer) = oneshot::channel();
        let (config, sql) = (self.config.clone(), Arc::clone(&self.sql));
        std::thread::Builder::new()
            .name("retryproof-stats".to_owned())
            .spawn(move || {
                let stats = connection::open_reader(&config)
                    .and_then(|conn| stats(&conn, sql.of(Statement::Stats)));
                // A caller that is gone has no use for it.
                let _ = reply.send(stats);
            })
            .map_err(|error| {
                Error::unavailable("no thread for the scan could be started").because(error)
            })?;
        answer
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the scan ended without an answer")))
            .map_err(|error| error.during("stats"))
    }
}

fn summary(conn: &Connection, sql: &str, id: &Identity, now: i64) -> Result<Option<RecordSummary>> {
    let row = conn.prepare_cached(sql).and_then(|mut statement| {
        statement.query_row((id.scope().as_str().as_bytes(), id.key().expose().as_bytes()), |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, i64>(3)?,
                row.get(4)?,
            ))
        })
    });
    let (state, token, expires_at, bytes, has_fingerprint) = match row {
        Ok(row) => row,
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
        Err(error) => return Err(classify(error)),
    };
    let state = match state {
        IN_PROGRESS => RecordState::InProgress,
        COMPLETE => RecordState::Complete,
        _ => {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "the record has a state that this version does not write",
            ));
        }
    };
    let left = u64::try_from(expires_at.saturating_sub(now)).ok().filter(|&us| us > 0);
    Ok(Some(RecordSummary::new(
        state,
        FencingToken::new(u64::try_from(token).unwrap_or(0)),
        left.map(Duration::from_micros),
        usize::try_from(bytes).unwrap_or(0),
        has_fingerprint,
    )))
}

fn stats(conn: &Connection, sql: &str) -> Result<StoreStats> {
    let count = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    conn.query_row(sql, [], |row| {
        Ok(StoreStats::new(count(row, 0)?, count(row, 1)?, count(row, 2)?))
    })
    .map_err(classify)
}
