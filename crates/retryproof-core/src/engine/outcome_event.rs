// SPDX-License-Identifier: MIT OR Apache-2.0
//! One `tracing` event for the outcome of each call, at the level DEBUG under the target
//! `retryproof::outcome`.
//!
//! Fields: `scope`, `outcome`, `identity` (masked, ID-4), and, where they apply, `attempt`,
//! `recorded`, `phase`, `error.type`, `held` and `waited` (seconds). Without a subscriber the event
//! costs one check of a static variable.

use std::time::Duration;

use tracing::Level;

use super::lease::{Attempt, LeaseState};
use crate::context::IdempotencyContext;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Phase;
use crate::outcome::Recorded;
use crate::payload::{Opened, StoredResult};

const TARGET: &str = "retryproof::outcome";

/// How a lease ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// The work was recorded, as a value or as a tombstone.
    Completed(Recorded),
    /// The lease ended without a completion.
    Failed(Phase),
    /// The completion was refused, because another owner had taken over.
    Lost,
}

/// Emits the outcome of a call that was granted a lease.
pub(super) fn ended(state: &LeaseState, end: End) {
    if !is_enabled() {
        return;
    }
    let (outcome, recorded, phase) = match end {
        End::Completed(Recorded::Tombstone) => ("executed", Some("tombstone"), None),
        End::Completed(_) => ("executed", Some("yes"), None),
        // The action ran, but its completion could not be recorded.
        End::Failed(Phase::Completion) => ("executed", Some("no"), None),
        End::Failed(Phase::Released) => ("released", None, None),
        End::Failed(phase) => ("failed", None, Some(phase)),
        End::Lost => ("lost", None, None),
    };
    let attempt = match state.attempt {
        Attempt::First => "first",
        Attempt::Takeover => "takeover",
    };
    let held = state.event().held_for.as_secs_f64();
    let (identity, scope) = (&state.identity, state.identity.scope());
    let phase = phase.map(tracing::field::debug);
    tracing::debug!(
        target: TARGET, %scope, outcome, %identity, attempt, recorded, phase, held,
        "a call has ended"
    );
}

/// Emits the outcome of a call that found a finished record.
pub(super) fn duplicate(
    ctx: &IdempotencyContext,
    stored: &StoredResult,
    waited: impl FnOnce() -> Duration,
) {
    if is_enabled() {
        match answer_to(ctx, stored) {
            Ok(outcome) => emit(ctx, outcome, None, waited()),
            Err(error) => emit(ctx, "refused", Some(error.kind()), waited()),
        }
    }
}

/// Emits the outcome of a call that found the record still in progress at the end of its wait.
pub(super) fn in_flight(ctx: &IdempotencyContext, waited: impl FnOnce() -> Duration) {
    if is_enabled() {
        emit(ctx, "in_flight", None, waited());
    }
}

/// Emits the outcome of a call that failed before a grant.
pub(super) fn refused(ctx: &IdempotencyContext, error: &Error, waited: impl FnOnce() -> Duration) {
    if is_enabled() {
        emit(ctx, "refused", Some(error.kind()), waited());
    }
}

#[inline]
fn is_enabled() -> bool {
    tracing::enabled!(target: TARGET, Level::DEBUG)
}

fn emit(
    ctx: &IdempotencyContext,
    outcome: &'static str,
    error: Option<ErrorKind>,
    waited: Duration,
) {
    let (identity, scope) = (ctx.identity(), ctx.identity().scope());
    let (error, waited) = (error.map(tracing::field::debug), waited.as_secs_f64());
    tracing::debug!(
        target: TARGET, %scope, outcome, %identity, "error.type" = error, waited,
        "a call has ended"
    );
}

/// The outcome for a duplicate that found a finished record.
fn answer_to(ctx: &IdempotencyContext, stored: &StoredResult) -> Result<&'static str> {
    if let (Some(own), Some(theirs)) = (ctx.fingerprint(), stored.fingerprint())
        && own.algorithm() != theirs.algorithm()
    {
        // These fingerprints cannot be compared here. The HTTP filter computes the request's
        // fingerprint again, with the record's algorithm (FP-3).
        return Ok("judged_under_another_algorithm");
    }
    Ok(match stored.open(ctx.fingerprint())? {
        Opened::Value(_) => "replayed",
        Opened::Tombstone(_) => "not_replayable",
        Opened::Mismatch => "mismatch",
    })
}
