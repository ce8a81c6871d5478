// SPDX-License-Identifier: MIT OR Apache-2.0
//! Purges expired records, and lets operators read one record by its identity, or the counts of all
//! records.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retryproof_core::store::{Inspect, Param, Purge, RecordSummary, StoreStats};
use retryproof_core::{Identity, Result};
use retryproof_store_kit::CallPriority;
use sqlx_core::row::Row as _;
use tokio::time::Instant;

use crate::connection::ResultKind;
use crate::error::{Failure, Recovery, classify};
use crate::record::{integer, read_summary};
use crate::statement::{Statement, key_of, size};
use crate::store::MysqlStore;

/// The most rows that one purge statement deletes. The statement locks these rows until it commits.
const MAX_PURGE_BATCH: usize = 1_000;

/// How long a batch may take: slightly less than the engine's limit, so that a slow batch fails
/// with the store's error, not with the engine's (STO-5).
const PURGE_TIMEOUT: Duration = Duration::from_secs(29);

impl Purge for MysqlStore {
    /// Reads the keys of a batch without a lock, then deletes, by primary key, each record that is
    /// still expired. No range is locked, so no acquire waits for a gap lock. Each batch continues
    /// where the previous one stopped. After the last batch, the purge starts once more from the
    /// beginning, to delete records that were still live when it passed them. If a batch meets a
    /// locked row, the whole batch is left to a later purge. The table's file keeps its size;
    /// InnoDB reuses the pages.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let (mut deleted, mut restarted) = (0, false);
        while deleted < limit {
            let from = self.purge_cursor.load(Ordering::Relaxed);
            let batch = MAX_PURGE_BATCH.min(limit - deleted);
            let purged = self
                .purge_batch(batch, from)
                .await
                .map_err(|failure| failure.error.during("purge"))?;
            deleted += purged.deleted;
            self.purge_cursor.store(purged.next.unwrap_or(0), Ordering::Relaxed);
            // If another purge has deleted part of the batch, this purge still continues.
            let ends =
                if purged.next.is_some() { purged.deleted == 0 } else { from == 0 || restarted };
            if ends {
                break;
            }
            restarted |= purged.next.is_none();
        }
        Ok(deleted)
    }
}

/// The result of one batch.
struct PurgedBatch {
    deleted: usize,
    /// Where the next batch starts, in microseconds since 1970; `None` after the last batch.
    next: Option<i64>,
}

impl MysqlStore {
    async fn purge_batch(&self, batch: usize, from: i64) -> Result<PurgedBatch, Failure> {
        let deadline = Instant::now() + PURGE_TIMEOUT.max(self.config.call_timeout);
        let bounds = [Param::Int(from), Param::Int(i64::try_from(batch).unwrap_or(i64::MAX))];
        let sql = self.executor.texts.of(Statement::PurgeKeys);
        let found = self
            .executor
            .run_text(deadline, CallPriority::Normal, sql, &bounds, ResultKind::Rows, true)
            .await?
            .rows;
        let mut params = Vec::with_capacity(found.len() * 2);
        let (mut keys, mut bytes) = (0, 0);
        // The DELETE takes as many keys as fit into half of a packet, together with the SQL text
        // for each key.
        while let Some(row) = found.get(keys)
            && (keys == 0 || bytes < self.packet_limit / 2)
        {
            for at in 0..2 {
                params.push(Param::Bytes(row.try_get(at).map_err(classify)?));
            }
            bytes += size(&params[2 * keys..]) + 32;
            keys += 1;
        }
        let Some(last) = keys.checked_sub(1).and_then(|last| found.get(last)) else {
            return Ok(PurgedBatch { deleted: 0, next: None });
        };
        let more = found.len() == batch || keys < found.len();
        let next = if more { Some(integer(last, 2, "purge_after")?) } else { None };
        let sql = self.executor.texts.purge(keys);
        let result = self
            .executor
            .run_text(deadline, CallPriority::Normal, &sql, &params, ResultKind::Counts, false)
            .await;
        match result {
            Ok(result) => Ok(PurgedBatch {
                deleted: usize::try_from(result.matched).unwrap_or(usize::MAX),
                next,
            }),
            Err(failure) if matches!(failure.recovery, Recovery::RowLocked | Recovery::Retry) => {
                Ok(PurgedBatch { deleted: 0, next })
            }
            Err(failure) => Err(failure),
        }
    }
}

impl Inspect for MysqlStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let result = self
            .executor
            .run(CallPriority::Normal, Statement::Summary, &key_of(id), ResultKind::Rows)
            .await
            .map_err(|failure| failure.error.during("get").for_identity(id))?;
        result.rows.first().map(read_summary).transpose()
    }

    /// Counts the records by scanning the whole table.
    async fn stats(&self) -> Result<StoreStats> {
        let result = self
            .executor
            .run(CallPriority::Normal, Statement::Stats, &[], ResultKind::Rows)
            .await
            .map_err(|failure| failure.error.during("stats"))?;
        let Some(row) = result.rows.first() else { return Ok(StoreStats::default()) };
        let count = |at| integer(row, at, "count").map(i64::unsigned_abs);
        Ok(StoreStats::new(count(0)?, count(1)?, count(2)?))
    }
}
