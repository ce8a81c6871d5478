// SPDX-License-Identifier: MIT OR Apache-2.0
//! One event of `tracing` for the outcome of each call, at the level DEBUG under the target
//! `retryproof::outcome`.
//!
//! Fields: `scope`, `outcome`, `identity` (masked, ID-4), and, where they say something, `attempt`,
//! `recorded`, `phase`, `error.type`, `held` and `waited` (seconds). Where nothing listens it costs
//! the check of a static.

use std::time::Duration;

use tracing::Level;

use crate::context::IdempotencyContext;
use crate::engine::Acquisition;
use crate::error::{Error, Result};
use crate::lease::{Attempt, LeaseState};
use crate::observe::Phase;
use crate::outcome::Recorded;
use crate::payload::{Opened, StoredResult};

const TARGET: &str = "retryproof::outcome";

/// How a lease ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// The work is recorded, as a value or as a tombstone.
    Completed(Recorded),
    /// Without a completion.
    Failed(Phase),
    /// The completion was refused: another owner had taken over.
    Lost,
}

/// The outcome of a call that was granted a lease.
pub(crate) fn ended(state: &LeaseState, end: End) {
    if !tracing::enabled!(target: TARGET, Level::DEBUG) {
        return;
    }
    let (outcome, recorded, phase) = match end {
        End::Completed(Recorded::Tombstone) => ("executed", Some("tombstone"), None),
        End::Completed(_) => ("executed", Some("yes"), None),
        // The action ran to its end.
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
    tracing::debug!(target: TARGET, %scope, outcome, %identity, attempt, recorded, phase, held, "a call has ended");
}

/// The outcome of a call that was not granted a lease.
pub(crate) fn not_granted(
    ctx: &IdempotencyContext,
    found: &Result<Acquisition>,
    waited: impl FnOnce() -> Duration,
) {
    if !tracing::enabled!(target: TARGET, Level::DEBUG) {
        return;
    }
    let (outcome, error) = match found {
        // Its end is told.
        Ok(Acquisition::Granted(_)) => return,
        Ok(Acquisition::InFlight(_)) => ("in_flight", None),
        Ok(Acquisition::Complete(stored)) => match verdict(ctx, stored) {
            Ok(outcome) => (outcome, None),
            Err(error) => ("refused", Some(error.kind())),
        },
        Err(error) => ("refused", Some(error.kind())),
    };
    let (identity, scope) = (ctx.identity(), ctx.identity().scope());
    let (error, waited) = (error.map(tracing::field::debug), waited().as_secs_f64());
    tracing::debug!(target: TARGET, %scope, outcome, %identity, "error.type" = error, waited, "a call has ended");
}

/// What a duplicate of a finished record gets.
fn verdict(ctx: &IdempotencyContext, stored: &StoredResult) -> Result<&'static str, Error> {
    if let (Some(own), Some(theirs)) = (ctx.fingerprint(), stored.fingerprint())
        && own.algorithm() != theirs.algorithm()
    {
        // The HTTP filter judges it under the record's algorithm (FP-3).
        return Ok("judged_under_another_algorithm");
    }
    Ok(match stored.open(ctx.fingerprint())? {
        Opened::Value(_) => "replayed",
        Opened::Tombstone(_) => "not_replayable",
        Opened::Mismatch => "mismatch",
    })
}
