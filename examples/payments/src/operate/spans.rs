// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Spans`]: keeps the last spans of this process, in place of a collector.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use serde_json::{Map, Value, json};

/// How many spans are kept.
const KEPT: usize = 500;

/// Keeps the spans that ended last. Clones share these spans.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Arc<Mutex<VecDeque<Value>>>);

impl Spans {
    /// Returns the spans, one JSON value per line, the newest last.
    pub(crate) fn lines(&self) -> String {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().map(|span| format!("{span}\n")).collect()
    }
}

impl SpanProcessor for Spans {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
        let fields = span.attributes.iter();
        let fields: Map<String, Value> = fields
            .map(|field| (field.key.to_string(), Value::from(field.value.as_str().into_owned())))
            .collect();
        let links = span.links.iter().map(|link| {
            json!({
                "trace": link.span_context.trace_id().to_string(),
                "span": link.span_context.span_id().to_string(),
            })
        });
        let value = json!({
            "trace": span.span_context.trace_id().to_string(),
            "span": span.span_context.span_id().to_string(),
            "parent": span.parent_span_id.to_string(),
            "name": span.name,
            "ms": took.as_secs_f64() * 1_000.0,
            "fields": fields,
            "links": links.collect::<Vec<_>>(),
        });
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.push_back(value);
        if spans.len() > KEPT {
            spans.pop_front();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
