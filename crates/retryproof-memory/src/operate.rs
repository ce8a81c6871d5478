// SPDX-License-Identifier: MIT OR Apache-2.0
//! Implements [`Inspect`] and [`Force`], through which operators read and change records.

use std::time::Duration;

use retryproof_core::store::{
    Completion, Force, ForceAction, ForceRequest, Forced, Inspect, RecordState, RecordSummary,
    ScanCursor, ScanPage, ScannedRecord, StoreStats,
};
use retryproof_core::{Error, ErrorKind, FencingToken, Identity, Key, OwnerId, Result, Tombstone};

use crate::busy::{Busy, Extra};
use crate::index::NONE;
use crate::record::Done;
use crate::shard::{Leftover, Shard};
use crate::store::{MemoryStore, PaddedShard};
use crate::table::Body;
use crate::time::{Now, nanos};

/// How many slots a scan checks each time it holds a shard's lock.
const SCAN_BATCH: u32 = 256;
/// The maximum number of slots that one page of a scan checks.
const MAX_PAGE: usize = 4_096;

impl Inspect for MemoryStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        let locked = shard.lock();
        Ok(locked.find(id, hash).and_then(|at| locked.describe(at, now)).map(|found| found.summary))
    }

    async fn stats(&self) -> Result<StoreStats> {
        let mut stats = StoreStats::default();
        for PaddedShard(shard) in &self.shards {
            let (records, in_progress, bytes) = shard.lock().counts();
            stats.records += u64::from(records);
            stats.in_progress += u64::from(in_progress);
            stats.bytes += bytes;
        }
        Ok(stats)
    }

    /// A page checks at most `limit` slots of the store's table, and never more than 4,096. Free
    /// slots count too, so a page can be empty, for example after many records were reclaimed. A
    /// record keeps its slot for as long as it exists, so a scan never returns it twice.
    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        let (mut shard, mut slot) = after.map_or(Ok((0, 0)), position)?;
        let now = self.time.now();
        let mut left = u32::try_from(limit.clamp(1, MAX_PAGE)).unwrap_or(SCAN_BATCH);
        let mut records = Vec::new();
        while let Some(PaddedShard(place)) = self.shards.get(shard as usize) {
            if left == 0 {
                return Ok(ScanPage::new(records, 0, Some(cursor(shard, slot))));
            }
            let locked = place.lock();
            let slots = locked.table.slots.len();
            let end = slot.saturating_add(left.min(SCAN_BATCH)).min(slots);
            records.extend((slot..end).filter_map(|at| locked.scanned(at, now)));
            left -= end.saturating_sub(slot);
            (shard, slot) = if end >= slots { (shard + 1, 0) } else { (shard, end) };
        }
        Ok(ScanPage::new(records, 0, None))
    }
}

/// Returns a cursor that names the next slot to check.
fn cursor(shard: u32, slot: u32) -> ScanCursor {
    ScanCursor::new([shard.to_be_bytes(), slot.to_be_bytes()].concat())
}

