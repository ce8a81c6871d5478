// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends an execution: turns what the action returned, or what was stored, into the outcome (CMP-2,
//! CMP-4, CMP-9, RUN-4). Plain and joined executions differ only in their [`CompletionRecorder`].

use std::panic::resume_unwind;

use super::{DropGuard, OnFenced, Options};
use crate::blob::Blob;
use crate::codec::{Codec, decode, encode};
use crate::config::CompletionFailurePolicy;
use crate::context::IdempotencyContext;
use crate::engine::IdempotencyEngine;
use crate::engine::acquire::{Acquisition, EndedAcquire};
use crate::engine::complete::CompletionResult;
use crate::engine::lease::{HeldLease, Lease};
use crate::engine::outcome_event::CallAnswer;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Phase;
use crate::outcome::{CompletionError, ExecuteError, InFlight, Outcome, Recorded, Report};
use crate::panics::Panic;
use crate::payload::{Opened, StoredResult, Tombstone};

/// How the result of an action is recorded.
pub(in crate::engine) trait CompletionRecorder {
    /// Whether the action's effects remain if the record is not written. Only a joined transaction
    /// rolls them back.
    const EFFECTS_STAND: bool;

    /// Records a value or a tombstone, and ends the lease.
    async fn record(self, held: HeldLease, envelope: Blob, is_tombstone: bool) -> CompletionResult;

    /// Undoes the action's writes if possible, by rolling the transaction back.
    async fn undo(self);
}

/// Records the result in a separate store call, after the action's effects.
pub(super) struct Alone;

impl CompletionRecorder for Alone {
    const EFFECTS_STAND: bool = true;

    async fn record(self, held: HeldLease, envelope: Blob, is_tombstone: bool) -> CompletionResult {
        held.record(envelope, is_tombstone).await
    }

    async fn undo(self) {}
}

/// Ends an execution whose action has returned. If the action failed, undoes the action and ends
/// the lease. Otherwise encodes the value and records it.
pub(in crate::engine) async fn end<R, T, E, C, H>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    options: Options<C, H>,
    mut guard: DropGuard,
    recorder: R,
    returned: Result<Result<T, E>, Panic>,
) -> Result<Report<T>, ExecuteError<E>>
where
    R: CompletionRecorder,
    C: Codec<T>,
    H: OnFenced<T>,
{
    let value = match returned {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            let lease = undo(guard, recorder, Phase::Action).await;
            return Err(failed(lease, error));
        }
        Err(panic) => {
            undo(guard, recorder, Phase::Panic).await;
            resume_unwind(panic);
        }
    };
    let Some(held) = guard.take() else { return Err(ExecuteError::LeaseLost) };
    let is_guarded = held.lease().is_guarded();
    let (result, unencodable) = match encode(&options.codec, &value) {
        Ok(payload) => (recorder.record(held, payload.into_envelope(), false).await, None),
        // The value cannot be encoded, but the work is done. Record a tombstone, so that the work
        // does not run again (CMP-9).
        Err(error) => {
            let tombstone = Tombstone::new().into_envelope();
            (recorder.record(held, tombstone, true).await, Some(error))
        }
    };
    let (error, recorded) = match (result, unencodable) {
        // The scope is switched off or in shadow mode, so nothing counts as recorded (CTX-5,
        // CTX-6).
        (CompletionResult::Recorded, _) if !is_guarded => {
            return Ok(executed(value, Recorded::No));
        }
        (CompletionResult::Recorded, None) => {
            return Ok(executed(value, Recorded::Yes));
        }
        (CompletionResult::NotOwner, _) => {
            let refused = Refused::new(value, options.hook);
            if !R::EFFECTS_STAND {
                return Err(ExecuteError::LeaseLost);
            }
            return match engine.answer_fenced(ctx).await {
                Ok(answer) => {
                    drop(refused);
                    answer_of_taker(answer, ctx, &options.codec)
                }
                // No record is left, or the store does not answer.
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    let failure = CompletionError::new(error, Recorded::No);
                    log_failure(ctx, options.policy, &failure);
                    let value = match options.policy {
                        CompletionFailurePolicy::LogAndReturn => refused.into_value(),
                        CompletionFailurePolicy::Propagate => None,
                    };
                    value
                        .map(|value| Report { fenced: true, ..executed(value, Recorded::No) })
                        .ok_or(ExecuteError::Completion(failure))
                }
                // The result of the owner that took over cannot be read (CMP-8).
                Err(error) => Err(ExecuteError::Store(error)),
            };
        }
        (CompletionResult::Recorded, Some(error)) | (CompletionResult::Tombstoned(error), _) => {
            (error, Recorded::Tombstone)
        }
        (CompletionResult::Unconfirmed(error) | CompletionResult::RolledBack(error), _) => {
            (error, Recorded::No)
        }
    };
    let failure = CompletionError::new(error, recorded);
    if recorded == Recorded::No && !R::EFFECTS_STAND {
        // The transaction with the effects and the record was rolled back, or its outcome is
        // unknown. The call therefore fails under every completion policy.
        return Err(ExecuteError::Completion(failure));
    }
    log_failure(ctx, options.policy, &failure);
    match options.policy {
        CompletionFailurePolicy::LogAndReturn => Ok(executed(value, recorded)),
        CompletionFailurePolicy::Propagate => Err(ExecuteError::Completion(failure)),
    }
}

