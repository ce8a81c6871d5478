// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets operators read one record by its identity, read pages of records, count all records, and
//! change a record.

use std::time::Duration;

use redis::Value;
use retryproof_core::store::{
    Force, ForceAction, ForceRequest, Forced, Inspect, RecordState, RecordSummary, ScanCursor,
    ScanPage, ScannedRecord, StoreStats,
};
use retryproof_core::{FencingToken, Identity, Result};
use retryproof_store_kit::{too_large, while_running};

use crate::connection::Request;
use crate::error::{Failure, unexpected_answer};
use crate::record::{Header, HeaderPhase, decimal, identity, of_another_form};
use crate::scan::ScanStep;
use crate::statement::{add_length_and_header, time_and_summaries};
use crate::store::{RedisStore, busy};

/// How many keys the store requests in one step of the scan for [`Inspect::stats`].
const SCAN_COUNT: usize = 500;
/// The largest number of keys that the store requests for one page of a scan. The server may return
/// more.
const MAX_SCAN_COUNT: usize = 1_000;

impl Inspect for RedisStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let summary = self.summary(&self.key(id)).await;
        summary
            .map_err(|failure| while_running(failure.into_error()).during("get").for_identity(id))
    }

    /// Scans the whole database, in steps. The counts can miss a record that is created or deleted
    /// during the scan, and can include a record twice.
    async fn stats(&self) -> Result<StoreStats> {
        self.try_stats()
            .await
            .map_err(|failure| while_running(failure.into_error()).during("stats"))
    }

    /// Reads a page with one step of SCAN. A page can have more records than `limit`, and a record
    /// can appear twice.
    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.try_scan(after, limit)
            .await
            .map_err(|failure| while_running(failure.into_error()).during("scan"))
    }
}

impl Force for RedisStore {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        if let ForceAction::Resolve { done, .. } = &req.action
            && done.value.len() > self.max_value
        {
            let error = too_large(done.value.len(), self.max_value);
            return Err(error.during("force").for_identity(id));
        }
        let forced = self.try_force(id, req).await;
        forced
            .map_err(|failure| while_running(failure.into_error()).during("force").for_identity(id))
    }
}

impl RedisStore {
    async fn try_force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced, Failure> {
        let key = self.key(id);
        let call = self.executor.scripts().force(&key, req);
        let applied = |answer: &Value| matches!(answer, Value::BulkString(text) if text == b"A");
        let answer = self.executor.run_script_and_wait(&call, applied).await?;
        let Value::BulkString(answer) = answer else { return Err(unexpected_answer().into()) };
        let forced = match answer.first() {
            Some(b'A') => Forced::Applied,
            Some(b'L') => Forced::Live(busy(&answer, None)?),
            Some(b'U') => Forced::Unfinished,
            Some(b'F') => Forced::Finished,
            Some(b'T') => Forced::AnotherToken(FencingToken::new(decimal(&answer[1..], "token")?)),
            Some(b'N') => Forced::Absent,
            _ => return Err(of_another_form().into()),
        };
        if matches!(forced, Forced::Applied) {
            match req.action {
                ForceAction::Resolve { .. } => self.completed.note(id, Duration::MAX),
                ForceAction::Release | ForceAction::Forget => self.completed.forget(id),
                ForceAction::Erase => {}
            }
        }
        Ok(forced)
    }

    async fn summary(&self, key: &[u8]) -> Result<Option<RecordSummary>, Failure> {
        let batch = time_and_summaries(std::iter::once(key));
        let Value::Array(answers) = self.executor.run(key, Request::Batch(&batch)).await? else {
            return Err(unexpected_answer().into());
        };
        let mut found = None;
        each_summary(&[key], &answers, |_, summary| found = Some(summary))?;
        found.map_or(Ok(None), |summary| Ok(summary?))
    }

