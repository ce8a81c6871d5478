// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Call`]: one execution with its options, from acquire to outcome.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;

use super::IdempotencyEngine;
use super::acquire::Acquisition;
use super::complete::CompletionResult;
use super::lease::{HeldLease, Lease};
use crate::codec::{Codec, JsonCodec, decode, encode};
use crate::config::CompletionFailurePolicy;
use crate::context::IdempotencyContext;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Phase;
use crate::outcome::{CompletionError, ExecuteError, Outcome, Recorded, Report};
use crate::panics::{Panic, catch_panic, catch_panic_of};
use crate::payload::{Opened, StoredResult, Tombstone};

mod options;

pub(super) use options::Options;
pub use options::{Hook, NoHook, OnDrop, OnFenced};

/// One call with its options; made by [`IdempotencyEngine::call`].
#[derive(Debug)]
#[must_use = "a call does nothing until `execute` or `spawn`"]
pub struct Call<C = JsonCodec, H = NoHook> {
    pub(super) engine: IdempotencyEngine,
    pub(super) ctx: IdempotencyContext,
    pub(super) options: Options<C, H>,
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
    /// Carries the value by another codec.
    pub fn codec<D>(self, codec: D) -> Call<D, H> {
        let Options { hook, on_drop, policy, .. } = self.options;
        Call {
            engine: self.engine,
            ctx: self.ctx,
            options: Options { codec, hook, on_drop, policy },
        }
    }

    /// Hands the value to `hook` when the completion is refused because another owner took over
    /// (CMP-2).
    pub fn on_fenced<F>(self, hook: F) -> Call<C, Hook<F>> {
        let Options { codec, on_drop, policy, .. } = self.options;
        Call {
            engine: self.engine,
            ctx: self.ctx,
            options: Options { codec, hook: Hook(hook), on_drop, policy },
        }
    }

    /// Chooses what a drop after the action's first poll does (RUN-5).
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Chooses what a failed completion does, instead of the configured policy (CMP-4).
    pub fn completion(mut self, policy: CompletionFailurePolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Runs the action in line; it may borrow. See [`IdempotencyEngine::execute`].
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

    /// As [`execute`](Self::execute), with the lease in the action's hands.
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

    /// As [`execute_with`](Self::execute_with), and says what became of the record (CMP-4).
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
        match engine.try_acquire(&ctx).await.map_err(ExecuteError::Store)? {
            Acquisition::Granted(held) => run(&engine, &ctx, options, held, action).await,
            Acquisition::Complete(stored) => replay(&stored, &ctx, &options.codec),
            Acquisition::InFlight(busy) => Ok(in_flight(busy, false)),
        }
    }

    /// As [`report`](Self::report), for an action that blocks: it runs between two entries into a
    /// runtime, never inside one.
    #[cfg(feature = "blocking")]
    pub(crate) fn report_blocking<T, E, F>(
        self,
        runtime: &crate::blocking::Entry<'_>,
        action: F,
    ) -> Result<Report<T>, ExecuteError<E>>
    where
        C: Codec<T>,
        H: OnFenced<T>,
        F: FnOnce(Lease) -> Result<T, E>,
    {
        let Self { engine, ctx, options } = self;
        let held = match runtime.block_on(engine.try_acquire(&ctx)).map_err(ExecuteError::Store)? {
            Acquisition::Granted(held) => held,
            Acquisition::Complete(stored) => return replay(&stored, &ctx, &options.codec),
            Acquisition::InFlight(busy) => return Ok(in_flight(busy, false)),
        };
        let lease = held.lease().clone();
        let returned = catch_panic(|| action(lease));
        runtime.block_on(conclude(&engine, &ctx, options, held, returned))
    }

    /// Runs the action on a tracked task of its own. See [`IdempotencyEngine::spawn`].
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

    /// As [`spawn`](Self::spawn), with the lease in the action's hands.
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
        let mut held = match engine.try_acquire_tracked(&ctx).await.map_err(ExecuteError::Store)? {
            Acquisition::Granted(held) => held,
            Acquisition::Complete(stored) => {
                return replay(&stored, &ctx, &options.codec).map(|r| r.outcome);
            }
            Acquisition::InFlight(busy) => return Ok(Outcome::InFlight(busy)),
        };
        let permit = held.take_permit();
        // Guarded before the spawn: a task that is dropped unpolled, with its runtime, releases.
        let guard = Guard::new(held, options.on_drop);
        let task = tokio::spawn(async move {
            let result = run_guarded(&engine, &ctx, options, guard, action).await;
            drop(permit);
            result
        });
        match task.await {
            Ok(result) => result.map(|report| report.outcome),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(ExecuteError::Store(Error::new(
                    ErrorKind::ShuttingDown,
                    "the runtime went away",
                ))),
            },
        }
    }
}

/// What the end of an execution does when it comes as a drop (RUN-5).
pub(super) struct Guard {
    pub(super) held: Option<HeldLease>,
    /// Whether the action has been polled.
    polled: bool,
    on_drop: OnDrop,
    /// What observers are told when a drop frees the key.
    pub(super) freed_as: Phase,
}

