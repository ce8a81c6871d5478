// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets operators read one record by its identity, read pages of records, count all records, and
//! change a record.

use std::time::Duration;

use redis::Value;
use retryproof_core::store::{
    Force, ForceAction, ForceRequest, Forced, Inspect, RecordState, RecordSummary, ScanCursor,
    ScanPage, ScannedRecord, StoreStats,
};
use retryproof_core::{Error, ErrorKind, FencingToken, Identity, Result};
use retryproof_store_kit::{too_large, while_running};

use crate::connection::Request;
use crate::error::Failure;
use crate::execute::unexpected_answer;
use crate::record::{Header, HeaderPhase, decimal, identity, of_another_form};
use crate::statement::{add_length_and_header, scan, time_and_summaries};
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
        let call = self.executor.scripts().force(&self.key(id), req);
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
        let mut found = None;
        let keys = std::iter::once(key);
        self.each_summary(keys, |_, summary| {
            found = Some(summary);
        })
        .await?;
        found.map_or(Ok(None), |summary| Ok(summary?))
    }

    /// Reads records in one round trip, and calls `found` for each record that exists. A released
    /// record has no summary.
    async fn each_summary<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        mut found: impl FnMut(&'k [u8], Result<Option<RecordSummary>>),
    ) -> Result<(), Failure> {
        let batch = time_and_summaries(keys.clone());
        let Value::Array(answers) = self.executor.run(Request::Batch(&batch)).await? else {
            return Err(unexpected_answer().into());
        };
        let Some((Value::Array(now), records)) = answers.split_first() else {
            return Err(unexpected_answer().into());
        };
        let now = microseconds(now)?;
        for (key, answer) in keys.zip(records.chunks_exact(3)) {
            let [Value::Int(pttl), Value::Int(length), Value::BulkString(head)] = answer else {
                continue;
            };
            if !head.is_empty() {
                found(key, described(*pttl, *length, head, now));
            }
        }
        Ok(())
    }

    /// Runs one step of SCAN. The server decides how many keys a step covers, and may return a key
    /// twice. A step that returns no key is an empty page.
    async fn try_scan(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<ScanPage, Failure> {
        let cursor = after.map_or(Ok(&b"0"[..]), position)?;
        let step = scan(cursor, self.prefix(), limit.clamp(1, MAX_SCAN_COUNT));
        let Value::Array(answer) = self.executor.run(Request::One(&step)).await? else {
            return Err(unexpected_answer().into());
        };
        let [Value::BulkString(next), Value::Array(keys)] = &answer[..] else {
            return Err(unexpected_answer().into());
        };
        let keys = keys.iter().filter_map(|key| match key {
            Value::BulkString(key) => Some(&key[..]),
            _ => None,
        });
        let (mut records, mut unreadable) = (Vec::new(), 0);
        if keys.clone().next().is_some() {
            let prefix = self.prefix();
            self.each_summary(keys, |key, summary| match (summary, identity(prefix, key)) {
                (Ok(Some(summary)), Some(id)) => records.push(ScannedRecord::new(id, summary)),
                (Ok(None), _) => {}
                (Ok(Some(_)), None) | (Err(_), _) => unreadable += 1,
            })
            .await?;
        }
        let next = (next != b"0").then(|| ScanCursor::new(next.as_slice()));
        Ok(ScanPage::new(records, unreadable, next))
    }

    async fn try_stats(&self) -> Result<StoreStats, Failure> {
        let mut stats = StoreStats::default();
        let mut cursor = b"0".to_vec();
        loop {
            let step = scan(&cursor, self.prefix(), SCAN_COUNT);
            let Value::Array(answer) = self.executor.run(Request::One(&step)).await? else {
                return Ok(stats);
            };
            let [Value::BulkString(next), Value::Array(keys)] = &answer[..] else {
                return Ok(stats);
            };
            self.count(keys, &mut stats).await?;
            if next == b"0" {
                return Ok(stats);
            }
            cursor.clone_from(next);
        }
    }

    async fn count(&self, keys: &[Value], stats: &mut StoreStats) -> Result<(), Failure> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut batch = redis::pipe();
        for key in keys {
            if let Value::BulkString(key) = key {
                add_length_and_header(&mut batch, key);
            }
        }
        let Value::Array(answers) = self.executor.run(Request::Batch(&batch)).await? else {
            return Ok(());
        };
        for (key, answer) in keys.iter().zip(answers.chunks_exact(2)) {
            let (Value::BulkString(key), [Value::Int(length), Value::BulkString(head)]) =
                (key, answer)
            else {
                continue;
            };
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

/// Returns the bytes of a cursor. A cursor of the server is a decimal number; any other text is an
/// error.
fn position(after: &ScanCursor) -> Result<&[u8]> {
    let bytes = after.as_bytes();
    if bytes.is_empty() || bytes.len() > 20 || !bytes.iter().all(u8::is_ascii_digit) {
        let error = Error::new(
            ErrorKind::Invalid,
            "the Redis store did not return this cursor; scan again without a cursor",
        );
        return Err(error.with("bytes", bytes.len()));
    }
    Ok(bytes)
}

/// Decodes the answer to TIME: whole seconds, then microseconds.
fn microseconds(answer: &[Value]) -> Result<u64> {
    let [Value::BulkString(seconds), Value::BulkString(micros)] = answer else {
        return Err(unexpected_answer());
    };
    let seconds = decimal(seconds, "time")?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(decimal(micros, "time")?))
}
