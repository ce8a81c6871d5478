// SPDX-License-Identifier: MIT OR Apache-2.0
//! The blocking [`Engine`], [`Call`] and [`HeldLease`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

use super::BLOCKING;
use crate::codec::{Codec, JsonCodec};
use crate::config::CompletionFailurePolicy;
use crate::context::IdempotencyContext;
use crate::engine::{self, BlockOn, CompletionResult, IdempotencyEngine, Lease, NoHook, OnFenced};
use crate::error::{Error, ErrorKind, Result};
use crate::outcome::{ExecuteError, InFlight, Outcome, Report};
use crate::payload::{Payload, StoredResult, Tombstone};
use crate::store::SharedStore;

/// Runs a unit of work once per (scope, key), and blocks the calling thread until the call ends. A
/// clone is cheap and shares the engine.
#[derive(Debug, Clone)]
pub struct Engine {
    engine: IdempotencyEngine,
    runtime: Arc<Owned>,
}

/// The runtime of an engine. Dropping this value does not wait for the runtime's tasks, so an
/// engine can be dropped anywhere, even inside another runtime.
#[derive(Debug)]
struct Owned(Option<Runtime>);

impl Owned {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("retryproof")
            .enable_all()
            .build()
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unexpected,
                    "the engine could not start the thread that sends its heartbeats",
                )
                .because(error)
            })?;
        Ok(Self(Some(runtime)))
    }

    /// Returns a [`RuntimeEntry`], which can block on this runtime. Fails if the thread is already
    /// inside a runtime.
    fn enter(&self) -> Result<RuntimeEntry<'_>> {
        if Handle::try_current().is_ok() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a blocking method was called inside a tokio runtime, which it would block; inside \
                 a runtime, use the async `IdempotencyEngine` and `retryproof::connect`, or call \
                 the method on a thread from `std::thread` (a `spawn_blocking` thread is still \
                 inside the runtime)",
            ));
        }
        match &self.0 {
            Some(runtime) => Ok(RuntimeEntry(runtime)),
            None => Err(Error::new(
                ErrorKind::ShuttingDown,
                "the engine's runtime has shut down, so the engine accepts no more calls",
            )),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs `work` to completion on a runtime created for it.
///
/// # Errors
/// The errors of `work`, `Unsupported` when called inside a runtime, and `Unexpected` if the
/// operating system cannot start a thread.
#[doc(hidden)]
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Owned::start()?.enter()?.block_on(work)
}

/// Proof that this thread is not inside a runtime and may therefore block.
pub(super) struct RuntimeEntry<'a>(&'a Runtime);

impl BlockOn for RuntimeEntry<'_> {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                BLOCKING.set(false);
            }
        }
        BLOCKING.set(true);
        let _reset = Reset;
        self.0.block_on(future)
    }
}

impl Engine {
    /// Creates an engine with default settings.
    ///
    /// # Errors
    /// `Unexpected` if the operating system cannot start a thread for the heartbeat.
    pub fn new(store: impl Into<SharedStore>) -> Result<Self> {
        Self::over(IdempotencyEngine::new(store))
    }