impl Guard {
    pub(super) fn new(held: HeldLease, on_drop: OnDrop) -> Self {
        Self { held: Some(held), polled: false, on_drop, freed_as: Phase::Released }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let free = !self.polled || self.on_drop == OnDrop::Release;
        if free && !held.lease().holds_on_error() {
            held.release_soon(self.freed_as);
        }
    }
}

async fn run<T, E, F, Fut, C, H>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    options: Options<C, H>,
    held: HeldLease,
    action: F,
) -> Result<Report<T>, ExecuteError<E>>
where
    C: Codec<T>,
    H: OnFenced<T>,
    F: FnOnce(Lease) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let guard = Guard::new(held, options.on_drop);
    run_guarded(engine, ctx, options, guard, action).await
}

async fn run_guarded<T, E, F, Fut, C, H>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    options: Options<C, H>,
    mut guard: Guard,
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
        Some(lease) => match catch_panic(|| action(lease)) {
            Ok(running) => catch_panic_of(pin!(running)).await,
            // The closure may do work of its own before it returns the future.
            Err(panic) => Err(panic),
        },
        None => return Err(ExecuteError::LeaseLost),
    };
    let Some(held) = guard.held.take() else { return Err(ExecuteError::LeaseLost) };
    conclude(engine, ctx, options, held, returned).await
}

/// From what the action returned to the outcome: releases, or encodes and completes.
async fn conclude<T, E, C, H>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    options: Options<C, H>,
    held: HeldLease,
    returned: Result<Result<T, E>, Panic>,
) -> Result<Report<T>, ExecuteError<E>>
where
    C: Codec<T>,
    H: OnFenced<T>,
{
    let value = match returned {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            let lease = held.lease().clone();
            // A failing release never hides the action's error; it was logged (RUN-4).
            let _ = held.release_after(Phase::Action).await;
            return Err(failed(Some(lease), error));
        }
        Err(panic) => {
            let _ = held.release_after(Phase::Panic).await;
            resume_unwind(panic);
        }
    };
    let (finished, unencodable) = match encode(&options.codec, &value) {
        Ok(payload) => (held.complete(payload).await, None),
        Err(error) => (held.complete_tombstone(Tombstone::new()).await, Some(error)),
    };
    let (error, recorded) = match (finished, unencodable) {
        (CompletionResult::Recorded, None) => {
            return Ok(Report {
                outcome: Outcome::Executed(value),
                recorded: Recorded::Yes,
                fenced: false,
            });
        }
        (CompletionResult::NotOwner, _) => {
            options.hook.fenced(value);
            return answer_fenced(engine, ctx, &options.codec).await;
        }
        (CompletionResult::Recorded, Some(error)) | (CompletionResult::Tombstoned(error), _) => {
            (error, Recorded::Tombstone)
        }
        (CompletionResult::Unconfirmed(error) | CompletionResult::RolledBack(error), _) => {
            (error, Recorded::No)
        }
    };
    let failure = CompletionError::new(error, recorded);
    tracing::error!(identity = %ctx.identity(), error = %failure, policy = ?options.policy, "completion failed");
    match options.policy {
        CompletionFailurePolicy::LogAndReturn => {
            Ok(Report { outcome: Outcome::Executed(value), recorded, fenced: false })
        }
        CompletionFailurePolicy::Propagate => Err(ExecuteError::Completion(failure)),
    }
}

/// RUN-4: the error of an action whose lease has ended.
pub(super) fn failed<E>(lease: Option<Lease>, error: E) -> ExecuteError<E> {
    match lease.filter(Lease::holds_on_error) {
        Some(lease) => ExecuteError::Held { error, remaining: lease.remaining() },
        None => ExecuteError::Action(error),
    }
}

/// CMP-2: the caller of a refused completion is answered like a duplicate.
async fn answer_fenced<T, E, C: Codec<T>>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    codec: &C,
) -> Result<Report<T>, ExecuteError<E>> {
    match engine.answer_fenced(ctx).await {
        Ok(Ok(stored)) => {
            replay(&stored, ctx, codec).map(|report| Report { fenced: true, ..report })
        }
        Ok(Err(busy)) => Ok(in_flight(busy, true)),
        Err(error) => Err(ExecuteError::Completion(CompletionError::new(error, Recorded::No))),
    }
}

pub(super) fn in_flight<T>(busy: crate::outcome::InFlight, fenced: bool) -> Report<T> {
    Report { outcome: Outcome::InFlight(busy), recorded: Recorded::No, fenced }
}

pub(super) fn replay<T, E, C: Codec<T>>(
    stored: &StoredResult,
    ctx: &IdempotencyContext,
    codec: &C,
) -> Result<Report<T>, ExecuteError<E>> {
    let named = |error: Error| error.for_identity(ctx.identity());
    match stored.open(ctx.fingerprint()).map_err(|error| ExecuteError::Store(named(error)))? {
        Opened::Value(payload) => {
            let value =
                decode(codec, &payload).map_err(|error| ExecuteError::Codec(named(error)))?;
            Ok(Report { outcome: Outcome::Replayed(value), recorded: Recorded::Yes, fenced: false })
        }
        Opened::Tombstone(tombstone) => Err(ExecuteError::NotReplayable(tombstone)),
        Opened::Mismatch => Err(ExecuteError::Mismatch),
    }
}
