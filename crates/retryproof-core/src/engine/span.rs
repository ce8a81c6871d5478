// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spans of a call (RUN-10). The span `idempotency.call`, at the level INFO, lasts from the
//! acquire to the answer. Inside this span, each phase has one span at the level DEBUG. A span that
//! no subscriber records costs one check. `outcome_event` records the fields of the outcome.

use std::future::Future;

use tracing::{Instrument as _, Level, Span, field};

use crate::context::IdempotencyContext;

const TARGET: &str = "retryproof::call";
const CALL: &str = "idempotency.call";

/// Creates the span of a call that begins now.
#[inline]
pub(super) fn of_call(ctx: &IdempotencyContext) -> Span {
    if !tracing::level_enabled!(Level::INFO) {
        return Span::none();
    }
    tracing::info_span!(
        target: TARGET,
        CALL,
        scope = %ctx.identity().scope(),
        identity = %ctx.identity(),
        outcome = field::Empty,
        would_be = field::Empty,
        attempt = field::Empty,
        recorded = field::Empty,
        phase = field::Empty,
        "error.type" = field::Empty,
        waited = field::Empty,
        held = field::Empty,
        took = field::Empty,
    )
}

/// Creates the span of an acquire that waits for the store's answer.
#[inline]
pub(super) fn of_acquire() -> Span {
    phase(|| tracing::debug_span!(target: TARGET, "idempotency.acquire"))
}

/// Creates the span that covers a call's wait for a holder.
#[inline]
pub(super) fn of_wait() -> Span {
    phase(|| tracing::debug_span!(target: TARGET, "idempotency.wait"))
}

/// Creates the span that covers the run of a call's action.
#[inline]
pub(super) fn of_action() -> Span {
    phase(|| tracing::debug_span!(target: TARGET, "idempotency.action"))
}

/// Creates the span that covers the recording of a call's result.
#[inline]
pub(super) fn of_completion() -> Span {
    phase(|| tracing::debug_span!(target: TARGET, "idempotency.complete"))
}

/// Creates the span of a phase if the level DEBUG is enabled. `Span::none()` is cheaper than a span
/// that the macro disables, because that span keeps its metadata for the `log` feature of
/// `tracing`.
#[inline]
fn phase(span: impl FnOnce() -> Span) -> Span {
    if tracing::level_enabled!(Level::DEBUG) { span() } else { Span::none() }
}

/// Creates a future, and polls and drops it inside a span. The future is large, and an
/// `Instrumented` would move it. If the span is disabled, the future is therefore awaited where it
/// is created. Otherwise the future is boxed.
#[inline]
pub(super) async fn run_in<F: Future>(span: &Span, future: impl FnOnce() -> F) -> F::Output {
    if span.is_disabled() {
        future().await
    } else {
        Box::pin(future()).instrument(span.clone()).await
    }
}

/// Returns the current span if it is the span of a call. Otherwise returns a disabled span, so that
/// the fields of a program's own spans never change.
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
