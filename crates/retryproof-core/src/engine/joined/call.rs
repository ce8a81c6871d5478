// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`JoinedCall`]: one joined execution with its options, from acquire to outcome (CMP-7).

use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::JoinedEngine;
use crate::codec::{Codec, JsonCodec, encode};
use crate::config::CompletionFailurePolicy;
use crate::context::IdempotencyContext;
use crate::engine::acquire::Acquisition;
use crate::engine::call::{Call, Guard, OnDrop, Options, failed, in_flight, replay};
use crate::engine::complete::CompletionResult;
use crate::engine::lease::{HeldLease, Lease};
use crate::engine::{Hook, NoHook, OnFenced};
use crate::error::{Error, Result};
use crate::observe::Phase;
use crate::outcome::{CompletionError, ExecuteError, Outcome, Recorded, Report};
use crate::panics::{Panic, catch_panic, catch_panic_of};
use crate::payload::Tombstone;

/// One joined call with its options; made by [`JoinedEngine::call`].
#[derive(Debug)]
#[must_use = "a call does nothing until `execute`"]
pub struct JoinedCall<T, C = JsonCodec, H = NoHook> {
    pub(super) joined: JoinedEngine<T>,
    pub(super) call: Call<C, H>,
}

impl<T, C, H> JoinedCall<T, C, H> {
    /// Carries the value by another codec.
    pub fn codec<D>(self, codec: D) -> JoinedCall<T, D, H> {
        JoinedCall { joined: self.joined, call: self.call.codec(codec) }
    }

    /// Hands the value to `hook` when the completion is refused because another owner took over
    /// (CMP-2). What was written in the transaction is rolled back; this is for effects elsewhere.
    pub fn on_fenced<F>(self, hook: F) -> JoinedCall<T, C, Hook<F>> {
        JoinedCall { joined: self.joined, call: self.call.on_fenced(hook) }
    }
}

impl<T: Send + 'static, C, H> JoinedCall<T, C, H> {
    /// See [`JoinedEngine::execute`].
    ///
    /// # Errors
    /// As there.
    pub async fn execute<V, E, F>(self, action: F) -> Result<Outcome<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(&mut T) -> Result<V, E>,
    {
        self.report(action).await.map(|report| report.outcome)
    }

    /// As [`execute`](Self::execute), with the lease in the action's hands.
    ///
    /// # Errors
    /// As there.
    pub async fn execute_with<V, E, F>(self, action: F) -> Result<Outcome<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: AsyncFnOnce(Lease, &mut T) -> Result<V, E>,
    {
        self.run(action).await.map(|report| report.outcome)
    }

    /// As [`execute`](Self::execute), and says what became of the record (CMP-4).
    ///
    /// # Errors
    /// As there.
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
        let held = match engine.try_acquire(&ctx).await.map_err(ExecuteError::Store)? {
            Acquisition::Granted(held) => held,
            Acquisition::Complete(stored) => return replay(&stored, &ctx, &options.codec),
            Acquisition::InFlight(busy) => return Ok(in_flight(busy, false)),
        };
        let lease = held.lease().clone();
        let mut guard = rolling_back(held);
        let opened = joined.begin().await;
        let mut tx = match opened {
            Ok(tx) => tx,
            Err(error) => return Err(not_opened(guard.held.take(), error).await),
        };
        let limit = joined.source.open_at_most(&tx);
        let returned = {
            let acting = pin!(action(lease, &mut tx));
            let acting = catch_panic_of(acting);
            match limit {
                None => Ok(acting.await),
                // Dropped at the limit: the open transaction held up the beats of other keys.
                Some(limit) => timeout(limit, acting).await.map_err(|_| open_too_long(limit)),
            }
        };
        match returned {
            Ok(returned) => conclude(&joined, &ctx, options, guard, tx, returned).await,
            Err(error) => {
                let error = error.during("commit").for_identity(ctx.identity());
                tracing::error!(%error, "a joined completion failed; its transaction is rolled back");
                undo(&joined, guard, tx, Phase::RolledBack).await;
                Err(ExecuteError::Completion(CompletionError::new(error, Recorded::No)))
            }
        }
    }

    /// As [`report`](Self::report), for an action that blocks.
    #[cfg(feature = "blocking")]
    pub(crate) fn report_blocking<V, E, F>(
        self,
        runtime: &crate::blocking::Entry<'_>,
        action: F,
    ) -> Result<Report<V>, ExecuteError<E>>
    where
        C: Codec<V>,
        H: OnFenced<V>,
        F: FnOnce(Lease, &mut T) -> Result<V, E>,
    {
        let Self { joined, call: Call { engine, ctx, options } } = self;
        let held = match runtime.block_on(engine.try_acquire(&ctx)).map_err(ExecuteError::Store)? {
            Acquisition::Granted(held) => held,
            Acquisition::Complete(stored) => return replay(&stored, &ctx, &options.codec),
            Acquisition::InFlight(busy) => return Ok(in_flight(busy, false)),
        };
        let mut tx = match runtime.block_on(joined.begin()) {
            Ok(tx) => tx,
            Err(error) => return Err(runtime.block_on(not_opened(Some(held), error))),
        };
        let returned = catch_panic(|| action(held.lease().clone(), &mut tx));
        runtime.block_on(conclude(&joined, &ctx, options, rolling_back(held), tx, returned))
    }
}

