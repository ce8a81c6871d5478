// SPDX-License-Identifier: MIT OR Apache-2.0
//! Implements the store's capabilities beyond the contract: purging, inspection, and changes by
//! operators.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retryproof_core::store::{
    Force, ForceAction, ForceRequest, Forced, Inspect, Purge, RecordState, RecordSummary,
    ScanCursor, ScanPage, StoreStats,
};
use retryproof_core::{Error, Identity, OwnerId, Result, Tombstone};
use retryproof_store_kit::{
    CallPriority, Record, ScanRows, changed_meanwhile, time_since_end, too_large, unreadable,
};
use sqlx_postgres::PgRow;
use tokio::time::Instant;

use crate::error::Failure;
use crate::record::{
    COMPLETE, IN_PROGRESS, KEPT, NO_OWNER, column, holder, micros_left, remaining, token,
};
use crate::statement::Statement;
use crate::store::{FIRST_BUCKET, PostgresStore};
use crate::waiters::Waiters;

/// The maximum number of rows that one statement deletes. The statement locks these rows until it
/// ends, and writes their entries to the write-ahead log in one burst.
const MAX_PURGE_BATCH: usize = 1_000;

/// The time limit for one purge statement. It is slightly below the engine's limit, so a slow
/// statement fails with the store's error, which names what the statement waited for (STO-5).
const PURGE_TIMEOUT: Duration = Duration::from_secs(29);

impl Purge for PostgresStore {
    /// Deletes up to 1,000 rows per statement. Each statement continues where the previous one
    /// stopped, and skips locked rows. Earlier statements may have skipped records that were locked
    /// or not yet expired. After the last bucket, the purge therefore starts again at the first
    /// bucket, unless the last statement began there.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let mut deleted = 0;
        while deleted < limit {
            let first_bucket = self.purge_cursor.load(Ordering::Relaxed);
            let batch = MAX_PURGE_BATCH.min(limit - deleted);
            let purged = self.purge_batch(batch, first_bucket).await;
            let (purged, last_bucket) = purged.map_err(|error| error.during("purge"))?;
            deleted += purged;
            let is_last = purged < batch;
            let next = if is_last { FIRST_BUCKET } else { last_bucket };
            self.purge_cursor.store(next, Ordering::Relaxed);
            if is_last && first_bucket == FIRST_BUCKET {
                break;
            }
        }
        Ok(deleted)
    }

    /// Claims the purge: writes the time at which the claim ends into the row `purge` of the
    /// `_meta` table.
    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        let claimed = self.run(CallPriority::Normal, &self.statements.claim_purge(at_most)).await;
        Ok(claimed.map_err(|error| error.during("claim_purge"))?.affected == 1)
    }
}

impl PostgresStore {
    /// Deletes one batch. Returns how many rows were deleted, and the bucket of the last deleted
    /// row.
    async fn purge_batch(&self, batch: usize, first_bucket: i64) -> Result<(usize, i64)> {
        let deadline = Instant::now() + PURGE_TIMEOUT.max(self.config.call_timeout);
        let statement = self.statements.purge(batch, first_bucket);
        let result = self.executor.run_until(deadline, CallPriority::Normal, &statement).await;
        let result = result.map_err(Failure::into_error)?;
        let Some(row) = &result.row else { return Ok((0, FIRST_BUCKET)) };
        let purged: i64 = column(row, 0, "count")?;
        Ok((usize::try_from(purged).unwrap_or(batch), column(row, 1, "purge_bucket")?))
    }
}

impl Inspect for PostgresStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let statement = self.statements.by_key(Statement::Summary, id);
        let result = self.run(CallPriority::Normal, &statement).await;
        result
            .and_then(|result| result.row.as_ref().map_or(Ok(None), summary))
            .map_err(|error| error.during("get").for_identity(id))
    }

    /// Counts the records by scanning the whole table.
    async fn stats(&self) -> Result<StoreStats> {
        let result = self
            .run(CallPriority::Normal, &self.statements.stats())
            .await
            .map_err(|error| error.during("stats"))?;
        let count = |at| match &result.row {
            Some(row) => column::<i64>(row, at, "count").map(i64::unsigned_abs),
            None => Ok(0),
        };
        Ok(StoreStats::new(count(0)?, count(1)?, count(2)?))
    }

    /// Reads at most 1,000 rows for a page, ordered by key and then by scope.
    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.try_scan(after, limit).await.map_err(|error| error.during("scan"))
    }
}

/// The maximum number of attempts to apply an operator's change. If the statement changes no row,
/// the store reads the record to find the reason. If the record has changed in between, the store
/// sends the statement again.
const FORCE_ATTEMPTS: u32 = 3;

impl PostgresStore {
    async fn try_scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        let mut page = ScanRows::new(limit);
        let statement = self.statements.scan(ScanRows::start(after)?, page.limit());
        for row in &self.run(CallPriority::Normal, &statement).await?.rows {
            let (scope, key): (Vec<u8>, Vec<u8>) =
                (column(row, 9, "scope")?, column(row, 10, "key")?);
            page.add(&scope, &key, summary(row))?;
        }
        Ok(page.finish())
    }

    async fn try_force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        if let ForceAction::Resolve { done, .. } = &req.action
            && done.value.len() > self.config.max_value
        {
            return Err(too_large(done.value.len(), self.config.max_value));
        }
        let (tombstone, message) = (Tombstone::new(), Waiters::message_of_change(id));
        let statement = self.statements.force(id, req, tombstone.envelope(), &message);
        for _ in 0..FORCE_ATTEMPTS {
            if self.run(CallPriority::Normal, &statement).await?.affected > 0 {
                return Ok(Forced::Applied);
            }
            let found = self.read_record(CallPriority::Normal, Statement::Read, id).await?;
            if let Some(refusal) = Record::refusal(found, req) {
                return Ok(refusal);
            }
        }
        Err(changed_meanwhile())
    }
}

impl Force for PostgresStore {
    /// Checks and changes the row and wakes the waiters of all processes (ACQ-4), all in one
    /// statement. If that statement changes no row, a second statement reads the reason.
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let forced = self.try_force(id, req).await;
        forced.map_err(|error: Error| error.during("force").for_identity(id))
    }
}

/// Returns the summary of a row; `None` for a released record, even if it is kept for its log.
fn summary(row: &PgRow) -> Result<Option<RecordSummary>> {
    let owner: Vec<u8> = column(row, 1, "owner")?;
    let state = match column::<i16>(row, 0, "state")? {
        KEPT => return Ok(None),
        IN_PROGRESS if owner == NO_OWNER => return Ok(None),
        IN_PROGRESS => RecordState::InProgress,
        COMPLETE => RecordState::Complete,
        _ => return Err(unreadable("state")),
    };
    let token = token(row)?;
    let bytes: i64 = column(row, 4, "result")?;
    let bytes = usize::try_from(bytes).unwrap_or(0);
    let holder = owner.try_into().ok().and_then(|owner| holder(row, OwnerId::from_bytes(owner)));
    let takeovers: i16 = column(row, 7, "takeovers")?;
    // `granted_ago` is zero if the clock has stepped back since the grant.
    let granted_ago = u64::try_from(column::<i64>(row, 8, "token")?).unwrap_or(0);
    let granted_ago = Duration::from_micros(granted_ago);
    let summary = RecordSummary::new(state, token, remaining(row)?, bytes, column(row, 5, "fp")?);
    let summary = summary.with_end(time_since_end(micros_left(row)?));
    Ok(Some(summary.with_grant(Some(granted_ago), u16::try_from(takeovers).ok(), holder)))
}
