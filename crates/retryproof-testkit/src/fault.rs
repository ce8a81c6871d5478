// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FaultStore`]: wraps a store and makes its calls fail when and how a test specifies.

use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Force, ForceRequest, Forced, Inspect,
    Peeked, Purge, RecordSummary, ScanCursor, ScanPage, StoreProfile, StoreStats,
};
use retryproof_core::{Error, FencingToken, IdempotencyStore, Identity, OwnerId, Result};
use tokio::sync::watch;

use crate::operation::Operation;

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The call fails before it reaches the store, so nothing happens.
    Refused,
    /// The store executes the call, but the answer is lost, and the caller gets an error.
    AnswerLost,
    /// The call never reaches the store and never ends.
    Swallowed,
    /// The store executes the call, but the call never ends.
    AnswerSwallowed,
    /// The call panics before it reaches the store, so nothing happens.
    Panicked,
    /// The store executes the call, and then the call panics.
    AnswerPanicked,
}

/// What happens to the calls during an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outage {
    /// Calls fail immediately.
    Refuse,
    /// Calls never end, even after the outage.
    Swallow,
    /// Calls wait for the outage to end, and are then executed.
    Stall,
}

/// One call, as it is passed to a plan before it reaches the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The call's number among all calls since the plan was set, counted from 1.
    pub number: u64,
    /// The method.
    pub operation: Operation,
    /// The call's number among the calls of this method, counted from 1.
    pub of_operation: u64,
}

type Plan = Box<dyn FnMut(&Call) -> Option<Fault> + Send>;

/// Decides which calls of a [`FaultStore`] fail. Clones share their state.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    outage: watch::Sender<Option<Outage>>,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    calls: Vec<Operation>,
    injected: u64,
}

impl Faults {
    /// Creates faults that do nothing until a plan is set or an outage begins.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), outage: watch::Sender::new(None) }))
    }

    /// Calls `plan` before each store call, and restarts the call numbers. A later plan replaces
    /// this plan.
    pub fn plan(&self, plan: impl FnMut(&Call) -> Option<Fault> + Send + 'static) {
        *self.0.state.lock() = State { plan: Some(Box::new(plan)), ..State::default() };
    }

    /// Makes the `nth` call from now fail, whatever its method. The next call is number 1.
    pub fn fail_call(&self, nth: u64, fault: Fault) {
        self.plan(move |call| (call.number == nth).then_some(fault));
    }

    /// From now on, makes every `nth` call fail.
    ///
    /// # Panics
    /// If `nth` is zero.
    pub fn fail_every(&self, nth: u64, fault: Fault) {
        assert!(nth > 0, "`nth` must be at least 1");
        self.plan(move |call| (call.number % nth == 0).then_some(fault));
    }

    /// Makes the next `times` calls of a method fail.
    pub fn fail_next(&self, operation: Operation, times: u64, fault: Fault) {
        self.plan(move |call| {
            (call.operation == operation && call.of_operation <= times).then_some(fault)
        });
    }

    /// Injects no further faults. An outage continues.
    pub fn clear(&self) {
        self.0.state.lock().plan = None;
    }

    /// Makes the store unavailable until [`end_outage`](Self::end_outage). `outage` says what
    /// happens to the calls.
    pub fn begin_outage(&self, outage: Outage) {
        self.0.outage.send_replace(Some(outage));
    }

    /// Ends the outage.
    pub fn end_outage(&self) {
        self.0.outage.send_replace(None);
    }

    /// Returns how many calls were made since the plan was set, including failed calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.state.lock().calls.len() as u64
    }

    /// Returns how many calls were hit by a fault or an outage since the plan was set. A stalled
    /// call counts too. Assert that this number is not zero, because a test that injected no fault
    /// has shown nothing.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.0.state.lock().injected
    }

    fn judge(&self, operation: Operation) -> Option<Fault> {
        let mut state = self.0.state.lock();
        state.calls.push(operation);
        let call = Call {
            number: state.calls.len() as u64,
            operation,
            of_operation: state.calls.iter().filter(|made| **made == operation).count() as u64,
        };
        let fault = state.plan.as_mut().and_then(|plan| plan(&call));
        state.injected += u64::from(fault.is_some());
        fault
    }

    async fn apply<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let fault = self.judge(operation);
        let mut outage = self.0.outage.subscribe();
        let away = *outage.borrow_and_update();
        if away.is_some() {
            self.0.state.lock().injected += 1;
        }
        match away {
            None => {}
            Some(Outage::Refuse) => return Err(failed(operation, "the store is down (injected)")),
            Some(Outage::Swallow) => return pending().await,
            // The wait fails only if the sender is dropped, but `self` owns the sender.
            Some(Outage::Stall) => drop(outage.wait_for(|outage| outage.is_none()).await),
        }
        match fault {
            None => call.await,
            Some(Fault::Refused) => Err(failed(operation, "the call was refused (injected)")),
            Some(Fault::AnswerLost) => {
                // The call runs, but its answer is lost.
                let _ = call.await;
                Err(failed(operation, "the answer was lost (injected)"))
            }
            Some(Fault::Swallowed) => pending().await,
            Some(Fault::AnswerSwallowed) => {
                let _ = call.await;
                pending().await
            }
            Some(Fault::Panicked) => panic!("{} panics (injected)", operation.name()),
            Some(Fault::AnswerPanicked) => {
                let _ = call.await;
                panic!("{} panics after the store has executed it (injected)", operation.name())
            }
        }
    }
}

