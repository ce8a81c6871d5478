// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports the outcome of each call once. The outcome goes to the observers (RUN-8), and into one
//! `tracing` event at the level DEBUG under the target `retryproof::outcome` (RUN-7). The observers
//! and the log get the same value, so they cannot disagree. The value is an [`End`] if the call was
//! granted a lease, and a [`CallAnswer`] otherwise.
//!
//! Fields of the `tracing` event: `scope`, `outcome`, `identity` (masked, ID-4), and, where they
//! apply, `would_be`, `attempt`, `recorded`, `phase`, `error.type`, `held` and `took` (seconds).
//! Without observers and subscribers, a report costs only a few checks and computes nothing.

use std::time::Duration;

use tracing::{Level, Span};

use super::lease::LeaseState;
use super::span;
use super::store_client::StoreClient;
use crate::attempt::Attempt;
use crate::clock::Instant;
use crate::context::IdempotencyContext;
use crate::error::ErrorKind;
use crate::observe::{CallEvent, LeaseEvent, Phase, ShadowVerdict};
use crate::outcome::Recorded;
use crate::payload::{Opened, StoredResult};
use crate::store::HolderNote;

const TARGET: &str = "retryproof::outcome";

/// How a lease ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// The work was recorded, as a value or as a tombstone. The second value is the size of the
    /// stored envelope in bytes.
    Completed(Recorded, usize),
    /// The lease ended without a completion.
    Failed(Phase),
    /// The completion was refused, because another owner had taken over or the record was gone.
    Lost,
}

/// How a call without a lease ended.
#[derive(Debug, Clone, Copy)]
pub enum CallAnswer<'a> {
    /// The call got the stored result. Contains the note of the holder that executed the work, if
    /// the store has one.
    Replayed(Option<&'a HolderNote>),
    /// The key was used with a different fingerprint.
    Mismatch,
    /// The work is done, but its result cannot be replayed.
    NotReplayable,
    /// The holder did not finish within the wait. The duration is the time left on the holder's
    /// lease.
    InFlight(Duration),
    /// Nothing ran, because of an error.
    Refused(ErrorKind),
}

impl<'a> CallAnswer<'a> {
    /// Returns the answer to a call that opens this record with the fingerprint of the call's
    /// context.
    pub(super) fn from_record(ctx: &IdempotencyContext, stored: &'a StoredResult) -> Self {
        match stored.open(ctx.fingerprint()) {
            Ok(Opened::Value(_)) => Self::Replayed(stored.holder()),
            Ok(Opened::Tombstone(_)) => Self::NotReplayable,
            Ok(Opened::Mismatch) => Self::Mismatch,
            Err(error) => Self::Refused(error.kind()),
        }
    }

    fn outcome(self) -> &'static str {
        match self {
            Self::Replayed(_) => "replayed",
            Self::Mismatch => "mismatch",
            Self::NotReplayable => "not_replayable",
            Self::InFlight(_) => "in_flight",
            Self::Refused(_) => "refused",
        }
    }
}

/// Reports the end of a call that was granted a lease.
pub(super) fn ended(state: &LeaseState, end: End) {
    if is_enabled() {
        log_end(state, end);
    }
    // Drop the span, so that it ends here even if a clone of the lease still exists.
    let span = std::mem::replace(&mut *state.span.lock(), Span::none());
    if !span.is_disabled() {
        record_end(&span, state, end);
    }
    if let Some(verdict) = state.shadow {
        state.store.observers.tell(|o| o.shadowed(state.event(), verdict));
        return;
    }
    if !state.store.guards() {
        state.store.observers.tell(|o| o.unguarded(state.event()));
        return;
    }
    state.store.observers.tell(|o| match end {
        End::Completed(recorded, bytes) => {
            let event = LeaseEvent { result_bytes: Some(bytes), ..state.event() };
            o.completed(event, recorded);
        }
        End::Failed(phase) => o.failed(state.event(), phase),
        End::Lost => o.lost(state.event()),
    });
}

/// Reports the end of a call that began at `began` and was granted no lease.
#[inline]
pub(super) fn answered<'a>(
    store: &StoreClient,
    ctx: &IdempotencyContext,
    began: Instant,
    answer: impl FnOnce() -> CallAnswer<'a>,
) {
    let (is_logged, span) = (is_enabled(), span::current());
    if is_logged || !span.is_disabled() || !store.observers.is_empty() {
        report(store, ctx, began, answer(), is_logged, &span);
    }
}

