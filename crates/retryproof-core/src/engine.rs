// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyEngine`]: the centre of the library. Every adapter is built on its
//! [`try_acquire`](IdempotencyEngine::try_acquire).

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::{Codec, JsonCodec};
use crate::config::IdempotencyConfig;
use crate::context::IdempotencyContext;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::outcome::{ExecuteError, InFlight, Outcome};
use crate::payload::StoredResult;
use crate::store::{Dialect, OwnedTx, SharedStore, TxSource};

mod acquire;
mod builder;
mod complete;
mod execute;
mod holder;
mod join;
mod joined;
mod lease;
mod nested;
mod outcome_event;
mod purge;
mod shadow;
mod span;
mod state;
mod store_client;
mod tasks;
mod unguarded;

pub use acquire::{AcquireRest, Acquiring, Acquisition, EndedAcquire};
pub use builder::EngineBuilder;
pub use complete::CompletionResult;
#[cfg(feature = "blocking")]
pub(crate) use execute::BlockOn;
pub use execute::{Call, Hook, NoHook, OnDrop, OnFenced};
pub use join::{JoinError, PendingCommit};
pub use joined::{JoinedCall, JoinedEngine};
pub use lease::{HeldLease, Lease};
#[doc(hidden)]
pub use nested::poll_inside;
pub use outcome_event::CallAnswer;
pub use tasks::Permit;

use state::EngineState;

/// Runs a unit of work once per (scope, key). A clone is cheap and shares the engine.
///
/// ```
/// # use retryproof_core::{IdempotencyContext, IdempotencyEngine, Outcome};
/// # use retryproof_memory::MemoryStore;
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
pub struct IdempotencyEngine(Arc<EngineState>);

/// What an engine is doing right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// The number of tracked actions that are running.
    pub running: usize,
    /// The number of duplicates that are waiting for a holder.
    pub waiting: usize,
    /// The number of leases that are waiting for their next heartbeat.
    pub beating: usize,
    /// The time since this engine's last purge round without an error, or `None` if there was no
    /// such round. A round that this engine left to another process also counts (STO-6).
    pub purged_ago: Option<Duration>,
}

impl IdempotencyEngine {
    /// Creates an engine with default settings. Pass a store of this library directly, and wrap any
    /// other store in a [`SharedStore`].
    #[must_use]
    pub fn new(store: impl Into<SharedStore>) -> Self {
        EngineBuilder::new(store.into()).assemble()
    }

    /// Starts building an engine with settings, observers or a clock.
    pub fn builder(store: impl Into<SharedStore>) -> EngineBuilder {
        EngineBuilder::new(store.into())
    }

    /// Returns the engine's settings.
    #[must_use]
    pub fn config(&self) -> &IdempotencyConfig {
        &self.0.config
    }