    /// Runs one step of SCAN. The server decides how many keys a step covers, and may return a key
    /// twice. A step that returns no key is an empty page.
    async fn try_scan(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<ScanPage, Failure> {
        let step = self.executor.scan(after, limit.clamp(1, MAX_SCAN_COUNT)).await?;
        let (mut records, mut unreadable) = (Vec::new(), 0);
        if !step.keys.is_empty() {
            let keys: Vec<_> = step.keys.iter().map(Vec::as_slice).collect();
            let batch = |keys: &[&[u8]]| time_and_summaries(keys.iter().copied());
            let answers = self.executor.read_keys(&step.node, &keys, 1, batch).await?;
            let prefix = self.prefix();
            each_summary(&keys, &answers, |key, summary| match (summary, identity(prefix, key)) {
                (Ok(Some(summary)), Some(id)) => records.push(ScannedRecord::new(id, summary)),
                (Ok(None), _) => {}
                (Ok(Some(_)), None) | (Err(_), _) => unreadable += 1,
            })?;
        }
        Ok(ScanPage::new(records, unreadable, step.next))
    }

    async fn try_stats(&self) -> Result<StoreStats, Failure> {
        let mut stats = StoreStats::default();
        let mut after = None;
        loop {
            let step = self.executor.scan(after.as_ref(), SCAN_COUNT).await?;
            self.count(&step, &mut stats).await?;
            after = step.next;
            if after.is_none() {
                return Ok(stats);
            }
        }
    }

    async fn count(&self, step: &ScanStep, stats: &mut StoreStats) -> Result<(), Failure> {
        if step.keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = step.keys.iter().map(Vec::as_slice).collect();
        let batch = |keys: &[&[u8]]| {
            let mut batch = redis::pipe();
            keys.iter().for_each(|key| add_length_and_header(&mut batch, key));
            batch
        };
        let answers = self.executor.read_keys(&step.node, &keys, 0, batch).await?;
        for (key, answer) in keys.iter().zip(answers.chunks_exact(2)) {
            let [Value::Int(length), Value::BulkString(head)] = answer else { continue };
            // Keys that another program wrote, or that no longer exist, are not counted.
            let Ok(header) = Header::read(head) else { continue };
            if header.phase != HeaderPhase::Released {
                stats.records += 1;
                stats.in_progress += u64::from(header.phase == HeaderPhase::InProgress);
                stats.bytes += key.len() as u64 + u64::try_from(*length).unwrap_or(0);
            }
        }
        Ok(())
    }
}

/// Decodes the server's clock and the descriptions of `keys`, and calls `found` for each record
/// that exists. A released record has no summary.
fn each_summary<'k>(
    keys: &[&'k [u8]],
    answers: &[Value],
    mut found: impl FnMut(&'k [u8], Result<Option<RecordSummary>>),
) -> Result<()> {
    let Some((Value::Array(now), records)) = answers.split_first() else {
        return Err(unexpected_answer());
    };
    let now = microseconds(now)?;
    for (key, answer) in keys.iter().zip(records.chunks_exact(3)) {
        let [Value::Int(pttl), Value::Int(length), Value::BulkString(head)] = answer else {
            continue;
        };
        if !head.is_empty() {
            found(key, described(*pttl, *length, head, now));
        }
    }
    Ok(())
}

/// Describes a record from its time to live, its length and its first bytes; `None` for a released
/// record.
fn described(pttl: i64, length: i64, head: &[u8], now: u64) -> Result<Option<RecordSummary>> {
    let header = Header::read(head)?;
    let state = match header.phase {
        HeaderPhase::Released => return Ok(None),
        HeaderPhase::InProgress => RecordState::InProgress,
        HeaderPhase::Complete => RecordState::Complete,
    };
    let length = usize::try_from(length).unwrap_or(0);
    // The record outlives its lease by the grace.
    let ended_ago = u64::try_from(pttl).ok().and_then(|left| header.grace.checked_sub(left));
    let ended_ago = ended_ago.map(Duration::from_millis);
    let summary = RecordSummary::new(
        state,
        header.token,
        header.remaining(pttl),
        length.saturating_sub(header.value_at()),
        header.has_fingerprint(),
    )
    .with_end(ended_ago);
    let granted_ago = header.granted_ago(now);
    Ok(Some(summary.with_grant(Some(granted_ago), Some(header.takeovers), header.holder(head))))
}

/// Decodes the answer to TIME: whole seconds, then microseconds.
fn microseconds(answer: &[Value]) -> Result<u64> {
    let [Value::BulkString(seconds), Value::BulkString(micros)] = answer else {
        return Err(unexpected_answer());
    };
    let seconds = decimal(seconds, "time")?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(decimal(micros, "time")?))
}
