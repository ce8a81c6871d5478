// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Recorder`]: wraps a store and keeps a log of the calls.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Force, ForceRequest, Forced, Inspect,
    Peeked, Purge, RecordSummary, ScanCursor, ScanPage, StoreProfile, StoreStats,
};
use retryproof_core::{ErrorKind, FencingToken, IdempotencyStore, Identity, OwnerId, Result};

use crate::operation::Operation;

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Said {
    /// No answer yet.
    Pending,
    /// The call was dropped before the answer.
    Dropped,
    /// The caller holds the lease.
    Granted,
    /// The caller has taken over an expired lease.
    TookOver,
    /// Another owner holds the lease.
    Busy,
    /// The record is complete.
    Complete,
    /// There is no record.
    Absent,
    /// A wait has ended.
    Woken,
    /// The answer to an extend, a completion or a release.
    Fenced(FencedWrite),
    /// The number of purged records.
    Purged(usize),
    /// The call failed.
    Failed(ErrorKind),
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The method.
    pub operation: Operation,
    /// The identity, which is printed masked (ID-4); `None` for a purge.
    pub identity: Option<Identity>,
    /// The owner; `None` for a peek, a wait and a purge.
    pub owner: Option<OwnerId>,
    /// The answer.
    pub said: Said,
}

/// The log of a [`Recorder`]. Clones share their state.
#[derive(Clone, Default)]
pub struct CallLog(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    entries: Vec<Entry>,
    /// Incremented when the log is cleared, so that a late answer to a removed call is not logged
    /// for another call.
    generation: u64,
}

impl CallLog {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns all calls, in the order in which they were sent.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().entries.clone()
    }

    /// Returns how many calls of a method were sent.
    #[must_use]
    pub fn count(&self, operation: Operation) -> usize {
        self.count_of(|entry| entry.operation == operation)
    }

    /// Returns how many calls match a condition.
    #[must_use]
    pub fn count_of(&self, is: impl Fn(&Entry) -> bool) -> usize {
        self.0.lock().entries.iter().filter(|entry| is(entry)).count()
    }

    /// Returns the methods of all calls, in the order in which they were sent.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        self.0.lock().entries.iter().map(|entry| entry.operation).collect()
    }

    /// Clears the log. The answers of calls that are still pending are not logged later.
    pub fn clear(&self) {
        let mut log = self.0.lock();
        log.entries.clear();
        log.generation += 1;
    }

    fn begin(
        &self,
        operation: Operation,
        identity: Option<&Identity>,
        owner: Option<OwnerId>,
    ) -> Open<'_> {
        let mut log = self.0.lock();
        log.entries.push(Entry {
            operation,
            identity: identity.cloned(),
            owner,
            said: Said::Pending,
        });
        Open {
            log: self,
            at: log.entries.len() - 1,
            generation: log.generation,
            said: Said::Dropped,
        }
    }

    async fn keep<T>(
        &self,
        (operation, identity, owner): (Operation, Option<&Identity>, Option<OwnerId>),
        call: impl Future<Output = Result<T>>,
        said: impl Fn(&T) -> Said,
    ) -> Result<T> {
        let mut open = self.begin(operation, identity, owner);
        let answer = call.await;
        open.said = match &answer {
            Ok(answer) => said(answer),
            Err(error) => Said::Failed(error.kind()),
        };
        answer
    }
}

impl fmt::Debug for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().entries.iter()).finish()
    }
}

/// A call that was sent. Dropping this value logs how the call ended, so dropped calls are logged
/// too.
struct Open<'a> {
    log: &'a CallLog,
    at: usize,
    generation: u64,
    said: Said,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut log = self.log.0.lock();
        if log.generation == self.generation
            && let Some(entry) = log.entries.get_mut(self.at)
        {
            entry.said = self.said;
        }
    }
}

/// A store that keeps a [`CallLog`], for tests that count round trips or check the order of calls.
///
/// ```
/// use retryproof_core::{IdempotencyContext, IdempotencyEngine, SharedStore};
/// use retryproof_memory::MemoryStore;
/// use retryproof_testkit::{CallLog, Operation, Recorder};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let log = CallLog::new();
/// let engine = IdempotencyEngine::new(SharedStore::new(Recorder::new(MemoryStore::new(), log.clone())));
/// let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
/// engine.execute(ctx, || async { Ok::<_, std::io::Error>("receipt".to_owned()) }).await?;
/// assert_eq!(log.operations(), [Operation::Acquire, Operation::Complete]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Recorder<S> {
    inner: S,
    log: CallLog,
}

impl<S> Recorder<S> {
    /// Wraps `inner` and logs its calls in `log`.
    #[must_use]
    pub fn new(inner: S, log: CallLog) -> Self {
        Self { inner, log }
    }
}

fn fenced(answer: &FencedWrite) -> Said {
    Said::Fenced(*answer)
}

#[deny(clippy::missing_trait_methods)]
impl<S: IdempotencyStore> IdempotencyStore for Recorder<S> {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let said = |answer: &Acquired| match answer {
            Acquired::Granted(grant) if grant.took_over => Said::TookOver,
            Acquired::Granted(_) => Said::Granted,
            Acquired::Busy(_) => Said::Busy,
            Acquired::Complete(_) => Said::Complete,
        };
        let call = (Operation::Acquire, Some(id), Some(req.owner));
        self.log.keep(call, self.inner.acquire(id, req), said).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        let said = |answer: &Peeked| match answer {
            Peeked::Absent => Said::Absent,
            Peeked::Busy(_) => Said::Busy,
            Peeked::Complete(_) => Said::Complete,
        };
        self.log.keep((Operation::Peek, Some(id), None), self.inner.peek(id), said).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        let call = (Operation::WaitForChange, Some(id), None);
        self.log.keep(call, self.inner.wait_for_change(id, seen, at_most), |()| Said::Woken).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let call = (Operation::Extend, Some(id), Some(owner));
        self.log.keep(call, self.inner.extend(id, owner, lease), fenced).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let call = (Operation::Complete, Some(id), Some(owner));
        self.log.keep(call, self.inner.complete(id, owner, done), fenced).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let call = (Operation::Release, Some(id), Some(owner));
        self.log.keep(call, self.inner.release(id, owner), fenced).await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Purge> Purge for Recorder<S> {
    async fn purge(&self, limit: usize) -> Result<usize> {
        let call = (Operation::Purge, None, None);
        self.log.keep(call, self.inner.purge(limit), |gone| Said::Purged(*gone)).await
    }

    /// Does not log the claim, because a claim concerns no record.
    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        self.inner.claim_purge(at_most).await
    }
}

/// Inspection is not logged, because tests use it to check the records.
#[deny(clippy::missing_trait_methods)]
impl<S: Inspect> Inspect for Recorder<S> {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        self.inner.get(id).await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.inner.stats().await
    }

    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.inner.scan(after, limit).await
    }
}

/// Interventions are not logged, because they are not calls of an engine.
#[deny(clippy::missing_trait_methods)]
impl<S: Force> Force for Recorder<S> {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        self.inner.force(id, req).await
    }
}
