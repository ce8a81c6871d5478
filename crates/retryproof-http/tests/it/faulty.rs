// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory store that counts its calls and fails as planned.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Peeked, StoreProfile,
};
use retryproof_core::{
    Error, ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result, SharedStore,
};
use retryproof_memory::MemoryStore;

/// What happens to the calls of one operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Fails without an effect.
    Fails(ErrorKind),
    /// Takes effect, but the answer is lost. This happens to the given number of calls; later calls
    /// succeed.
    LosesAnswer(usize),
    /// Answers with this delay.
    Slow(Duration),
}

#[derive(Debug, Default)]
struct Script {
    faults: HashMap<&'static str, Fault>,
    calls: HashMap<&'static str, usize>,
}

/// A memory store that counts its calls and fails as planned. Clones share one store.
#[derive(Debug, Clone)]
pub(crate) struct Faulty {
    inner: Arc<MemoryStore>,
    script: Arc<Mutex<Script>>,
    max_value: usize,
}

impl Faulty {
    pub(crate) fn new() -> Self {
        Self { inner: Arc::new(MemoryStore::new()), script: Arc::default(), max_value: usize::MAX }
    }

    pub(crate) fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = bytes;
        self
    }

    pub(crate) fn fault(&self, operation: &'static str, fault: Fault) {
        self.script.lock().faults.insert(operation, fault);
    }

    pub(crate) fn heal(&self) {
        self.script.lock().faults.clear();
    }

    /// Returns the number of calls of each operation since the last call of this function.
    pub(crate) fn calls(&self) -> Vec<(&'static str, usize)> {
        let mut calls: Vec<_> = self.script.lock().calls.drain().collect();
        calls.sort_unstable();
        calls
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let fault = {
            let mut script = self.script.lock();
            *script.calls.entry(operation).or_default() += 1;
            script.faults.get(operation).copied()
        };
        match fault {
            None => call.await,
            Some(Fault::Fails(kind)) => Err(Error::new(kind, "as told")),
            Some(Fault::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                call.await
            }
            Some(Fault::LosesAnswer(times)) => {
                let answer = call.await;
                if times == 0 {
                    return answer;
                }
                self.fault(operation, Fault::LosesAnswer(times - 1));
                Err(Error::unavailable("the answer is lost, as planned"))
            }
        }
    }
}

impl From<Faulty> for SharedStore {
    fn from(store: Faulty) -> Self {
        Self::new(store)
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Faulty {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.call("acquire", self.inner.acquire(id, req)).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.call("peek", self.inner.peek(id)).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.call("wait_for_change", self.inner.wait_for_change(id, seen, at_most)).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.call("extend", self.inner.extend(id, owner, lease)).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.call("complete", self.inner.complete(id, owner, done)).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.call("release", self.inner.release(id, owner)).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("faulty").with_max_value(self.max_value)
    }
}