    /// Wraps an async engine, for example one with your own settings. Do not use the async engine
    /// on another runtime.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn over(engine: IdempotencyEngine) -> Result<Self> {
        Ok(Self { engine, runtime: Arc::new(Owned::start()?) })
    }

    /// Runs `make` on the runtime of the new engine, and wraps the engine that `make` returns. A
    /// store on a server connects on this runtime, so its connections live as long as the engine.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new) and of `make`, and `Unsupported` when called inside a
    /// runtime.
    pub fn make(make: impl Future<Output = Result<IdempotencyEngine>>) -> Result<Self> {
        let runtime = Owned::start()?;
        let engine = runtime.enter()?.block_on(make)?;
        Ok(Self { engine, runtime: Arc::new(runtime) })
    }

    /// Returns the async engine that this engine wraps.
    #[must_use]
    pub fn engine(&self) -> &IdempotencyEngine {
        &self.engine
    }

    pub(super) fn enter(&self) -> Result<RuntimeEntry<'_>> {
        self.runtime.enter()
    }

    /// Blocks until `ending`, which ends a lease, is finished. Inside a runtime, only polls `ending`
    /// once. If that does not finish `ending`, returns an error, and `ending` continues in the
    /// background (RUN-5).
    fn finish<T>(&self, ending: impl Future<Output = T>) -> Result<T> {
        let error = match self.enter() {
            Ok(entry) => return Ok(entry.block_on(ending)),
            Err(error) => error,
        };
        // The caller's runtime might have no timers, so the poll uses the engine's runtime.
        let _entered = self.runtime.0.as_ref().map(Runtime::enter);
        match pin!(ending).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => Ok(ended),
            Poll::Pending => Err(error),
        }
    }

    /// Runs `action` on this thread, once for the context's identity, like
    /// [`IdempotencyEngine::execute`].
    ///
    /// # Errors
    /// See [`ExecuteError`]. Inside a runtime, the error is `Store` with the kind `Unsupported`.
    ///
    /// # Panics
    /// If the action panics, the engine frees the key, or lets the lease run out after
    /// [`Lease::hold_on_error`] (RUN-4). Then the panic resumes.
    pub fn execute<T, E>(
        &self,
        ctx: IdempotencyContext,
        action: impl FnOnce() -> Result<T, E>,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: Codec<T>,
    {
        self.call(ctx).execute(action)
    }

    /// Like [`execute`](Self::execute), but also passes the lease to the action.
    ///
    /// # Errors
    /// Same as [`execute`](Self::execute).
    pub fn execute_with<T, E>(
        &self,
        ctx: IdempotencyContext,
        action: impl FnOnce(Lease) -> Result<T, E>,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        JsonCodec: Codec<T>,
    {
        self.call(ctx).execute_with(action)
    }

    /// Creates a call whose options you can set before it runs.
    pub fn call(&self, ctx: IdempotencyContext) -> Call {
        Call { engine: self.clone(), call: self.engine.call(ctx) }
    }

    /// Like [`IdempotencyEngine::try_acquire`].
    ///
    /// # Errors
    /// The errors of the async method of the same name, and `Unsupported` when called inside a
    /// runtime.
    pub fn try_acquire(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        Ok(match self.enter()?.block_on(self.engine.try_acquire(ctx))? {
            engine::Acquisition::Granted(held) => {
                Acquisition::Granted(HeldLease { held, engine: self.clone() })
            }
            engine::Acquisition::Complete(stored) => Acquisition::Complete(stored),
            engine::Acquisition::InFlight(busy) => Acquisition::InFlight(busy),
            engine::Acquisition::Mismatch => Acquisition::Mismatch,
        })
    }

    /// Like [`IdempotencyEngine::health`].
    ///
    /// # Errors
    /// The errors of the async method of the same name, and `Unsupported` when called inside a
    /// runtime.
    pub fn health(&self) -> Result<()> {
        self.enter()?.block_on(self.engine.health())
    }

    /// Like [`IdempotencyEngine::purge`].
    ///
    /// # Errors
    /// The errors of the async method of the same name, and `Unsupported` when called inside a
    /// runtime.
    pub fn purge(&self) -> Result<Option<usize>> {
        self.enter()?.block_on(self.engine.purge())
    }

    /// Like [`IdempotencyEngine::shutdown`].
    ///
    /// # Errors
    /// `Unsupported` when called inside a runtime.
    pub fn shutdown(&self, deadline: Duration) -> Result<usize> {
        Ok(self.enter()?.block_on(self.engine.shutdown(deadline)))
    }
}

impl AsRef<Engine> for Engine {
    fn as_ref(&self) -> &Engine {
        self
    }
}

/// The result of [`Engine::try_acquire`].
#[derive(Debug)]
#[must_use]
pub enum Acquisition {
    /// The caller has the lease, and the lease's heartbeat is running.
    Granted(HeldLease),
    /// The work is done, and this is its result.
    Complete(StoredResult),
    /// Another caller holds the key, and this call does not wait any longer.
    InFlight(InFlight),
    /// Another caller holds the key, under a different fingerprint (FP-6).
    Mismatch,
}

/// A granted lease; see [`crate::HeldLease`].
#[derive(Debug)]
pub struct HeldLease {
    held: engine::HeldLease,
    engine: Engine,
}

impl HeldLease {
    /// Returns the lease's handle, which the caller can pass to the work.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.held.lease()
    }

    /// Like [`crate::HeldLease::complete`]. Inside a runtime, this method does not wait for the
    /// store. If the store answers immediately, as a memory store does, the result says so.
    /// Otherwise the method returns `Unconfirmed`, and the completion is finished in the
    /// background.
    pub fn complete(self, value: Payload) -> CompletionResult {
        let completing = self.held.complete(value);
        self.engine.finish(completing).unwrap_or_else(CompletionResult::Unconfirmed)
    }

    /// Like [`crate::HeldLease::complete_tombstone`], and inside a runtime like
    /// [`complete`](Self::complete).
    pub fn complete_tombstone(self, tombstone: Tombstone) -> CompletionResult {
        let completing = self.held.complete_tombstone(tombstone);
        self.engine.finish(completing).unwrap_or_else(CompletionResult::Unconfirmed)
    }

    /// Like [`crate::HeldLease::release`].
    ///
    /// # Errors
    /// The errors of the async method. Inside a runtime, this method does not wait for the store:
    /// unless the store answers immediately, the error is `Unsupported`, and the release is finished
    /// in the background.
    pub fn release(self) -> Result<()> {
        let releasing = self.held.release();
        self.engine.finish(releasing)?
    }

    pub(super) fn into_parts(self) -> (engine::HeldLease, Engine) {
        (self.held, self.engine)
    }

    /// Like [`crate::HeldLease::hold`].
    pub fn hold(self) {
        self.held.hold();
    }
}

