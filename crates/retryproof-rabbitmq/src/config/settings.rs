// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Settings`]: what the builder has checked, and the context of a message under it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::listener::{Backoff, Poison, body_fingerprint};
use retryproof_core::{IdempotencyContext, Result, Scope};

use crate::delivery::Message;

/// Finds the key of a message; `None` if the message has none.
pub(crate) type KeyOf = dyn Fn(&Message) -> Option<String> + Send + Sync;

/// Decodes the body of a message.
pub(crate) type Decode<T> = dyn Fn(&Message) -> Result<T, Poison> + Send + Sync;

/// The settings that a consumer keeps.
pub(crate) struct Settings {
    pub(crate) queue: String,
    pub(crate) dead_letters: String,
    /// The same as `concurrency` unless set.
    pub(crate) prefetch: Option<u16>,
    pub(crate) concurrency: usize,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) drain_timeout: Duration,
    pub(super) key: Arc<KeyOf>,
    pub(super) fingerprints: bool,
    pub(super) wait_timeout: Duration,
    pub(super) ttl: Option<Duration>,
    pub(super) lease: Option<Duration>,
}

impl Settings {
    pub(crate) fn prefetch(&self) -> u16 {
        // At least 1: the broker takes zero for no limit.
        self.prefetch.unwrap_or_else(|| u16::try_from(self.concurrency).unwrap_or(u16::MAX).max(1))
    }

    /// Context and body of a message, or why it cannot be handled.
    pub(crate) fn read<T>(
        &self,
        scope: &Scope,
        decode: &Decode<T>,
        message: &Message,
    ) -> Result<(IdempotencyContext, T), Poison> {
        let key = (self.key)(message).ok_or(Poison::NoKey)?;
        let body = decode(message)?;
        let ctx = self.context(scope, &key, message.body()).map_err(|_| Poison::BadKey)?;
        Ok((ctx, body))
    }

    pub(crate) fn context(
        &self,
        scope: &Scope,
        key: &str,
        body: &[u8],
    ) -> Result<IdempotencyContext> {
        let mut ctx =
            IdempotencyContext::builder(scope.clone(), key).wait_timeout(self.wait_timeout);
        if let Some(ttl) = self.ttl {
            ctx = ctx.ttl(ttl);
        }
        if let Some(lease) = self.lease {
            ctx = ctx.lease(lease);
        }
        if self.fingerprints {
            ctx = ctx.fingerprint(body_fingerprint(body));
        }
        ctx.build()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("queue", &self.queue)
            .field("dead_letters", &self.dead_letters)
            .field("prefetch", &self.prefetch())
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}
