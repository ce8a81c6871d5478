// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`JoinedCall`]: one joined execution with its options, from acquire to outcome (CMP-7).

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::JoinedEngine;
use crate::blob::Blob;
use crate::codec::{Codec, JsonCodec};
use crate::context::IdempotencyContext;
use crate::engine::complete::CompletionResult;
use crate::engine::execute::{Call, CompletionRecorder, DropGuard, Options, end, granted, undo};
use crate::engine::lease::{HeldLease, Lease};
use crate::engine::nested::poll_inside;
use crate::engine::span;
use crate::engine::{Hook, IdempotencyEngine, NoHook, OnDrop, OnFenced};
use crate::error::{Error, Result};
use crate::observe::Phase;
use crate::outcome::{CompletionError, ExecuteError, Outcome, Recorded, Report};
use crate::panics::catch_panic_of;

/// One joined call with its options, created by [`JoinedEngine::call`].
#[derive(Debug)]
#[must_use = "a call does nothing until `execute` is called"]
pub struct JoinedCall<T, C = JsonCodec, H = NoHook> {
    pub(super) joined: JoinedEngine<T>,
    pub(super) call: Call<C, H>,
}

impl<T, C, H> JoinedCall<T, C, H> {
    /// Encodes the value with this codec instead of JSON.
    pub fn codec<D>(self, codec: D) -> JoinedCall<T, D, H> {
        JoinedCall { joined: self.joined, call: self.call.codec(codec) }
    }

    /// Passes the value to `hook` when the completion is refused because another owner took over
    /// (CMP-2). The transaction's writes are rolled back, so the hook needs to handle only effects
    /// outside the transaction.
    pub fn on_fenced<F>(self, hook: F) -> JoinedCall<T, C, Hook<F>> {
        JoinedCall { joined: self.joined, call: self.call.on_fenced(hook) }
    }
}