fn failed(operation: Operation, message: &'static str) -> Error {
    Error::unavailable(message).during(operation.name())
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("Faults")
            .field("planned", &state.plan.is_some())
            .field("calls", &state.calls.len())
            .field("injected", &state.injected)
            .field("outage", &*self.0.outage.borrow())
            .finish()
    }
}

/// A store whose calls fail as its [`Faults`] specify. All other calls behave like those of the
/// inner store.
///
/// ```
/// use retryproof_core::{IdempotencyEngine, SharedStore};
/// use retryproof_memory::MemoryStore;
/// use retryproof_testkit::{Fault, FaultStore, Faults, Operation};
///
/// let faults = Faults::none();
/// let store = FaultStore::new(MemoryStore::new(), faults.clone());
/// let engine = IdempotencyEngine::new(SharedStore::new(store));
/// faults.fail_next(Operation::Complete, 1, Fault::AnswerLost);
/// # drop(engine);
/// ```
#[derive(Debug)]
pub struct FaultStore<S> {
    inner: S,
    faults: Faults,
}

impl<S> FaultStore<S> {
    /// Wraps `inner`, and injects `faults`.
    #[must_use]
    pub fn new(inner: S, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: IdempotencyStore> IdempotencyStore for FaultStore<S> {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.faults.apply(Operation::Acquire, self.inner.acquire(id, req)).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.faults.apply(Operation::Peek, self.inner.peek(id)).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.faults
            .apply(Operation::WaitForChange, self.inner.wait_for_change(id, seen, at_most))
            .await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.faults.apply(Operation::Extend, self.inner.extend(id, owner, lease)).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.faults.apply(Operation::Complete, self.inner.complete(id, owner, done)).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.faults.apply(Operation::Release, self.inner.release(id, owner)).await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile().without_immediate()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Purge> Purge for FaultStore<S> {
    async fn purge(&self, limit: usize) -> Result<usize> {
        self.faults.apply(Operation::Purge, self.inner.purge(limit)).await
    }

    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        self.faults.apply(Operation::Purge, self.inner.claim_purge(at_most)).await
    }
}

/// Faults never affect inspection, so that tests can check the records.
#[deny(clippy::missing_trait_methods)]
impl<S: Inspect> Inspect for FaultStore<S> {
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

#[deny(clippy::missing_trait_methods)]
impl<S: Force> Force for FaultStore<S> {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        self.inner.force(id, req).await
    }
}
