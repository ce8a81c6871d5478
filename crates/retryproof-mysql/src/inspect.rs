// SPDX-License-Identifier: MIT OR Apache-2.0
//! Purges expired records, and lets operators read one record, page through all records, count the
//! records and change a record.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retryproof_core::store::{
    Force, ForceAction, ForceRequest, Forced, Inspect, Param, Purge, RecordSummary, ScanCursor,
    ScanPage, StoreStats,
};
use retryproof_core::{Identity, Result, Tombstone};
use retryproof_store_kit::{CallPriority, Record, ScanRows, changed_meanwhile, unreadable};
use sqlx_core::row::Row as _;
use tokio::time::Instant;

use crate::connection::ResultKind;
use crate::error::{Failure, Recovery, classify, too_large};
use crate::record::{integer, read_summary};
use crate::statement::{Statement, key_of, length, micros, size};
use crate::store::MysqlStore;

/// The maximum number of rows that one purge statement deletes. The statement locks these rows
/// until it commits.
const MAX_PURGE_BATCH: usize = 1_000;

/// How long a batch may take. This is slightly less than the engine's limit, so a slow batch fails
/// with the store's error and not with the engine's (STO-5).
const PURGE_TIMEOUT: Duration = Duration::from_secs(29);

/// The maximum number of attempts to apply an operator's change. If the statement matches no row,
/// the store reads the record to find the reason. If the record has changed in between and shows no
/// reason, the store tries again.
const FORCE_ATTEMPTS: u32 = 3;

impl Purge for MysqlStore {
    /// Reads the keys of a batch without a lock. Then deletes, by primary key, each record that is
    /// still expired. No range is locked, so no acquire waits for a gap lock. Each batch continues
    /// where the previous batch stopped. If the last batch did not start from the beginning, the
    /// purge starts from the beginning once more, to delete records that were still live when it
    /// passed them. If a row of a batch is locked, the batch deletes nothing and leaves its records
    /// to a later purge. The table's file keeps its size, and InnoDB reuses the pages.
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
            // Continue after a batch that deleted fewer rows than it read, because another purge
            // might have deleted the other rows.
            let ends =
                if purged.next.is_some() { purged.deleted == 0 } else { from == 0 || restarted };
            if ends {
                break;
            }
            restarted |= purged.next.is_none();
        }
        Ok(deleted)
    }

    /// Claims the purge: writes the time at which the claim ends into the row `purge` of the
    /// `_meta` table. The first claim inserts that row.
    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        let length = Param::Int(micros(at_most));
        for (statement, params) in
            [(Statement::ClaimPurge, &[length, length][..]), (Statement::FirstClaim, &[length][..])]
        {
            let run =
                self.executor.run(CallPriority::Normal, statement, params, ResultKind::Counts);
            let claimed = run.await.map_err(|failure| failure.error.during("claim_purge"))?;
            if claimed.matched == 1 {
                return Ok(true);
            }
        }
        Ok(false)
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
        // Add keys to the DELETE until they fill half of the packet limit. Count 32 extra bytes per
        // key for its part of the SQL text.
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
        result.rows.first().map_or(Ok(None), read_summary)
    }

    /// Scans the whole table to count the records, but does not read their values.
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

    /// Reads at most 1,000 rows for a page.
    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.try_scan(after, limit).await.map_err(|failure| failure.error.during("scan"))
    }
}

impl Force for MysqlStore {
    /// Checks and changes the row in one statement. If that statement matches no row, reads the
    /// record to find the reason.
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let forced = self.try_force(id, req).await;
        forced.map_err(|failure| failure.error.during("force").for_identity(id))
    }
}

impl MysqlStore {
    async fn try_scan(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<ScanPage, Failure> {
        let mut page = ScanRows::new(limit);
        let (scope, key) = ScanRows::start(after)?;
        let params =
            [Param::Bytes(scope), Param::Bytes(key), Param::Bytes(scope), Param::Int(page.limit())];
        let found = self
            .executor
            .run(CallPriority::Normal, Statement::Scan, &params, ResultKind::Rows)
            .await?;
        for row in &found.rows {
            let scope: &[u8] = row.try_get(3).map_err(|_| unreadable("scope"))?;
            let key: &[u8] = row.try_get(4).map_err(|_| unreadable("key"))?;
            page.add(scope, key, read_summary(row))?;
        }
        Ok(page.finish())
    }

    async fn try_force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced, Failure> {
        if let ForceAction::Resolve { done, .. } = &req.action
            && done.value.len() > self.max_value
        {
            return Err(too_large(done.value.len(), self.max_value).into());
        }
        for _ in 0..FORCE_ATTEMPTS {
            if self.run_force(id, req).await? {
                self.on_forced(id, req);
                return Ok(Forced::Applied);
            }
            let found =
                self.executor.read_record(CallPriority::Normal, Statement::Find, id).await?;
            if let Some(refusal) = Record::refusal(found, req) {
                return Ok(refusal);
            }
        }
        Err(changed_meanwhile().into())
    }

    /// Sends the statement for an operator's change, and returns whether the statement matched the
    /// record.
    async fn run_force(&self, id: &Identity, req: &ForceRequest) -> Result<bool, Failure> {
        let [scope, key] = key_of(id);
        let token = Param::Int(i64::try_from(req.token.get()).unwrap_or(i64::MAX));
        let even_if_live = Param::Bool(req.even_if_live);
        let tombstone = Tombstone::new();
        let (statement, params) = match &req.action {
            ForceAction::Release => {
                (Statement::ForceRelease, vec![scope, key, token, even_if_live])
            }
            ForceAction::Forget => (Statement::ForceForget, vec![scope, key, token]),
            ForceAction::Erase => {
                let value = tombstone.envelope();
                let params = vec![Param::Bytes(value), length(value), scope, key, token];
                (Statement::ForceErase, params)
            }
            ForceAction::Resolve { by, done } => {
                let ttl = Param::Int(micros(done.ttl));
                let fingerprint = done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into();
                let params = vec![
                    Param::Bytes(by.as_bytes()),
                    ttl,
                    ttl,
                    fingerprint,
                    Param::Bytes(&done.value),
                    length(&done.value),
                    scope,
                    key,
                    token,
                    even_if_live,
                ];
                (Statement::ForceResolve, params)
            }
        };
        self.executor.run_fenced(statement, &params).await
    }
}
