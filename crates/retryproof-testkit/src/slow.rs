// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SlowStore`]: wraps a store and delays each call.

use std::future::Future;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Force, ForceRequest, Forced, Inspect,
    Peeked, Purge, RecordSummary, ScanCursor, ScanPage, StoreProfile, StoreStats,
};
use retryproof_core::{FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use tokio::time::sleep;

/// Behaves like a distant store: a call takes some time to reach the inner store, and its answer
/// takes some time to come back. The delays use the runtime's clock, so a test with a paused clock
/// does not really wait.
#[derive(Debug)]
pub struct SlowStore<S> {
    inner: S,
    there: Duration,
    back: Duration,
}

impl<S> SlowStore<S> {
    /// Wraps `inner`, and delays calls by `there` and answers by `back`.
    #[must_use]
    pub fn new(inner: S, there: Duration, back: Duration) -> Self {
        Self { inner, there, back }
    }

    async fn slowly<T>(&self, call: impl Future<Output = T>) -> T {
        sleep(self.there).await;
        let answer = call.await;
        sleep(self.back).await;
        answer
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: IdempotencyStore> IdempotencyStore for SlowStore<S> {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.slowly(self.inner.acquire(id, req)).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.slowly(self.inner.peek(id)).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        // Subtract the delays, so that the whole wait ends within `at_most` unless the delays alone
        // exceed it.
        let rest = at_most.saturating_sub(self.there + self.back);
        self.slowly(self.inner.wait_for_change(id, seen, rest)).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.slowly(self.inner.extend(id, owner, lease)).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.slowly(self.inner.complete(id, owner, done)).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.slowly(self.inner.release(id, owner)).await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile().without_immediate()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Purge> Purge for SlowStore<S> {
    async fn purge(&self, limit: usize) -> Result<usize> {
        self.slowly(self.inner.purge(limit)).await
    }

    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        self.slowly(self.inner.claim_purge(at_most)).await
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Inspect> Inspect for SlowStore<S> {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        self.slowly(self.inner.get(id)).await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.slowly(self.inner.stats()).await
    }

    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.slowly(self.inner.scan(after, limit)).await
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Force> Force for SlowStore<S> {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        self.slowly(self.inner.force(id, req)).await
    }
}
