// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyEngine`]: the library's centre. Every adapter sits on its
//! [`try_acquire`](IdempotencyEngine::try_acquire).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::{Clock, Instant};
use crate::codec::JsonCodec;
use crate::config::IdempotencyConfig;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{Error, ErrorKind, Result};
use crate::heartbeat::Beats;
use crate::identity::Identity;
use crate::lease::Lease;
use crate::observe::Observers;
use crate::outcome::{ExecuteError, InFlight, Outcome};
use crate::owner::OwnerId;
use crate::payload::StoredResult;
use crate::store::{AcquireRequest, Acquired, Dialect, DynStore, OwnedTx, SharedStore, TxSource};

mod builder;
mod call;
mod commit;
mod finish;
mod flight;
mod gate;
mod held;
mod joined;
mod purge;
mod running;
mod wait;

pub use builder::EngineBuilder;
pub use call::{Call, Hook, NoHook, OnDrop, OnFenced};
pub use commit::{JoinError, PendingCommit};
pub use finish::CompletionResult;
pub use held::HeldLease;
pub use joined::{JoinedCall, JoinedEngine};
pub use running::Permit;

use flight::Flights;
use gate::Gate;
use running::Running;

/// Runs a unit of work once per (scope, key). Cheap to clone; clones are one engine.
///
/// ```
/// # use retryproof_core::{IdempotencyContext, IdempotencyEngine, MemoryStore, Outcome};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let engine = IdempotencyEngine::new(MemoryStore::new());
/// let charge = async || {
///     let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
///     engine.execute(ctx, || async { Ok::<_, std::io::Error>("receipt 1".to_owned()) }).await
///         .map_err(Box::<dyn std::error::Error>::from)
/// };
/// assert_eq!(charge().await?, Outcome::Executed("receipt 1".to_owned()));
/// assert_eq!(charge().await?, Outcome::Replayed("receipt 1".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct IdempotencyEngine(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    store: SharedStore,
    erased: Arc<dyn DynStore>,
    pub(crate) max_value: usize,
    max_duration: Duration,
    immediate: bool,
    pub(crate) config: IdempotencyConfig,
    pub(crate) observers: Observers,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) gate: Gate,
    pub(crate) beats: Beats,
    pub(crate) flights: Flights,
    pub(crate) running: Arc<Running>,
    purging: AtomicBool,
}

/// What [`IdempotencyEngine::try_acquire`] found.
#[derive(Debug)]
#[must_use]
pub enum Acquisition {
    /// The lease is the caller's, and beats.
    Granted(HeldLease),
    /// The work is done; here is its result, to be opened against the caller's fingerprint.
    Complete(StoredResult),
    /// Another caller is at work, and the wait is over.
    InFlight(InFlight),
}

/// What an engine is doing right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Tracked actions that run.
    pub running: usize,
    /// Duplicates that wait.
    pub waiting: usize,
    /// Leases that wait for their next beat.
    pub beating: usize,
}

impl IdempotencyEngine {
    /// An engine with every setting at its default. It takes one of our stores itself, or any other
    /// as a [`SharedStore`].
    #[must_use]
    pub fn new(store: impl Into<SharedStore>) -> Self {
        EngineBuilder::new(store.into()).assemble()
    }

    /// Starts an engine with settings of its own.
    pub fn builder(store: impl Into<SharedStore>) -> EngineBuilder {
        EngineBuilder::new(store.into())
    }

    /// The engine's settings.
    #[must_use]
    pub fn config(&self) -> &IdempotencyConfig {
        &self.0.config
    }

