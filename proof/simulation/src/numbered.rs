// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Numbered`]: the store of a run, whose tokens are numbered from 1 for each identity.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof::store::{
    AcquireRequest, Acquired, Grant, Inspect, LiveLease, Peeked, Purge, RecordSummary, ScanCursor,
    ScanPage, StoreStats,
};
use retryproof::{Error, ErrorKind, FencingToken, IdempotencyStore, Identity, Result, SharedStore};

/// The tokens that the store has granted. They begin with the time of day, so they are numbered:
/// otherwise no two runs would be alike.
pub(crate) struct Numbered {
    inner: SharedStore,
    tokens: Mutex<HashMap<Identity, Vec<FencingToken>>>,
}

impl Numbered {
    pub(crate) fn new(inner: SharedStore) -> Self {
        Self { inner, tokens: Mutex::default() }
    }

    /// Returns the number of a token. A token that is smaller than an earlier one gets zero, so the
    /// judge sees that the token did not grow.
    fn number(&self, id: &Identity, token: FencingToken) -> FencingToken {
        let mut all = self.tokens.lock();
        let known = all.entry(id.clone()).or_default();
        if known.last().is_none_or(|last| *last < token) {
            known.push(token);
        }
        let at = known.iter().position(|seen| *seen == token);
        FencingToken::new(at.map_or(0, |at| at as u64 + 1))
    }

    /// Returns the store's token with this number.
    fn token(&self, id: &Identity, number: FencingToken) -> FencingToken {
        let at = usize::try_from(number.get().wrapping_sub(1)).unwrap_or(usize::MAX);
        self.tokens.lock().get(id).and_then(|known| known.get(at).copied()).unwrap_or(number)
    }

    fn busy(&self, id: &Identity, mut lease: LiveLease) -> LiveLease {
        lease.token = self.number(id, lease.token);
        lease
    }
}

impl fmt::Debug for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbered").finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Numbered {
    retryproof_testkit::forward!(inner: extend, complete, release, profile);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        Ok(match self.inner.acquire(id, req).await? {
            Acquired::Granted(grant) => {
                let token = self.number(id, grant.token);
                Acquired::Granted(Grant::new(token, grant.remaining, grant.took_over))
            }
            Acquired::Busy(lease) => Acquired::Busy(self.busy(id, lease)),
            complete => complete,
        })
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        Ok(match self.inner.peek(id).await? {
            Peeked::Busy(lease) => Peeked::Busy(self.busy(id, lease)),
            other => other,
        })
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.inner.wait_for_change(id, self.token(id, seen), at_most).await
    }
}

impl Purge for Numbered {
    async fn purge(&self, limit: usize) -> Result<usize> {
        Ok(self.inner.purge(limit).await?.unwrap_or(0))
    }
}

impl Inspect for Numbered {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let found = self.inner.get(id).await?;
        Ok(found.map(|mut found| {
            found.token = self.number(id, found.token);
            found
        }))
    }

    async fn stats(&self) -> Result<StoreStats> {
        Err(Error::new(ErrorKind::Unsupported, "a run counts nothing"))
    }

    async fn scan(&self, _: Option<&ScanCursor>, _: usize) -> Result<ScanPage> {
        Err(Error::new(ErrorKind::Unsupported, "a run scans nothing"))
    }
}
