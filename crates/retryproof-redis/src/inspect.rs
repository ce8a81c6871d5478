// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operator sees: one record by its identity, or counts from a scan.

use redis::Value;
use retryproof_core::store::{Inspect, RecordState, RecordSummary, StoreStats};
use retryproof_core::{Identity, Result};
use retryproof_store_kit::while_running;

use crate::connection::Request;
use crate::error::Failure;
use crate::execute::unexpected_answer;
use crate::record::{Header, HeaderPhase, decimal};
use crate::statement::{add_length_and_header, pttl_length_note_and_time, scan};
use crate::store::RedisStore;

/// How many keys one step of a scan covers.
const SCAN_COUNT: usize = 500;

impl Inspect for RedisStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let summary = self.summary(&self.key(id)).await;
        summary
            .map_err(|failure| while_running(failure.into_error()).during("get").for_identity(id))
    }

    /// Scans the whole database, in steps. Records that are created or deleted during the scan may
    /// or may not be counted.
    async fn stats(&self) -> Result<StoreStats> {
        self.try_stats()
            .await
            .map_err(|failure| while_running(failure.into_error()).during("stats"))
    }
}

impl RedisStore {
    async fn summary(&self, key: &[u8]) -> Result<Option<RecordSummary>, Failure> {
        let batch = pttl_length_note_and_time(key);
        let Value::Array(answers) = self.executor.run(Request::Batch(&batch)).await? else {
            return Ok(None);
        };
        let [Value::Int(pttl), Value::Int(length), Value::BulkString(head), Value::Array(now)] =
            &answers[..]
        else {
            return Ok(None);
        };
        if head.is_empty() {
            return Ok(None);
        }
        let header = Header::read(head)?;
        let state = match header.phase {
            HeaderPhase::Released => return Ok(None),
            HeaderPhase::InProgress => RecordState::InProgress,
            HeaderPhase::Complete => RecordState::Complete,
        };
        let length = usize::try_from(*length).unwrap_or(0);
        let summary = RecordSummary::new(
            state,
            header.token,
            header.remaining(*pttl),
            length.saturating_sub(header.value_at()),
            header.has_fingerprint(),
        );
        let granted_ago = header.granted_ago(microseconds(now)?);
        Ok(Some(summary.with_grant(Some(granted_ago), Some(header.takeovers), header.holder(head))))
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

/// Decodes the answer to TIME: whole seconds, then microseconds.
fn microseconds(answer: &[Value]) -> Result<u64> {
    let [Value::BulkString(seconds), Value::BulkString(micros)] = answer else {
        return Err(unexpected_answer());
    };
    let seconds = decimal(seconds, "time")?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(decimal(micros, "time")?))
}