/// One call with its options; see [`crate::Call`].
#[derive(Debug)]
#[must_use = "a call does nothing until `execute` is called"]
pub struct Call<C = JsonCodec, H = NoHook> {
    engine: Engine,
    call: engine::Call<C, H>,
}

impl<C, H> Call<C, H> {
    /// Encodes the value with this codec instead of JSON.
    pub fn codec<D>(self, codec: D) -> Call<D, H> {
        Call { engine: self.engine, call: self.call.codec(codec) }
    }

    /// Passes the value to `hook` when the completion is refused because another owner took over
    /// (CMP-2).
    pub fn on_fenced<F>(self, hook: F) -> Call<C, engine::Hook<F>> {
        Call { engine: self.engine, call: self.call.on_fenced(hook) }
    }

    /// Overrides the configured policy for a failed completion (CMP-4).
    pub fn completion(self, policy: CompletionFailurePolicy) -> Self {
        Call { call: self.call.completion(policy), engine: self.engine }
    }

    /// Runs the action on this thread.
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub fn execute<T, E>(
        self,
        action: impl FnOnce() -> Result<T, E>,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
    {
        self.execute_with(|_| action())
    }

    /// Like [`execute`](Self::execute), but also passes the lease to the action.
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub fn execute_with<T, E>(
        self,
        action: impl FnOnce(Lease) -> Result<T, E>,
    ) -> Result<Outcome<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
    {
        self.report(action).map(|report| report.outcome)
    }

    /// Like [`execute_with`](Self::execute_with), but also reports whether the result was recorded
    /// (CMP-4).
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub fn report<T, E>(
        self,
        action: impl FnOnce(Lease) -> Result<T, E>,
    ) -> Result<Report<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
    {
        let Self { engine, call } = self;
        let entry = engine.enter().map_err(ExecuteError::Store)?;
        call.report_blocking(&entry, action)
    }
}
