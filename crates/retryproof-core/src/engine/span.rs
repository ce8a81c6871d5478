// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spans of a call (RUN-10): one span `idempotency.call` at the level INFO, from the acquire to
//! the answer, and below it, at the level DEBUG, one span for each phase. A span that no subscriber
//! wants costs one check. The fields of the outcome are recorded by `outcome_event`.

use tracing::{Level, Span, field};

use crate::context::IdempotencyContext;

const TARGET: &str = "retryproof::call";
const CALL: &str = "idempotency.call";

/// Creates the span of a call that begins now.
#[inline]
pub(super) fn of_call(ctx: &IdempotencyContext) -> Span {
    tracing::info_span!(
        target: TARGET,
        CALL,
        scope = %ctx.identity().scope(),
        identity = %ctx.identity(),
        outcome = field::Empty,
        attempt = field::Empty,
        recorded = field::Empty,
        phase = field::Empty,
        "error.type" = field::Empty,
        waited = field::Empty,
        held = field::Empty,
        took = field::Empty,
    )
}

/// Creates the span of an acquire, until the store has answered.
#[inline]
pub(super) fn of_acquire() -> Span {
    tracing::debug_span!(target: TARGET, "idempotency.acquire")
}

/// Creates the span of the time in which a call waits for a holder.
#[inline]
pub(super) fn of_wait() -> Span {
    tracing::debug_span!(target: TARGET, "idempotency.wait")
}

/// Creates the span of the time in which a call's action runs.
#[inline]
pub(super) fn of_action() -> Span {
    tracing::debug_span!(target: TARGET, "idempotency.action")
}

/// Creates the span of the time in which a call's result is recorded.
#[inline]
pub(super) fn of_completion() -> Span {
    tracing::debug_span!(target: TARGET, "idempotency.complete")
}

/// Returns the current span if it is the span of a call; otherwise a disabled span, so that the
/// fields of a program's own spans are never changed.
#[inline]
pub(super) fn current() -> Span {
    if !tracing::span_enabled!(target: TARGET, Level::INFO) {
        return Span::none();
    }
    let current = Span::current();
    match current.metadata() {
        Some(metadata) if metadata.name() == CALL && metadata.target() == TARGET => current,
        _ => Span::none(),
    }
}