fn position(cursor: &ScanCursor) -> Result<(u32, u32)> {
    match *cursor.as_bytes() {
        [a, b, c, d, e, f, g, h] => {
            Ok((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
        }
        _ => Err(Error::new(
            ErrorKind::Invalid,
            "the memory store did not return this cursor; scan again without a cursor",
        )
        .during("scan")
        .with("bytes", cursor.as_bytes().len())),
    }
}

impl Force for MemoryStore {
    /// After [`ForceAction::Resolve`], the record has the fingerprint of the given completion, or
    /// none. The record does not keep the fingerprint of its grant.
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        if let ForceAction::Resolve { done, .. } = &req.action
            && done.value.len() as u64 > self.max_bytes
        {
            return Err(self.too_large("force", id, done.value.len()));
        }
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        let mut locked = shard.lock();
        let Some(at) = locked.find(id, hash) else { return Ok(Forced::Absent) };
        let Some(found) = locked.describe(at, now) else { return Ok(Forced::Absent) };
        if let Some(refusal) = req.refusal(found.owner, &found.summary) {
            return Ok(refusal);
        }
        let left = match &req.action {
            ForceAction::Release | ForceAction::Forget => locked.delete(at, &self.budget),
            // Build the new record under the lock, because the new record depends on the old
            // record. Operators rarely change records, so the lock can be held longer here.
            ForceAction::Resolve { by, done } => {
                let extra = (found.takeovers > 0)
                    .then_some(Extra { takeovers: found.takeovers, ..Extra::default() });
                let expires = now.nanos + nanos(done.ttl);
                let built = Done::build_with(*by, expires, id.key(), done, extra.as_ref());
                locked.replace(at, built, &self.budget)
            }
            ForceAction::Erase => match locked.erased(at, id.key()) {
                Some(built) => locked.replace(at, built, &self.budget),
                None => Leftover::default(),
            },
        };
        drop(locked);
        left.settle();
        Ok(Forced::Applied)
    }
}

/// A record as an operator sees it.
struct Described {
    owner: OwnerId,
    takeovers: u16,
    summary: RecordSummary,
}

impl Shard {
    /// Describes the record in this slot, expired or not; `None` for a free slot.
    fn describe(&self, at: u32, now: Now) -> Option<Described> {
        Some(match &self.table.slots[at].body {
            Body::Done(done) => of_done(done, now),
            Body::Busy(NONE) => return None,
            Body::Busy(place) => of_busy(&self.busy[*place], now),
        })
    }

    fn scanned(&self, at: u32, now: Now) -> Option<ScannedRecord> {
        let summary = self.describe(at, now)?.summary;
        let slot = &self.table.slots[at];
        let key = match &slot.body {
            Body::Done(done) => Key::new(done.key()?).ok()?,
            Body::Busy(place) => self.busy[*place].key.clone()?,
        };
        let scope = self.scopes.get(slot.scope)?.clone();
        Some(ScannedRecord::new(Identity::new(scope, key), summary))
    }

    /// Returns a copy of the COMPLETE record in this slot with a tombstone in place of its value;
    /// `None` if the record is not COMPLETE.
    fn erased(&self, at: u32, key: &Key) -> Option<Done> {
        let Body::Done(done) = &self.table.slots[at].body else { return None };
        let kept = done.share(done.view()?).into_result();
        let tombstone = Tombstone::new().into_envelope();
        let value = Completion::new(tombstone, Duration::ZERO, kept.fingerprint().copied());
        let extra = Extra { note: done.note(), takeovers: done.takeovers(), fingerprint: None };
        let extra = (extra != Extra::default()).then_some(extra);
        Some(Done::build_with(done.owner(), done.expires(), key, &value, extra.as_ref()))
    }
}

fn of_done(done: &Done, now: Now) -> Described {
    let left = done.expires().checked_sub(now.nanos).filter(|left| *left > 0);
    let summary = RecordSummary::new(
        RecordState::Complete,
        FencingToken::new(done.token()),
        left.map(Duration::from_nanos),
        done.value_len(),
        done.has_fingerprint(),
    )
    .with_grant(None, Some(done.takeovers()), done.note())
    .with_end(now.nanos.checked_sub(done.expires()).map(Duration::from_nanos));
    Described { owner: done.owner(), takeovers: done.takeovers(), summary }
}

fn of_busy(busy: &Busy, now: Now) -> Described {
    let left = busy.expires.saturating_duration_since(now.at);
    let ago = now.at.saturating_duration_since(busy.granted);
    let summary = RecordSummary::new(
        RecordState::InProgress,
        FencingToken::new(busy.token),
        (!left.is_zero()).then_some(left),
        0,
        busy.has_fingerprint,
    )
    .with_grant(Some(ago), Some(busy.takeovers()), busy.note())
    .with_end(left.is_zero().then(|| now.at.saturating_duration_since(busy.expires)));
    Described { owner: busy.owner, takeovers: busy.takeovers(), summary }
}