    /// The engine's store.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        &self.0.store
    }

    /// Grants a lease, or waits for the holder up to the call's wait and then hands over its
    /// result, or says that it is in flight (ACQ-1).
    ///
    /// # Errors
    /// `Unavailable` when the store does not answer (STO-5), `ShuttingDown` after
    /// [`shutdown`](Self::shutdown), and what the store refuses with. Nothing ran, and no lease is
    /// left that outlives its duration.
    ///
    /// # Cancel safety
    /// Dropped at any point, it leaves at most one lease for its duration, and releases it at once
    /// where it can (ACQ-11). A waiter that is dropped passes its place on.
    pub async fn try_acquire(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        wait::try_acquire(&self.0, ctx, false, self.0.owner()).await
    }

    /// Runs `action` once for the context's identity; a duplicate gets the stored result. JSON
    /// carries the value; see [`call`](Self::call) for other codecs and options.
    ///
    /// # Errors
    /// See [`ExecuteError`]. An action's own error comes back unchanged, and frees the key (RUN-4);
    /// one that does not tell what happened is for [`execute_with`](Self::execute_with) and
    /// [`Lease::hold_on_error`].
    ///
    /// # Panics
    /// A panic of the action resumes after the key was freed.
    ///
    /// # Cancel safety
    /// Dropped before the action's first poll: released. Later: nothing is known of the action's
    /// effect, so the lease runs out, and the next grant is a takeover (RUN-5). A completion
    /// already sent is finished in the background. Use [`spawn`](Self::spawn) where callers go
    /// away.
    pub async fn execute<T, E, F, Fut>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: crate::codec::Codec<T>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.call(ctx).execute(action).await
    }

    /// As [`execute`](Self::execute), with the lease in the action's hands.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub async fn execute_with<T, E, F, Fut>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: crate::codec::Codec<T>,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.call(ctx).execute_with(action).await
    }

    /// As [`execute`](Self::execute), but the action runs on a tracked task of its own once the
    /// lease is granted: dropping the caller changes nothing then (RUN-5).
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and `TooBusy` under `max-running`.
    pub async fn spawn<T, E, F, Fut>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: crate::codec::Codec<T>,
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.call(ctx).spawn(action).await
    }

    /// An engine whose actions run in a transaction that their record joins (CMP-7). Make it at
    /// start-up, from the application's own pool on the store's database: a store that cannot join
    /// is refused here, before anything runs.
    ///
    /// # Errors
    /// `Unsupported` when the store cannot join (memory, Redis), or not a transaction of this
    /// database.
    pub fn joined<D, S>(&self, source: S) -> Result<JoinedEngine<S::Tx>>
    where
        D: Dialect,
        S: TxSource<D>,
        S::Tx: OwnedTx<D>,
    {
        JoinedEngine::new(self.clone(), source)
    }

    /// As [`execute`](Self::execute), in a transaction from `source` that holds the action's writes
    /// and its record (CMP-7). A program that does so more than once makes a [`JoinedEngine`] at
    /// start-up.
    ///
    /// # Errors
    /// As [`JoinedEngine::execute`]; `Store` of the kind `Unsupported`, before anything runs, when
    /// the store cannot join.
    pub async fn execute_joined<D, S, T, E, F>(
        &self,
        ctx: IdempotencyContext,
        source: S,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        D: Dialect,
        S: TxSource<D>,
        JsonCodec: crate::codec::Codec<T>,
        F: AsyncFnOnce(&mut S::Tx) -> Result<T, E>,
    {
        self.joined(source).map_err(ExecuteError::Store)?.execute(ctx, action).await
    }

    /// Starts a call with options: codec, policy, what a drop does, what a refused value is handed
    /// to.
    pub fn call(&self, ctx: IdempotencyContext) -> Call {
        Call::new(self.clone(), ctx)
    }

    /// The answer for a caller whose completion was refused (CMP-2): within one fresh wait the
    /// taker's result, else in flight.
    ///
    /// # Errors
    /// `Unavailable` when the record is gone (a completion failure, CMP-4) or the store does not
    /// answer.
    ///
    /// # Cancel safety
    /// A drop leaves nothing behind.
    pub async fn answer_fenced(
        &self,
        ctx: &IdempotencyContext,
    ) -> Result<Result<StoredResult, InFlight>> {
        let wait = ctx.resolve(&self.0.config).wait;
        wait::watch(&self.0, ctx.identity(), wait).await?.ok_or_else(|| {
            Error::unavailable("the lease was lost, and whoever took over left no record")
                .during("complete")
                .for_identity(ctx.identity())
        })
    }

    /// Whether the store answers: one look at an identity that nobody uses.
    ///
    /// # Errors
    /// The store's answer to that look.
    pub async fn health(&self) -> Result<()> {
        let identity = Identity::of("retryproof.health", "probe")?;
        let look = self.0.dyn_store().dyn_peek(identity.clone());
        self.0.gate.always("peek", &identity, look).await.map(drop)
    }

    /// What the engine is doing right now.
    #[must_use]
    pub fn activity(&self) -> Activity {
        Activity {
            running: self.0.running.count(),
            waiting: self.0.flights.waiting(),
            beating: self.0.beats.len(),
        }
    }

    /// Grants no more leases, still replays, waits up to `deadline` from now for tracked actions,
    /// and for completions and releases that go on in the background (CMP-3), and says how many of
    /// them were left; their leases run out (RUN-5). Idempotent.
    ///
    /// # Cancel safety
    /// Dropped, the engine stays closed.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        self.0.running.close();
        let _ = tokio::time::timeout(deadline, self.0.running.idle()).await;
        self.0.running.left()
    }

    /// Deletes expired records until none is left, in bounded batches; `None` when the store cannot
    /// (STO-4). The engine does this by itself every `purge.interval`.
    ///
    /// # Errors
    /// Those of the store; `Unavailable` when a batch is not done within `operation-timeout` or 30
    /// s, whichever is longer.
    ///
    /// # Cancel safety
    /// Dropped, some are deleted.
    pub async fn purge(&self) -> Result<Option<usize>> {
        self.0.purge().await
    }
}