/// The whole effect of a joined action is the transaction's, and a drop rolls that back: so it
/// frees the key too.
fn rolling_back(held: HeldLease) -> Guard {
    let mut guard = Guard::new(held, OnDrop::Release);
    guard.freed_as = Phase::RolledBack;
    guard
}

fn open_too_long(limit: Duration) -> Error {
    Error::unavailable(
        "the transaction was open for so long that its store holds up the beats of other keys; \
         it was rolled back: open it later, or give longer leases",
    )
    .with("limit", format_args!("{limit:?}"))
}

/// Rolls back, then frees the key. Dropped meanwhile, the transaction and the guard do it.
async fn undo<T: Send + 'static>(joined: &JoinedEngine<T>, mut guard: Guard, tx: T, phase: Phase) {
    guard.freed_as = phase;
    joined.roll_back(tx).await;
    if let Some(held) = guard.held.take() {
        // A failing release never hides the action's error; it was logged (RUN-4).
        let _ = held.release_after(phase).await;
    }
}

/// No transaction was to be had, so nothing ran: the key is free again.
async fn not_opened<E>(held: Option<HeldLease>, error: Error) -> ExecuteError<E> {
    if let Some(held) = held {
        let error = error.for_identity(held.lease().identity());
        let _ = held.release_after(Phase::RolledBack).await;
        return ExecuteError::Store(error);
    }
    ExecuteError::Store(error)
}

/// From what the action returned to the outcome: rolls back and releases, or writes the record and
/// commits.
async fn conclude<T, V, E, C, H>(
    joined: &JoinedEngine<T>,
    ctx: &IdempotencyContext,
    options: Options<C, H>,
    mut guard: Guard,
    tx: T,
    returned: Result<Result<V, E>, Panic>,
) -> Result<Report<V>, ExecuteError<E>>
where
    T: Send + 'static,
    C: Codec<V>,
    H: OnFenced<V>,
{
    let value = match returned {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            let lease = guard.held.as_ref().map(|held| held.lease().clone());
            undo(joined, guard, tx, Phase::Action).await;
            return Err(failed(lease, error));
        }
        Err(panic) => {
            undo(joined, guard, tx, Phase::Panic).await;
            resume_unwind(panic);
        }
    };
    let Some(held) = guard.held.take() else { return Err(ExecuteError::LeaseLost) };
    let (finished, unencodable) = match encode(&options.codec, &value) {
        Ok(payload) => (joined.commit(tx, held, payload).await, None),
        // CMP-9: the work is done and stands, so that it must not run again.
        Err(error) => (joined.commit_tombstone(tx, held, Tombstone::new()).await, Some(error)),
    };
    let unrecorded =
        |error, recorded| Err(ExecuteError::Completion(CompletionError::new(error, recorded)));
    match (finished, unencodable) {
        (CompletionResult::Recorded, None) => {
            Ok(Report { outcome: Outcome::Executed(value), recorded: Recorded::Yes, fenced: false })
        }
        (CompletionResult::Recorded, Some(error)) | (CompletionResult::Tombstoned(error), _) => {
            // The writes stand, so the policy has a say again.
            tracing::error!(identity = %ctx.identity(), %error, policy = ?options.policy, "completion failed");
            match options.policy {
                CompletionFailurePolicy::LogAndReturn => Ok(Report {
                    outcome: Outcome::Executed(value),
                    recorded: Recorded::Tombstone,
                    fenced: false,
                }),
                CompletionFailurePolicy::Propagate => unrecorded(error, Recorded::Tombstone),
            }
        }
        (CompletionResult::NotOwner, _) => {
            options.hook.fenced(value);
            Err(ExecuteError::LeaseLost)
        }
        (CompletionResult::RolledBack(error) | CompletionResult::Unconfirmed(error), _) => {
            unrecorded(error, Recorded::No)
        }
    }
}
