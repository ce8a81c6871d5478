// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store can do beyond the contract: purge and inspect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retryproof_core::store::{Inspect, Purge, RecordState, RecordSummary, StoreStats};
use retryproof_core::{Identity, Result};
use sqlx_postgres::PgRow;

use crate::pool::Lane;
use crate::record::{COMPLETE, IN_PROGRESS, column, rest, token, unreadable};
use crate::statement::Statement;
use crate::store::PostgresStore;

/// Most rows that one statement deletes: it holds their locks, and its log record is written at
/// once.
const PURGE_BATCH: usize = 1_000;

/// How long such a statement may take: a little less than the engine gives it, so that the message
/// says what it waited for (STO-5).
const PURGE_WITHIN: Duration = Duration::from_secs(29);
/// Before the first bucket.
pub(crate) const BEGINNING: i64 = 0;

impl Purge for PostgresStore {
    /// Deletes by statements of up to 1,000 rows, each of which goes on where the one before it has
    /// stopped. Rows that another instance is at are left to it. At the end it begins once more,
    /// for what was locked or alive when it passed.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let mut gone = 0;
        while gone < limit {
            let from = self.purged_to.load(Ordering::Relaxed);
            let batch = PURGE_BATCH.min(limit - gone);
            let (purged, last) =
                self.purge_batch(batch, from).await.map_err(|error| error.during("purge"))?;
            gone += purged;
            let is_last = purged < batch;
            self.purged_to.store(if is_last { BEGINNING } else { last }, Ordering::Relaxed);
            if is_last && from == BEGINNING {
                break;
            }
        }
        Ok(gone)
    }
}

impl PostgresStore {
    /// How many went, and the bucket of the last.
    async fn purge_batch(&self, batch: usize, from: i64) -> Result<(usize, i64)> {
        let within = PURGE_WITHIN.max(self.config.timeout);
        let reply = self.run_within(within, Lane::Calls, &self.sql().purge(batch, from)).await?;
        let Some(row) = &reply.row else { return Ok((0, BEGINNING)) };
        let purged: i64 = column(row, 0, "count")?;
        Ok((usize::try_from(purged).unwrap_or(batch), column(row, 1, "purge_bucket")?))
    }
}

impl Inspect for PostgresStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let reply = self.run(Lane::Calls, &self.sql().by_key(Statement::Summary, id)).await;
        reply
            .and_then(|reply| reply.row.as_ref().map_or(Ok(None), summary))
            .map_err(|error| error.during("get").for_identity(id))
    }

    /// Scans the table.
    async fn stats(&self) -> Result<StoreStats> {
        let reply = self
            .run(Lane::Calls, &self.sql().stats())
            .await
            .map_err(|error| error.during("stats"))?;
        let count = |at| match &reply.row {
            Some(row) => column::<i64>(row, at, "count").map(i64::unsigned_abs),
            None => Ok(0),
        };
        Ok(StoreStats::new(count(0)?, count(1)?, count(2)?))
    }
}

/// `None` for the residue of a release.
fn summary(row: &PgRow) -> Result<Option<RecordSummary>> {
    let owner: Vec<u8> = column(row, 1, "owner")?;
    let state = match column::<i16>(row, 0, "state")? {
        IN_PROGRESS if owner == [0; 16] => return Ok(None),
        IN_PROGRESS => RecordState::InProgress,
        COMPLETE => RecordState::Complete,
        _ => return Err(unreadable("state")),
    };
    let bytes: i64 = column(row, 4, "result")?;
    Ok(Some(RecordSummary::new(
        state,
        token(row)?,
        rest(row)?,
        usize::try_from(bytes).unwrap_or(0),
        column(row, 5, "fp")?,
    )))
}