#[cold]
fn report(
    store: &StoreClient,
    ctx: &IdempotencyContext,
    began: Instant,
    answer: CallAnswer<'_>,
    is_logged: bool,
    span: &Span,
) {
    let event =
        CallEvent { identity: ctx.identity(), took: store.now().saturating_duration_since(began) };
    if is_logged {
        let (identity, scope) = (event.identity, event.identity.scope());
        let (outcome, took) = (answer.outcome(), event.took.as_secs_f64());
        let error = match answer {
            CallAnswer::Refused(kind) => Some(tracing::field::debug(kind)),
            _ => None,
        };
        tracing::debug!(
            target: TARGET, %scope, outcome, %identity, "error.type" = error, took,
            "a call has ended"
        );
    }
    if !span.is_disabled() {
        record_answer(span, &event, answer);
    }
    store.observers.tell(|o| match answer {
        CallAnswer::Replayed(holder) => o.replayed(event, holder),
        CallAnswer::Mismatch => o.mismatch(event),
        CallAnswer::NotReplayable => o.not_replayable(event),
        CallAnswer::InFlight(remaining) => o.in_flight(event, remaining),
        CallAnswer::Refused(kind) => o.refused(event, kind),
    });
}

/// The fields that describe a call's end, in the log and in the call's span.
struct EndFields {
    outcome: &'static str,
    would_be: Option<&'static str>,
    attempt: &'static str,
    recorded: Option<&'static str>,
    phase: Option<Phase>,
}

impl EndFields {
    fn of(state: &LeaseState, end: End) -> Self {
        let (outcome, recorded, phase) = match end {
            _ if state.shadow.is_some() => ("shadow", None, None),
            _ if !state.store.guards() => ("unguarded", None, None),
            End::Completed(Recorded::Tombstone, _) => ("executed", Some("tombstone"), None),
            End::Completed(..) => ("executed", Some("yes"), None),
            End::Failed(phase @ Phase::Completion) => (phase.outcome(), Some("no"), None),
            End::Failed(phase @ Phase::Released) => (phase.outcome(), None, None),
            End::Failed(phase) => (phase.outcome(), None, Some(phase)),
            End::Lost => ("lost", None, None),
        };
        let attempt = match state.attempt {
            Attempt::First => "first",
            Attempt::Takeover => "takeover",
        };
        let would_be = state.shadow.map(ShadowVerdict::as_str);
        Self { outcome, would_be, attempt, recorded, phase }
    }
}

#[cold]
fn log_end(state: &LeaseState, end: End) {
    let EndFields { outcome, would_be, attempt, recorded, phase } = EndFields::of(state, end);
    let held = state.event().held_for.as_secs_f64();
    let (identity, scope) = (&state.identity, state.identity.scope());
    let phase = phase.map(tracing::field::debug);
    tracing::debug!(
        target: TARGET, %scope, outcome, would_be, %identity, attempt, recorded, phase, held,
        "a call has ended"
    );
}

/// Records in the call's span how a call with a lease ended.
#[cold]
fn record_end(span: &Span, state: &LeaseState, end: End) {
    let EndFields { outcome, would_be, attempt, recorded, phase } = EndFields::of(state, end);
    let event = state.event();
    span.record("outcome", outcome);
    if let Some(would_be) = would_be {
        span.record("would_be", would_be);
    }
    span.record("attempt", attempt);
    if let Some(recorded) = recorded {
        span.record("recorded", recorded);
    }
    if let Some(phase) = phase {
        span.record("phase", tracing::field::debug(phase));
    }
    span.record("waited", event.waited.as_secs_f64());
    span.record("held", event.held_for.as_secs_f64());
}

/// Records in the call's span the answer to a call without a lease.
fn record_answer(span: &Span, event: &CallEvent<'_>, answer: CallAnswer<'_>) {
    span.record("outcome", answer.outcome());
    if let CallAnswer::Refused(kind) = answer {
        span.record("error.type", tracing::field::debug(kind));
    }
    span.record("took", event.took.as_secs_f64());
}

#[inline]
fn is_enabled() -> bool {
    tracing::enabled!(target: TARGET, Level::DEBUG)
}
