// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key `PREFIX:identity`, and [`MarkKeeper`], which writes the key again if the server has lost
//! it while a store with hashed identities is connected (ID-5).

use std::time::Duration;

use parking_lot::Mutex;
use redis::Cmd;
use retryproof_core::IdentitySecret;
use tokio::time::Instant;

use crate::config::RedisConfig;
use crate::statement::set_if_absent;

/// How often a store with hashed identities writes the mark, if the store is in use.
const MARK_INTERVAL: Duration = Duration::from_secs(60);

/// Writes the mark of hashed identities from time to time, unless the server still has the key. The
/// server can lose the key while a store is connected: an `allkeys-` policy evicts it, and a
/// failover can forget it. Without the key, a program without the secret would not be refused.
#[derive(Debug)]
pub(crate) struct MarkKeeper {
    key: Vec<u8>,
    mark: i64,
    due: Mutex<Instant>,
}

impl MarkKeeper {
    /// Creates the keeper of a store that has found its own mark on the server; `None` for plain
    /// identities.
    pub(crate) fn of(config: &RedisConfig) -> Option<Self> {
        let mark = config.identity_secret.as_ref().map(IdentitySecret::mark)?;
        let due = Mutex::new(Instant::now() + MARK_INTERVAL);
        Some(Self { key: key(&config.prefix), mark, due })
    }

    /// Returns the command to send, once in each interval.
    pub(crate) fn due(&self) -> Option<Cmd> {
        let now = Instant::now();
        let mut due = self.due.lock();
        if now < *due {
            return None;
        }
        *due = now + MARK_INTERVAL;
        Some(set_if_absent(&self.key, self.mark))
    }
}

/// Returns the key of the mark. No record has this key, because a brace follows the colon in a
/// record's key.
pub(crate) fn key(prefix: &str) -> Vec<u8> {
    format!("{prefix}:identity").into_bytes()
}