impl AsRef<IdempotencyEngine> for IdempotencyEngine {
    fn as_ref(&self) -> &IdempotencyEngine {
        self
    }
}

impl fmt::Debug for IdempotencyEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyEngine")
            .field("store", &self.0.store)
            .field("activity", &self.activity())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn dyn_store(&self) -> Arc<dyn DynStore> {
        Arc::clone(&self.erased)
    }

    /// An acquire from a store that answers at once, without a future of its own on the heap.
    pub(crate) fn acquire_now(
        &self,
        id: &Identity,
        request: &AcquireRequest,
    ) -> Option<Result<Acquired>> {
        if self.immediate { self.erased.dyn_acquire_now(id, request) } else { None }
    }

    /// An owner id, unique among all that the store can meet (ACQ-9).
    pub(crate) fn owner(&self) -> OwnerId {
        if self.immediate { OwnerId::of_this_process() } else { OwnerId::new() }
    }

    /// The runtime of the caller.
    pub(crate) fn runtime(&self) -> Result<Handle> {
        Handle::try_current().map_err(|error| {
            Error::new(
                ErrorKind::Unsupported,
                "the engine runs inside a tokio runtime; use the blocking facade outside",
            )
            .because(error)
        })
    }

    /// Leave for an acquire or a look.
    pub(crate) fn enter(&self) -> Result<gate::Pass<'_>> {
        self.gate.enter(|| self.now())
    }

    /// Spawns from a place that is known to be inside a runtime.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(future));
        }
    }

    /// Refuses durations that the store cannot keep, before the acquire.
    fn check(&self, identity: &Identity, durations: Durations) -> Result<()> {
        if durations.ttl.max(durations.lease) <= self.max_duration {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, "a duration is longer than the store can keep")
            .with("limit", format_args!("{:?}", self.max_duration))
            .for_identity(identity))
    }
}

impl Inner {
    /// Starts the purge task unless one runs.
    pub(crate) fn keep_purging(self: &Arc<Self>) {
        if self.config.purge.enabled && !self.purging.load(Ordering::Relaxed) {
            purge::start(self);
        }
    }
}
