// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace of the current call, and the link from a replay to the trace that executed the work
//! (REC-2).

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use retryproof_core::store::TraceContext;

/// Returns the ids of the span in [`Context::current`]; `None` outside a span. Pass this function
/// to [`EngineBuilder::current_trace`](retryproof_core::EngineBuilder::current_trace).
///
/// A program that uses `tracing` gets the ids of its current span if `tracing-opentelemetry` is
/// installed with its context activation, which is on by default.
#[must_use]
pub fn current_trace() -> Option<TraceContext> {
    Context::map_current(|context| {
        if !context.has_active_span() {
            return None;
        }
        let span = context.span();
        let current = span.span_context();
        current.is_valid().then(|| TraceContext {
            trace_id: current.trace_id().to_bytes(),
            span_id: current.span_id().to_bytes(),
            sampled: current.is_sampled(),
        })
    })
}

/// Links the current span to the span that executed the work.
pub(crate) fn link(executed: TraceContext) {
    let context = Context::current();
    let span = context.span();
    if !span.is_recording() {
        return;
    }
    let flags = TraceFlags::default().with_sampled(executed.sampled);
    let target = SpanContext::new(
        TraceId::from_bytes(executed.trace_id),
        SpanId::from_bytes(executed.span_id),
        flags,
        true,
        TraceState::default(),
    );
    // Skip a link to the current span itself or to a trace without ids, because such a link is
    // useless.
    if target.is_valid() && target.span_id() != span.span_context().span_id() {
        span.add_link(target, Vec::new());
    }
}
