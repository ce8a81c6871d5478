// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Engine`], [`Call`] and [`HeldLease`], blocking.

use std::future::Future;
use std::sync::Arc;
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

/// Runs a unit of work once per (scope, key), blocking its caller. Cheap to clone; clones are the
/// same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    engine: IdempotencyEngine,
    runtime: Arc<Owned>,
}

/// The runtime of an engine. Its drop does not wait, so that an engine may be dropped anywhere.
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
                Error::new(ErrorKind::Unexpected, "no thread could be started for the heartbeat")
                    .because(error)
            })?;
        Ok(Self(Some(runtime)))
    }

    /// Permission to block on the runtime.
    fn enter(&self) -> Result<RuntimeEntry<'_>> {
        if Handle::try_current().is_ok() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a blocking call was made inside a tokio runtime, which it would stall; use the \
                 async form, `IdempotencyEngine` and `retryproof::connect`, there, or a thread \
                 of `std::thread` (`spawn_blocking` is inside too)",
            ));
        }
        match &self.0 {
            Some(runtime) => Ok(RuntimeEntry(runtime)),
            None => Err(Error::new(ErrorKind::ShuttingDown, "the engine's runtime is gone")),
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

/// Runs `work` to its end, in a runtime made for it.
///
/// # Errors
/// Those of `work`; `Unsupported` inside a runtime; `Unexpected` when the operating system gives no
/// thread.
#[doc(hidden)]
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Owned::start()?.enter()?.block_on(work)
}

/// Permission to block: this thread is in no runtime.
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
    /// An engine with every setting at its default.
    ///
    /// # Errors
    /// `Unexpected` when the operating system gives no thread for the heartbeat.
    pub fn new(store: impl Into<SharedStore>) -> Result<Self> {
        Self::over(IdempotencyEngine::new(store))
    }

    /// The blocking form of an engine that was built with settings. No other runtime may use that
    /// engine.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn over(engine: IdempotencyEngine) -> Result<Self> {
        Ok(Self { engine, runtime: Arc::new(Owned::start()?) })
    }

    /// Runs `make` in the runtime that the blocking form keeps, and takes the engine from it. A
    /// store on a server connects there, and its connections live as long as the engine.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of `make`; `Unsupported` inside a runtime.
    pub fn make(make: impl Future<Output = Result<IdempotencyEngine>>) -> Result<Self> {
        let runtime = Owned::start()?;
        let engine = runtime.enter()?.block_on(make)?;
        Ok(Self { engine, runtime: Arc::new(runtime) })
    }

    /// The engine itself.
    #[must_use]
    pub fn engine(&self) -> &IdempotencyEngine {
        &self.engine
    }

    pub(super) fn enter(&self) -> Result<RuntimeEntry<'_>> {
        self.runtime.enter()
    }

    /// As [`IdempotencyEngine::execute`]: runs `action` on this thread, once for the context's
    /// identity.
    ///
    /// # Errors
    /// See [`ExecuteError`]; `Store` of kind `Unsupported` inside a runtime.
    ///
    /// # Panics
    /// A panic of the action resumes after the key was freed.
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

    /// As [`execute`](Self::execute), and passes the lease to the action.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
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

    /// Starts a call with options.
    pub fn call(&self, ctx: IdempotencyContext) -> Call {
        Call { engine: self.clone(), call: self.engine.call(ctx) }
    }

    /// As [`IdempotencyEngine::try_acquire`].
    ///
    /// # Errors
    /// As there; `Unsupported` inside a runtime.
    pub fn try_acquire(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        Ok(match self.enter()?.block_on(self.engine.try_acquire(ctx))? {
            engine::Acquisition::Granted(held) => {
                Acquisition::Granted(HeldLease { held, engine: self.clone() })
            }
            engine::Acquisition::Complete(stored) => Acquisition::Complete(stored),
            engine::Acquisition::InFlight(busy) => Acquisition::InFlight(busy),
        })
    }

    /// As [`IdempotencyEngine::health`].
    ///
    /// # Errors
    /// As there; `Unsupported` inside a runtime.
    pub fn health(&self) -> Result<()> {
        self.enter()?.block_on(self.engine.health())
    }

    /// As [`IdempotencyEngine::purge`].
    ///
    /// # Errors
    /// As there; `Unsupported` inside a runtime.
    pub fn purge(&self) -> Result<Option<usize>> {
        self.enter()?.block_on(self.engine.purge())
    }

    /// As [`IdempotencyEngine::shutdown`].
    ///
    /// # Errors
    /// `Unsupported` inside a runtime.
    pub fn shutdown(&self, deadline: Duration) -> Result<usize> {
        Ok(self.enter()?.block_on(self.engine.shutdown(deadline)))
    }
}