    /// Returns the engine's store.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        self.0.store.shared()
    }

    /// Acquires a lease. If another caller holds the key, this method **waits** for that caller, up
    /// to the call's wait timeout. It then returns a lease, the stored result or `InFlight`
    /// (ACQ-1).
    ///
    /// # Errors
    /// `Unavailable` when the store does not answer (STO-5), `ShuttingDown` after
    /// [`shutdown`](Self::shutdown), and any refusal by the store. After an error, nothing has run.
    /// If the store has granted a lease nevertheless, the lease ends within its duration.
    ///
    /// # Cancel safety
    /// If the future is dropped at any point, at most one lease is left behind. That lease is
    /// released immediately where possible, and otherwise runs out (ACQ-11). If a waiter is dropped
    /// while it leads the other waiters, another waiter takes the lead.
    pub async fn try_acquire(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        let ctx = &self.identified(ctx);
        acquire::try_acquire(&self.0, ctx, false, self.0.store.owner()).await
    }

    /// Runs `action` once for the context's identity. A duplicate gets the stored result. The value
    /// is stored as JSON. Use [`call`](Self::call) for other codecs and options.
    ///
    /// # Errors
    /// See [`ExecuteError`]. The action's own error is returned unchanged and frees the key
    /// (RUN-4). If the action can fail after it has had an effect, use
    /// [`execute_with`](Self::execute_with) and [`Lease::hold_on_error`].
    ///
    /// # Panics
    /// If the action panics, the engine frees the key, or lets the lease run out after
    /// [`Lease::hold_on_error`] (RUN-4). Then the panic resumes.
    ///
    /// # Cancel safety
    /// If the future is dropped before the action's first poll, the key is released. If the future
    /// is dropped later, the action's effect is unknown. The lease then runs out, and the next
    /// grant is a takeover (RUN-5). A completion that has already been sent is finished in the
    /// background. Use [`spawn`](Self::spawn) if callers may disconnect.
    pub async fn execute<T, E, F, Fut>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: Codec<T>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.call(ctx).execute(action).await
    }

    /// Like [`execute`](Self::execute), but also passes the lease to the action.
    ///
    /// # Errors
    /// Same as [`execute`](Self::execute).
    pub async fn execute_with<T, E, F, Fut>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: Codec<T>,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.call(ctx).execute_with(action).await
    }

    /// Like [`execute`](Self::execute), but runs the action on a separate, tracked task. After the
    /// grant, dropping the caller's future does not stop the action (RUN-5).
    ///
    /// # Errors
    /// Same as [`execute`](Self::execute), and `TooBusy` if `max-running` actions are already
    /// running and no result is stored.
    pub async fn spawn<T, E, F, Fut>(
        &self,
        ctx: IdempotencyContext,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: Codec<T>,
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.call(ctx).spawn(action).await
    }

    /// Creates an engine that runs each action in a transaction, together with the action's record
    /// (CMP-7). Call this method at start-up, with the application's connection pool for the
    /// store's database. The method refuses a store that cannot join the pool's transactions,
    /// before anything runs.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot join transactions (memory, Redis), or cannot join those of
    /// the source's database.
    pub fn joined<D, S>(&self, source: S) -> Result<JoinedEngine<S::Tx>>
    where
        D: Dialect,
        S: TxSource<D>,
        S::Tx: OwnedTx<D>,
    {
        JoinedEngine::new(self.clone(), source)
    }

    /// Like [`execute`](Self::execute), but runs the action in a transaction from `source`. The
    /// transaction contains the action's writes and its record (CMP-7). For more than one call,
    /// create a [`JoinedEngine`] at start-up.
    ///
    /// # Errors
    /// Same as [`JoinedEngine::execute`]. If the store cannot join the source's transactions, the
    /// error is `Store` with the kind `Unsupported`, and nothing has run.
    pub async fn execute_joined<D, S, T, E, F>(
        &self,
        ctx: IdempotencyContext,
        source: S,
        action: F,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        D: Dialect,
        S: TxSource<D>,
        JsonCodec: Codec<T>,
        F: AsyncFnOnce(&mut S::Tx) -> Result<T, E>,
    {
        self.joined(source).map_err(ExecuteError::Store)?.execute(ctx, action).await
    }

    /// Creates a call whose options you can set before it runs: the codec, the completion policy,
    /// the behaviour on a drop, and a hook that receives the value of a refused completion.
    pub fn call(&self, mut ctx: IdempotencyContext) -> Call {
        self.identify(&mut ctx);
        Call::new(self.clone(), ctx)
    }

    /// Finds the answer for a caller whose completion was refused (CMP-2). The answer is the result
    /// of the caller that took over, if that result arrives within one more wait timeout. Otherwise
    /// it is `InFlight`.
    ///
    /// # Errors
    /// `Unavailable` if the record is gone, or if the store has not answered once; either is a
    /// completion failure (CMP-4). Another error means that the stored result cannot be read
    /// (CMP-8).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn answer_fenced(
        &self,
        ctx: &IdempotencyContext,
    ) -> Result<Result<StoredResult, InFlight>> {
        let wait = ctx.resolve(&self.0.config).wait;
        let named = |error: Error| error.during("complete").for_identity(ctx.identity());
        let answer = acquire::watch(&self.0, ctx.identity(), wait).await?.ok_or_else(|| {
            named(Error::unavailable(
                "this call lost its lease before its result was recorded, and the caller that took \
                 over left no result to return",
            ))
        })?;
        match answer {
            Ok(stored) => acquire::opened(&self.0.store, ctx, stored).await.map(Ok).map_err(named),
            Err(in_flight) => Ok(Err(in_flight)),
        }
    }

    /// If the store has hashed identities, adds the digest to the context's identity. Logs and
    /// errors then print the digest, and store calls need not compute it again (ID-5).
    #[doc(hidden)]
    #[inline]
    pub fn identify(&self, ctx: &mut IdempotencyContext) {
        if self.store().hashes_identities() {
            ctx.map_identity(|id| self.store().identify(id));
        }
    }

    /// Like [`identify`](Self::identify), but leaves the caller's context unchanged.
    fn identified<'a>(&self, ctx: &'a IdempotencyContext) -> Cow<'a, IdempotencyContext> {
        let mut ctx = Cow::Borrowed(ctx);
        if self.store().hashes_identities() {
            self.identify(ctx.to_mut());
        }
        ctx
    }

    /// Returns how long the result of a call with this context is kept after completion. The ttl
    /// comes from the scope's configuration, otherwise from the context, otherwise from the default
    /// (CTX-3).
    #[must_use]
    pub fn ttl_of(&self, ctx: &IdempotencyContext) -> Duration {
        ctx.resolve(&self.0.config).ttl
    }

    /// Checks that the store answers: peeks once at an identity that is reserved for this check.
    ///
    /// # Errors
    /// The errors of the peek.
    pub async fn health(&self) -> Result<()> {
        let identity = Identity::of("retryproof.health", "probe")?;
        self.0.store.peek(&identity, self.0.store.operation_timeout()).await.map(drop)
    }

    /// Returns what the engine is doing right now.
    #[must_use]
    pub fn activity(&self) -> Activity {
        Activity {
            running: self.0.tasks.running(),
            waiting: self.0.waits.waiting(),
            beating: self.0.beats.len(),
            purged_ago: self.0.store.purged_ago(),
        }
    }

    /// Stops granting leases. Stored results are still replayed. Waits for at most `deadline` until
    /// all tracked actions, and all completions and releases in the background, have ended (CMP-3).
    /// Returns how many of these have not ended by then. Their leases run out (RUN-5). This method
    /// can be called again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the engine still grants no more leases.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        self.0.tasks.close();
        let _ = tokio::time::timeout(deadline, self.0.tasks.idle()).await;
        self.0.tasks.left()
    }

    /// Deletes expired records in bounded batches until none is left. Returns `None` if the store
    /// cannot purge (STO-4). After its first grant, the engine also purges every `purge.interval`,
    /// unless `purge.enabled` is false.
    ///
    /// # Errors
    /// The store's errors, and `Unavailable` if a batch takes longer than both `operation-timeout`
    /// and 30 s.
    ///
    /// # Cancel safety
    /// If the future is dropped, some records may already have been deleted.
    pub async fn purge(&self) -> Result<Option<usize>> {
        purge::purge(&self.0.store, self.0.config.purge.interval).await
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
            .field("store", self.store())
            .field("activity", &self.activity())
            .finish_non_exhaustive()
    }
}
