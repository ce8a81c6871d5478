// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a record to change: subscribe, look, sleep, with a poll as the net (ACQ-4).

use std::time::Duration;

use redis::Value;
use retryproof_core::{FencingToken, Identity};
use tokio::time::Instant;

use crate::error::Failure;
use crate::pool::Ask;
use crate::record::{self, Header, State};
use crate::store::{RedisStore, pair};

/// Between two looks of a waiter: first, and at most. With a bell they are a net, without one they
/// are all there is.
const POLL_BESIDE_BELL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// How long a waiter waits for its subscription before it polls instead.
const SUBSCRIBED: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Whether the holder with token `seen` is still at work. The value stays where it is.
    async fn still_held(&self, key: &[u8], seen: FencingToken) -> Result<bool, Failure> {
        let mut flight = redis::pipe();
        flight.cmd("PTTL").arg(key).cmd("GETRANGE").arg(key).arg(0).arg(record::HEADER - 1);
        let (pttl, head) = pair(self.calls().call(Ask::Flight(&flight)).await?)?;
        let Value::BulkString(head) = head else { return Ok(false) };
        if head.is_empty() {
            return Ok(false);
        }
        let header = Header::read(&head)?;
        Ok(header.state == State::InProgress
            && header.token == seen
            && header.remaining(pttl).is_some())
    }

    pub(crate) async fn wait(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<(), Failure> {
        let key = self.key(id);
        let end = Instant::now() + at_most;
        let place = self.wake.subscribe(&key, at_most.min(SUBSCRIBED)).await;
        let (mut poll, longest) = if place.bell.is_some() { POLL_BESIDE_BELL } else { POLL };
        let silent = tokio::sync::Notify::new();
        let mut woken = std::pin::pin!(place.bell.as_deref().unwrap_or(&silent).notified());
        // Before the look: what is published after it rings.
        woken.as_mut().enable();
        while self.still_held(&key, seen).await? {
            let now = Instant::now();
            let next = (now + self.wake.jitter(poll)).min(end);
            if tokio::time::timeout_at(next, woken.as_mut()).await.is_ok() || next == end {
                break;
            }
            poll = (poll * 2).min(longest);
        }
        Ok(())
    }
}