impl AsRef<Engine> for Engine {
    fn as_ref(&self) -> &Engine {
        self
    }
}

/// What [`Engine::try_acquire`] found.
#[derive(Debug)]
#[must_use]
pub enum Acquisition {
    /// The caller has the lease, and its heartbeat runs.
    Granted(HeldLease),
    /// The work is done; here is its result.
    Complete(StoredResult),
    /// Another caller holds the key, and the wait is over.
    InFlight(InFlight),
}

/// A granted lease; see [`crate::HeldLease`].
#[derive(Debug)]
pub struct HeldLease {
    held: engine::HeldLease,
    engine: Engine,
}

impl HeldLease {
    /// The lease, to pass to the work.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.held.lease()
    }

    /// As [`crate::HeldLease::complete`]. `Unconfirmed` inside a runtime; the completion is
    /// finished in the background then.
    pub fn complete(self, value: Payload) -> CompletionResult {
        let completing = self.held.complete(value);
        match self.engine.enter() {
            Ok(entry) => entry.block_on(completing),
            Err(error) => CompletionResult::Unconfirmed(error),
        }
    }

    /// As [`crate::HeldLease::complete_tombstone`]. `Unconfirmed` inside a runtime; the completion
    /// is finished in the background then.
    pub fn complete_tombstone(self, tombstone: Tombstone) -> CompletionResult {
        let completing = self.held.complete_tombstone(tombstone);
        match self.engine.enter() {
            Ok(entry) => entry.block_on(completing),
            Err(error) => CompletionResult::Unconfirmed(error),
        }
    }

    /// As [`crate::HeldLease::release`].
    ///
    /// # Errors
    /// As there; `Unsupported` inside a runtime, and then the release is finished in the
    /// background.
    pub fn release(self) -> Result<()> {
        let releasing = self.held.release();
        self.engine.enter()?.block_on(releasing)
    }

    pub(super) fn into_parts(self) -> (engine::HeldLease, Engine) {
        (self.held, self.engine)
    }

    /// As [`crate::HeldLease::hold`].
    pub fn hold(self) {
        self.held.hold();
    }
}

/// One call with its options; see [`crate::Call`].
#[derive(Debug)]
#[must_use = "a call does nothing until `execute`"]
pub struct Call<C = JsonCodec, H = NoHook> {
    engine: Engine,
    call: engine::Call<C, H>,
}

impl<C, H> Call<C, H> {
    /// Encodes the value by another codec.
    pub fn codec<D>(self, codec: D) -> Call<D, H> {
        Call { engine: self.engine, call: self.call.codec(codec) }
    }

    /// Hands the value to `hook` when the completion is refused because another owner took over
    /// (CMP-2).
    pub fn on_fenced<F>(self, hook: F) -> Call<C, engine::Hook<F>> {
        Call { engine: self.engine, call: self.call.on_fenced(hook) }
    }

    /// Chooses what a failed completion does, instead of the configured policy (CMP-4).
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

    /// As [`execute`](Self::execute), and passes the lease to the action.
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

    /// As [`execute_with`](Self::execute_with), and reports whether the result was recorded
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
