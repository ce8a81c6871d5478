// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store can do beyond the contract: purge and inspect.

use retryproof_core::store::{Inspect, Purge, RecordState, RecordSummary, StoreStats};
use retryproof_core::{Identity, Result};
use sqlx_postgres::PgRow;

use crate::pool::Lane;
use crate::record::{COMPLETE, IN_PROGRESS, column, rest, token, unreadable};
use crate::statement::Statement;
use crate::store::PostgresStore;

/// Most rows that one statement deletes: it holds their locks, and its log record is written at once.
const PURGE_BATCH: usize = 1_000;

impl Purge for PostgresStore {
    /// Deletes by statements of up to 1,000 rows. Rows that another instance is at are left to it.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let mut gone = 0;
        while gone < limit {
            let batch = PURGE_BATCH.min(limit - gone);
            let reply = self.run(Lane::Calls, &self.sql().purge(batch)).await;
            let purged =
                usize::try_from(reply.map_err(|error| error.during("purge"))?.changed).unwrap_or(batch);
            gone += purged;
            if purged < batch {
                break;
            }
        }
        Ok(gone)
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
        let reply =
            self.run(Lane::Calls, &self.sql().stats()).await.map_err(|error| error.during("stats"))?;
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
