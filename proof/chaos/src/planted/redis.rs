// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of Redis. `record.rs` of the store says how a record looks.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Script, cmd};
use retryproof::store::AcquireRequest;
use retryproof::{Identity, OwnerId, Result};

use super::door::{Seen, broken};

const USURP: &str = "
    local state = redis.call('GETRANGE', KEYS[1], 0, 3)
    if state == 'rp2P' then redis.call('SETRANGE', KEYS[1], 4, ARGV[1]) end";
const HURRY: &str = "
    local head = redis.call('GETRANGE', KEYS[1], 0, 54)
    local state = string.sub(head, 1, 4)
    if state ~= 'rp2P' or string.sub(head, 5, 20) == ARGV[1] then return end
    local grace = tonumber(string.sub(head, 41, 53))
    if redis.call('PTTL', KEYS[1]) - grace < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], grace) end";

pub(super) struct Redis {
    link: MultiplexedConnection,
    usurp: Script,
    hurry: Script,
}

impl Redis {
    pub(super) async fn open(url: &str) -> Result<Self> {
        let link = Client::open(url).map_err(broken)?.get_multiplexed_async_connection().await;
        Ok(Self {
            link: link.map_err(broken)?,
            usurp: Script::new(USURP),
            hurry: Script::new(HURRY),
        })
    }

    pub(super) async fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        let mut call = self.usurp.prepare_invoke();
        call.key(key(id)).arg(&owner.as_bytes()[..]);
        call.invoke_async(&mut self.link.clone()).await.map_err(broken)
    }

    pub(super) async fn hurry(&self, id: &Identity, owner: OwnerId, left: Duration) -> Result<()> {
        let mut call = self.hurry.prepare_invoke();
        call.key(key(id)).arg(&owner.as_bytes()[..]).arg(millis(left));
        call.invoke_async(&mut self.link.clone()).await.map_err(broken)
    }

    pub(super) async fn expired(&self, id: &Identity) -> Result<Option<Seen>> {
        let link = &mut self.link.clone();
        let old: Option<Vec<u8>> =
            cmd("GET").arg(key(id)).query_async(link).await.map_err(broken)?;
        let Some(old) = old.filter(|old| in_progress(old)) else { return Ok(None) };
        let lives: i64 = cmd("PTTL").arg(key(id)).query_async(link).await.map_err(broken)?;
        let over = lives <= number(&old[40..53]);
        Ok(over.then(|| Seen { token: number(&old[20..36]), rest: old[38..].to_vec() }))
    }

    pub(super) async fn overwrite(
        &self,
        id: &Identity,
        req: &AcquireRequest,
        seen: &Seen,
    ) -> Result<i64> {
        let link = &mut self.link.clone();
        let (secs, micros): (i64, i64) = cmd("TIME").query_async(link).await.map_err(broken)?;
        let token = (secs * 1_000_000 + micros).max(seen.token + 1);
        let mut record = b"rp2P".to_vec();
        record.extend_from_slice(req.owner.as_bytes());
        record.extend_from_slice(format!("{token:016}").as_bytes());
        // This is the number of takeovers.
        record.extend_from_slice(&[0, 1]);
        record.extend_from_slice(&seen.rest);
        let lives = millis(req.lease) + number(&seen.rest[2..15]);
        let mut set = cmd("SET");
        set.arg(key(id)).arg(record).arg("PX").arg(lives);
        set.query_async::<()>(link).await.map_err(broken)?;
        Ok(token)
    }
}

fn in_progress(record: &[u8]) -> bool {
    record.len() >= 55 && record.starts_with(b"rp2P")
}

pub(crate) fn key(id: &Identity) -> String {
    let (scope, key) = (id.scope().as_str(), id.key().expose());
    format!("retryproof:{{{}:{scope}:{key}}}", scope.len())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Digits that the store wrote.
fn number(digits: &[u8]) -> i64 {
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