/// Logs that the result of a call was not recorded (CMP-4).
fn log_failure(
    ctx: &IdempotencyContext,
    policy: CompletionFailurePolicy,
    failure: &CompletionError,
) {
    tracing::error!(identity = %ctx.identity(), error = %failure, ?policy,
        "the result of a call was not recorded; `policy` says whether the caller gets the value \
         (LogAndReturn) or an error (Propagate)");
}

/// A value whose completion was refused. Unless the value becomes the call's answer after all, the
/// hook gets it, even if the call is dropped (CMP-2).
struct Refused<T, H: OnFenced<T>>(Option<(T, H)>);

impl<T, H: OnFenced<T>> Refused<T, H> {
    fn new(value: T, hook: H) -> Self {
        Self(Some((value, hook)))
    }

    fn into_value(mut self) -> Option<T> {
        self.0.take().map(|(value, _)| value)
    }
}

impl<T, H: OnFenced<T>> Drop for Refused<T, H> {
    fn drop(&mut self) {
        if let Some((value, hook)) = self.0.take() {
            hook.fenced(value);
        }
    }
}

/// Undoes the action, then frees the key unless the action called [`Lease::hold_on_error`]. Returns
/// the lease. If the future is dropped before it ends, the drop of the recorder and the guard has
/// the same effect.
pub(in crate::engine) async fn undo(
    mut guard: DropGuard,
    recorder: impl CompletionRecorder,
    phase: Phase,
) -> Option<Lease> {
    guard.frees_as(phase);
    recorder.undo().await;
    let held = guard.take()?;
    let lease = held.lease().clone();
    // A failed release is logged and never hides the action's error (RUN-4).
    let _ = held.release_after(phase).await;
    Some(lease)
}

/// Returns the error of an action whose lease has ended (RUN-4).
fn failed<E>(lease: Option<Lease>, error: E) -> ExecuteError<E> {
    match lease.filter(Lease::holds_on_error) {
        Some(lease) => ExecuteError::Held { error, remaining: lease.remaining() },
        None => ExecuteError::Action(error),
    }
}

/// Answers a caller whose completion was refused. The caller gets the same answer as a duplicate
/// (CMP-2).
fn answer_of_taker<T, E, C: Codec<T>>(
    answer: Result<StoredResult, InFlight>,
    ctx: &IdempotencyContext,
    codec: &C,
) -> Result<Report<T>, ExecuteError<E>> {
    let report = match answer {
        Ok(stored) => replay(&stored, ctx, codec)?,
        Err(busy) => in_flight(busy),
    };
    Ok(Report { fenced: true, ..report })
}

fn executed<T>(value: T, recorded: Recorded) -> Report<T> {
    Report { outcome: Outcome::Executed(value), recorded, fenced: false }
}

/// Returns the lease if the call was granted one. Otherwise returns the call's answer as the `Err`.
/// If there is a stored result, reports the answer to the observers (RUN-8). The acquire has
/// reported any other answer.
pub(in crate::engine) fn granted<T, E, C: Codec<T>>(
    engine: &IdempotencyEngine,
    ctx: &IdempotencyContext,
    codec: &C,
    EndedAcquire { acquired, began }: EndedAcquire,
) -> Result<HeldLease, Result<Report<T>, ExecuteError<E>>> {
    match acquired {
        Ok(Acquisition::Granted(held)) => Ok(held),
        Ok(Acquisition::Complete(stored)) => {
            let report = replay(&stored, ctx, codec);
            engine.report_answer(ctx, began, || answer_of(&report, &stored));
            Err(report)
        }
        Ok(Acquisition::InFlight(busy)) => Err(Ok(in_flight(busy))),
        Ok(Acquisition::Mismatch) => Err(Err(ExecuteError::Mismatch)),
        Err(error) => Err(Err(ExecuteError::Store(error))),
    }
}

/// Converts the report for a duplicate of a completed record into the answer for observers.
fn answer_of<'a, T, E>(
    report: &Result<Report<T>, ExecuteError<E>>,
    stored: &'a StoredResult,
) -> CallAnswer<'a> {
    match report {
        Ok(_) => CallAnswer::Replayed(stored.holder()),
        Err(ExecuteError::Mismatch) => CallAnswer::Mismatch,
        Err(ExecuteError::NotReplayable(_)) => CallAnswer::NotReplayable,
        Err(ExecuteError::Store(error) | ExecuteError::Codec(error)) => {
            CallAnswer::Refused(error.kind())
        }
        // A replay returns no other kind of error.
        Err(_) => CallAnswer::Refused(ErrorKind::Unexpected),
    }
}

/// Creates the report for a duplicate if another caller still holds the key.
fn in_flight<T>(busy: InFlight) -> Report<T> {
    Report { outcome: Outcome::InFlight(busy), recorded: Recorded::No, fenced: false }
}

/// Creates the report for a duplicate whose record is complete.
fn replay<T, E, C: Codec<T>>(
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
