// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operator sees: one record by its identity, or counts by a scan.

use redis::{Cmd, Value};
use retryproof_core::store::{Inspect, RecordState, RecordSummary, StoreStats};
use retryproof_core::{Identity, Result};

use crate::error::Failure;
use crate::pool::Ask;
use crate::record::{Header, State};
use crate::store::RedisStore;

/// Keys per step of a scan.
const STEP: usize = 500;

impl Inspect for RedisStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let summary = self.summary(&self.key(id)).await;
        summary.map_err(|failure| failure.into_error().during("inspect").for_identity(id))
    }

    /// Scans the whole database, in steps. Records that come or go meanwhile may be counted or not.
    async fn stats(&self) -> Result<StoreStats> {
        self.counted().await.map_err(|failure| failure.into_error().during("inspect"))
    }
}

impl RedisStore {
    async fn summary(&self, key: &[u8]) -> Result<Option<RecordSummary>, Failure> {
        let mut flight = redis::pipe();
        flight
            .cmd("PTTL")
            .arg(key)
            .cmd("STRLEN")
            .arg(key)
            .cmd("GETRANGE")
            .arg(key)
            .arg(0)
            .arg(crate::record::HEADER - 1);
        let Value::Array(answers) = self.calls().call(Ask::Flight(&flight)).await? else {
            return Ok(None);
        };
        let [Value::Int(pttl), Value::Int(length), Value::BulkString(head)] = &answers[..] else {
            return Ok(None);
        };
        if head.is_empty() {
            return Ok(None);
        }
        let header = Header::read(head)?;
        let length = usize::try_from(*length).unwrap_or(0);
        let (state, remaining) = match header.state {
            State::Residue => return Ok(None),
            State::InProgress => (RecordState::InProgress, header.remaining(*pttl)),
            State::Complete => (RecordState::Complete, header.remaining(*pttl)),
        };
        let value = length.saturating_sub(header.body_at());
        Ok(Some(RecordSummary::new(
            state,
            header.token,
            remaining,
            value,
            header.has_fingerprint(),
        )))
    }

    async fn counted(&self) -> Result<StoreStats, Failure> {
        let mut stats = StoreStats::default();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = Cmd::new();
            // The prefix is made of letters, digits and `_`: nothing in it is a pattern.
            let pattern = format!("{}:{{*", self.prefix());
            scan.arg("SCAN").arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
            let Value::Array(answer) = self.calls().call(Ask::One(&scan)).await? else {
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
        let mut flight = redis::pipe();
        for key in keys {
            if let Value::BulkString(key) = key {
                flight
                    .cmd("STRLEN")
                    .arg(key)
                    .cmd("GETRANGE")
                    .arg(key)
                    .arg(0)
                    .arg(crate::record::HEADER - 1);
            }
        }
        let Value::Array(answers) = self.calls().call(Ask::Flight(&flight)).await? else {
            return Ok(());
        };
        for (key, answer) in keys.iter().zip(answers.chunks_exact(2)) {
            let (Value::BulkString(key), [Value::Int(length), Value::BulkString(head)]) =
                (key, answer)
            else {
                continue;
            };
            let state = match Header::read(head) {
                Ok(header) => header.state,
                // Somebody else's, or gone.
                Err(_) => continue,
            };
            if state != State::Residue {
                stats.records += 1;
                stats.in_progress += u64::from(state == State::InProgress);
                stats.bytes += key.len() as u64 + u64::try_from(*length).unwrap_or(0);
            }
        }
        Ok(())
    }
}
