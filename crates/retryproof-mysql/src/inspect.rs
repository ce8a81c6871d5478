// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the store can do beyond the contract: purge and inspect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retryproof_core::store::{Inspect, Param, Purge, RecordState, RecordSummary, StoreStats};
use retryproof_core::{FencingToken, Identity, Result};
use sqlx_core::row::Row as _;
use sqlx_mysql::MySqlRow;

use crate::connection::Want;
use crate::error::{Class, Trouble, classify};
use crate::pool::Lane;
use crate::record::{COMPLETE, IN_PROGRESS, integer, remaining, unreadable};
use crate::statement::{Statement, size};
use crate::store::{MysqlStore, key_of};

/// Most rows that one purging statement deletes: it holds their locks until it has committed.
const PURGE_BATCH: usize = 1_000;

/// How long such a statement may take: a little less than the engine gives it, so that the message
/// says what it waited for (STO-5).
const PURGE_WITHIN: Duration = Duration::from_secs(29);

impl Purge for MysqlStore {
    /// Reads the keys of a batch without a lock and deletes each that is still over, by its primary
    /// key: no range is locked, so no acquire meets a gap. Each batch goes on where the one before
    /// it has stopped, and at the end it begins once more, for what was alive when it passed. A
    /// batch that meets a locked row is left to a later purge. The file keeps its size; InnoDB uses
    /// the pages again.
    async fn purge(&self, limit: usize) -> Result<usize> {
        let (mut gone, mut again) = (0, false);
        while gone < limit {
            let from = self.purged_to.load(Ordering::Relaxed);
            let batch = PURGE_BATCH.min(limit - gone);
            let purged = self
                .purge_batch(batch, from)
                .await
                .map_err(|trouble| trouble.error.during("purge"))?;
            gone += purged.gone;
            self.purged_to.store(purged.next.unwrap_or(0), Ordering::Relaxed);
            // A batch of which another purge took a part is not the last one.
            let ends = if purged.next.is_some() { purged.gone == 0 } else { from == 0 || again };
            if ends {
                break;
            }
            again |= purged.next.is_none();
        }
        Ok(gone)
    }
}

/// What became of a batch.
struct Purged {
    gone: usize,
    /// Where the next one goes on, in microseconds since 1970; `None` at the end.
    next: Option<i64>,
}

impl MysqlStore {
    async fn purge_batch(&self, batch: usize, from: i64) -> Result<Purged, Trouble> {
        let within = PURGE_WITHIN.max(self.config.statement_timeout);
        let bounds = [Param::Int(from), Param::Int(i64::try_from(batch).unwrap_or(i64::MAX))];
        let sql = self.sql.of(Statement::PurgeKeys);
        let found = self.send(Lane::Caller, sql, &bounds, Want::Rows, true, within).await?.rows;
        let mut params = Vec::with_capacity(found.len() * 2);
        let (mut keys, mut bytes) = (0, 0);
        // As many as a small packet holds, with room for the text.
        while let Some(row) = found.get(keys)
            && (keys == 0 || bytes < self.max_value / 2)
        {
            for at in 0..2 {
                params.push(Param::Bytes(row.try_get(at).map_err(classify)?));
            }
            bytes += size(&params[2 * keys..]) + 32;
            keys += 1;
        }
        let Some(last) = keys.checked_sub(1).and_then(|last| found.get(last)) else {
            return Ok(Purged { gone: 0, next: None });
        };
        let more = found.len() == batch || keys < found.len();
        let next = if more { Some(integer(last, 2, "purge_after")?) } else { None };
        let sql = self.sql.purge(keys);
        match self.send(Lane::Caller, &sql, &params, Want::Counts, false, within).await {
            Ok(answer) => {
                Ok(Purged { gone: usize::try_from(answer.matched).unwrap_or(usize::MAX), next })
            }
            Err(trouble) if matches!(trouble.class, Class::Locked | Class::Race) => {
                Ok(Purged { gone: 0, next })
            }
            Err(trouble) => Err(trouble),
        }
    }
}

impl Inspect for MysqlStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let of = |trouble: Trouble| trouble.error.during("get").for_identity(id);
        let answer = self
            .run(Lane::Caller, self.sql.of(Statement::Summary), &key_of(id), Want::Rows)
            .await
            .map_err(of)?;
        answer.rows.first().map(summary).transpose()
    }

    /// Scans the table.
    async fn stats(&self) -> Result<StoreStats> {
        let answer = self
            .run(Lane::Caller, self.sql.of(Statement::Stats), &[], Want::Rows)
            .await
            .map_err(|trouble| trouble.error.during("stats"))?;
        let Some(row) = answer.rows.first() else { return Ok(StoreStats::default()) };
        let count = |at| integer(row, at, "count").map(i64::unsigned_abs);
        Ok(StoreStats::new(count(0)?, count(1)?, count(2)?))
    }
}

fn summary(row: &MySqlRow) -> Result<RecordSummary> {
    let state = match integer(row, 0, "state")? {
        IN_PROGRESS => RecordState::InProgress,
        COMPLETE => RecordState::Complete,
        _ => return Err(unreadable("state")),
    };
    let token = u64::try_from(integer(row, 1, "token")?).map_err(|_| unreadable("token"))?;
    Ok(RecordSummary::new(
        state,
        FencingToken::new(token),
        remaining(integer(row, 2, "expires_at")?),
        usize::try_from(integer(row, 3, "result")?).unwrap_or(0),
        integer(row, 4, "fp")? != 0,
    ))
}
