// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Call`]: one execution with its options, from acquire to outcome.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;

use tracing::Instrument as _;

use super::IdempotencyEngine;
use super::lease::{HeldLease, Lease};
use super::nested::{poll_inside, run_inside};
use super::span;
use crate::codec::{Codec, JsonCodec};
use crate::config::CompletionFailurePolicy;
use crate::context::IdempotencyContext;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Phase;
use crate::outcome::{ExecuteError, Outcome, Report};
use crate::panics::{catch_panic, catch_panic_of};

use ending::Alone;

mod ending;
mod options;

pub(super) use ending::{CompletionRecorder, end, granted, undo};
pub(super) use options::Options;
pub use options::{Hook, NoHook, OnDrop, OnFenced};

/// One call with its options, created by [`IdempotencyEngine::call`].
/// ```
/// use retryproof_core::{BytesCodec, IdempotencyContext, IdempotencyEngine, OnDrop, Outcome};
/// # use retryproof_memory::MemoryStore;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = IdempotencyEngine::new(MemoryStore::new());
/// let ctx = IdempotencyContext::builder("thumbnails", "image-3").build()?;
/// let outcome = engine
///     .call(ctx)
///     .codec(BytesCodec) // the value is bytes already
///     .on_drop(OnDrop::Release) // an unfinished thumbnail leaves no trace
///     .execute(|| async { Ok::<_, std::io::Error>(b"pixels".to_vec()) })
///     .await?;
/// assert_eq!(outcome, Outcome::Executed(b"pixels".to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a call does nothing until `execute` or `spawn` is called"]
pub struct Call<C = JsonCodec, H = NoHook> {
    pub(super) engine: IdempotencyEngine,
    pub(super) ctx: IdempotencyContext,
    pub(super) options: Options<C, H>,
}

/// Awaits a future on a thread outside every runtime, for the blocking forms of a call.
#[cfg(feature = "blocking")]
pub(crate) trait BlockOn {
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

impl Call {
    pub(super) fn new(engine: IdempotencyEngine, ctx: IdempotencyContext) -> Self {
        let policy = engine.config().completion_failure_policy;
        let options =
            Options { codec: JsonCodec, hook: NoHook, on_drop: OnDrop::default(), policy };
        Self { engine, ctx, options }
    }
}

impl<C, H> Call<C, H> {
    /// Encodes the value with this codec instead of JSON.
    pub fn codec<D>(self, codec: D) -> Call<D, H> {
        let Options { hook, on_drop, policy, .. } = self.options;
        Call {
            engine: self.engine,
            ctx: self.ctx,
            options: Options { codec, hook, on_drop, policy },
        }
    }

    /// Passes the value to `hook` when the completion is refused because another owner took over
    /// (CMP-2), unless the call gets the value after all, because no record is left (CMP-4).
    ///
    /// The hook runs when the call's answer is known: up to one wait timeout and one
    /// `operation-timeout` after the refusal. If the call is dropped before, its drop runs the
    /// hook, so the hook must not panic. If the process dies before, the hook does not run.
    pub fn on_fenced<F>(self, hook: F) -> Call<C, Hook<F>> {
        let Options { codec, on_drop, policy, .. } = self.options;
        Call {
            engine: self.engine,
            ctx: self.ctx,
            options: Options { codec, hook: Hook(hook), on_drop, policy },
        }
    }

    /// Sets what happens if the call is dropped after the action's first poll (RUN-5).
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Overrides the configured policy for a failed completion (CMP-4).
    pub fn completion(mut self, policy: CompletionFailurePolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Runs the action within this call's future, so the action can borrow local values. See
    /// [`IdempotencyEngine::execute`].
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub async fn execute<T, E, F, Fut>(self, action: F) -> Result<Outcome<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.report(|_| action()).await.map(|report| report.outcome)
    }

    /// Like [`execute`](Self::execute), but also passes the lease to the action.
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub async fn execute_with<T, E, F, Fut>(self, action: F) -> Result<Outcome<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.report(action).await.map(|report| report.outcome)
    }