impl<T: Send + 'static, C, H> JoinedCall<T, C, H> {
    /// Runs the action in a transaction; see [`JoinedEngine::execute`].
    ///
    /// # Errors
    /// Same as [`JoinedEngine::execute`].
    pub async fn execute<V, E, F>(self, action: F) -> Result<Outcome<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(&mut T) -> Result<V, E>,
    {
        self.report(action).await.map(|report| report.outcome)
    }

    /// Like [`execute`](Self::execute), but also passes the lease to the action.
    ///
    /// # Errors
    /// Same as [`JoinedEngine::execute`].
    pub async fn execute_with<V, E, F>(self, action: F) -> Result<Outcome<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(Lease, &mut T) -> Result<V, E>,
    {
        self.run(action).await.map(|report| report.outcome)
    }

    /// Like [`execute`](Self::execute), but also reports whether the result was recorded (CMP-4).
    ///
    /// # Errors
    /// Same as [`JoinedEngine::execute`].
    pub async fn report<V, E, F>(self, action: F) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(&mut T) -> Result<V, E>,
    {
        self.run(async |_, tx: &mut T| action(tx).await).await
    }

    async fn run<V, E, F>(self, action: F) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(Lease, &mut T) -> Result<V, E>,
    {
        let Self { joined, call: Call { engine, ctx, options } } = self;
        let span = span::of_call(&ctx);
        let acquired = span::run_in(&span, || engine.acquire(&ctx)).await;
        let held = match span.in_scope(|| granted(&engine, &ctx, &options.codec, acquired)) {
            Ok(held) => held,
            Err(answer) => return answer,
        };
        let running = || Self::run_held(&joined, &engine, &ctx, options, held, action);
        span::run_in(&span, running).await
    }

    /// Runs the action in a transaction, under a granted lease.
    async fn run_held<V, E, F>(
        joined: &JoinedEngine<T>,
        engine: &IdempotencyEngine,
        ctx: &IdempotencyContext,
        options: Options<C, H>,
        held: HeldLease,
        action: F,
    ) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(Lease, &mut T) -> Result<V, E>,
    {
        let lease = held.lease().clone();
        let mut guard = rolling_back(held);
        let mut tx = match joined.begin().await {
            Ok(tx) => tx,
            Err(error) => return Err(not_opened(guard.take(), error).await),
        };
        let limit = joined.source.open_at_most(&tx);
        let returned = {
            let inside = lease.clone();
            let acting = pin!(action(lease, &mut tx));
            let acting = pin!(poll_inside(inside, acting));
            let acting = catch_panic_of(acting);
            match limit {
                None => Ok(acting.await),
                // Drop the action when the limit is reached, because the open transaction could
                // delay the heartbeats of other keys.
                Some(limit) => timeout(limit, acting).await.map_err(|_| open_too_long(limit)),
            }
        };
        match returned {
            Ok(returned) => {
                let recorder = InTransaction { joined, tx };
                end(engine, ctx, options, guard, recorder, returned).await
            }
            Err(error) => {
                let error = error.during("commit").for_identity(ctx.identity());
                tracing::error!(
                    %error, "a joined call failed, and its transaction is being rolled back"
                );
                undo(guard, InTransaction { joined, tx }, Phase::RolledBack).await;
                Err(ExecuteError::Completion(CompletionError::new(error, Recorded::No)))
            }
        }
    }

    /// Like [`report`](Self::report), but for a blocking action.
    #[cfg(feature = "blocking")]
    pub(crate) fn report_blocking<V, E, F>(
        self,
        runtime: &impl crate::engine::BlockOn,
        action: F,
    ) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: FnOnce(Lease, &mut T) -> Result<V, E>,
    {
        let Self { joined, call: Call { engine, ctx, options } } = self;
        let _in_span = span::of_call(&ctx).entered();
        let acquired = runtime.block_on(engine.acquire(&ctx));
        let held = match granted(&engine, &ctx, &options.codec, acquired) {
            Ok(held) => held,
            Err(answer) => return answer,
        };
        let mut tx = match runtime.block_on(joined.begin()) {
            Ok(tx) => tx,
            Err(error) => return Err(runtime.block_on(not_opened(Some(held), error))),
        };
        let lease = held.lease().clone();
        let returned = span::of_action().in_scope(|| {
            crate::panics::catch_panic(|| {
                crate::engine::nested::run_inside(held.lease(), || action(lease, &mut tx))
            })
        });
        let recorder = InTransaction { joined: &joined, tx };
        runtime.block_on(end(&engine, &ctx, options, rolling_back(held), recorder, returned))
    }
}

/// Writes the record in the action's transaction, and commits or rolls back both.
struct InTransaction<'a, T> {
    joined: &'a JoinedEngine<T>,
    tx: T,
}

impl<T: Send + 'static> CompletionRecorder for InTransaction<'_, T> {
    const EFFECTS_STAND: bool = false;

    async fn record(self, held: HeldLease, envelope: Blob, is_tombstone: bool) -> CompletionResult {
        self.joined.record(self.tx, held, envelope, is_tombstone).await
    }

    async fn undo(self) {
        self.joined.roll_back(self.tx).await;
    }
}

/// Guards a joined action. If the action is dropped, the transaction is rolled back, which undoes
/// the action's whole effect. The drop therefore also frees the key, unless the action called
/// `hold_on_error`.
fn rolling_back(held: HeldLease) -> DropGuard {
    DropGuard::new(held, OnDrop::Release, Phase::RolledBack)
}

fn open_too_long(limit: Duration) -> Error {
    Error::unavailable(
        "the transaction was rolled back, because it was open for longer than the limit and could \
         have delayed the heartbeats of other keys; open the transaction later, or use longer \
         leases",
    )
    .with("limit", format_args!("{limit:?}"))
}

/// Frees the key because the transaction could not be opened. The action has not run.
async fn not_opened<E>(held: Option<HeldLease>, error: Error) -> ExecuteError<E> {
    let Some(held) = held else { return ExecuteError::Store(error) };
    let error = error.for_identity(held.lease().identity());
    let _ = held.release_after(Phase::RolledBack).await;
    ExecuteError::Store(error)
}