    /// Like [`execute_with`](Self::execute_with), but also reports whether the result was recorded
    /// (CMP-4).
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub async fn report<T, E, F, Fut>(self, action: F) -> Result<Report<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let Self { engine, ctx, options } = self;
        let span = span::of_call(&ctx);
        let acquired = span::run_in(&span, || engine.acquire(&ctx)).await;
        match span.in_scope(|| granted(&engine, &ctx, &options.codec, acquired)) {
            Ok(held) => {
                let guard = DropGuard::new(held, options.on_drop, Phase::Released);
                span::run_in(&span, || run(&engine, &ctx, options, guard, action)).await
            }
            Err(answer) => answer,
        }
    }

    /// Like [`report`](Self::report), but for a blocking action. The action runs outside every
    /// runtime, between two calls that block on a runtime.
    #[cfg(feature = "blocking")]
    pub(crate) fn report_blocking<T, E, F>(
        self,
        runtime: &impl BlockOn,
        action: F,
    ) -> Result<Report<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
        F: FnOnce(Lease) -> Result<T, E>,
    {
        let Self { engine, ctx, options } = self;
        let _in_span = span::of_call(&ctx).entered();
        let acquired = runtime.block_on(engine.acquire(&ctx));
        let held = match granted(&engine, &ctx, &options.codec, acquired) {
            Ok(held) => held,
            Err(answer) => return answer,
        };
        let lease = held.lease().clone();
        let returned = span::of_action()
            .in_scope(|| catch_panic(|| run_inside(held.lease(), || action(lease))));
        let guard = DropGuard::new(held, options.on_drop, Phase::Released);
        runtime.block_on(end(&engine, &ctx, options, guard, Alone, returned))
    }

    /// Runs the action on a separate, tracked task. See [`IdempotencyEngine::spawn`].
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub async fn spawn<T, E, F, Fut>(self, action: F) -> Result<Outcome<T>, ExecuteError<E>>
    where
        C: Codec<T> + 'static,
        H: OnFenced<T> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.spawn_with(|_| action()).await
    }

    /// Like [`spawn`](Self::spawn), but also passes the lease to the action.
    ///
    /// # Errors
    /// See [`ExecuteError`].
    pub async fn spawn_with<T, E, F, Fut>(self, action: F) -> Result<Outcome<T>, ExecuteError<E>>
    where
        C: Codec<T> + 'static,
        H: OnFenced<T> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(Lease) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let Self { engine, ctx, options } = self;
        let span = span::of_call(&ctx);
        let acquired = span::run_in(&span, || engine.acquire_tracked(&ctx)).await;
        let mut held = match span.in_scope(|| granted(&engine, &ctx, &options.codec, acquired)) {
            Ok(held) => held,
            Err(answer) => return answer.map(|report| report.outcome),
        };
        let permit = held.take_permit();
        // The guard is created before the spawn, so that the key is also released if the runtime
        // drops the task before its first poll.
        let guard = DropGuard::new(held, options.on_drop, Phase::Released);
        let running = async move {
            let result = run(&engine, &ctx, options, guard, action).await;
            drop(permit);
            result
        };
        let task = tokio::spawn(running.instrument(span));
        match task.await {
            Ok(result) => result.map(|report| report.outcome),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(ExecuteError::Store(Error::new(
                    ErrorKind::ShuttingDown,
                    "the runtime shut down before the action ended",
                ))),
            },
        }
    }
}

/// Owns the lease of a running execution, and decides what happens to the lease on a drop (RUN-5).
pub(super) struct DropGuard {
    held: Option<HeldLease>,
    /// Whether the action has been polled.
    polled: bool,
    on_drop: OnDrop,
    /// The phase that is reported to observers when a drop frees the key.
    freed_as: Phase,
}

impl DropGuard {
    pub(super) fn new(held: HeldLease, on_drop: OnDrop, freed_as: Phase) -> Self {
        Self { held: Some(held), polled: false, on_drop, freed_as }
    }

    pub(super) fn frees_as(&mut self, phase: Phase) {
        self.freed_as = phase;
    }

    /// Takes the lease. The caller then has to end it.
    pub(super) fn take(&mut self) -> Option<HeldLease> {
        self.held.take()
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let free = !self.polled || self.on_drop == OnDrop::Release;
        if free && !held.lease().holds_on_error() {
            held.release_soon(self.freed_as);
        }
    }
}

/// Runs the action under its lease, then ends the lease.
async fn run<T, E, F, Fut, C, H>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    options: Options<C, H>,
    mut guard: DropGuard,
    action: F,
) -> Result<Report<T>, ExecuteError<E>>
where
    C: Codec<T>,
    H: OnFenced<T>,
    F: FnOnce(Lease) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    guard.polled = true;
    let returned = match guard.held.as_ref().map(|held| held.lease().clone()) {
        Some(lease) => {
            let inside = lease.clone();
            match catch_panic(|| run_inside(&inside, || action(lease))) {
                Ok(running) => {
                    let running = pin!(running);
                    catch_panic_of(pin!(poll_inside(inside, running))).await
                }
                // The closure can panic before it returns the future.
                Err(panic) => Err(panic),
            }
        }
        None => return Err(ExecuteError::LeaseLost),
    };
    end(engine, ctx, options, guard, Alone, returned).await
}
