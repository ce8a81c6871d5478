// SPDX-License-Identifier: MIT OR Apache-2.0
//! What OpenTelemetry's SDK exports after calls of an engine (RUN-9, REC-2).

use std::collections::BTreeMap;
use std::io::Error as IoError;

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{
    FutureExt as _, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use retryproof_core::config::ScopeConfig;
use retryproof_core::observe::telemetry::{BYTES, Instrument, SECONDS};
use retryproof_core::{IdempotencyConfig, IdempotencyContext, IdempotencyEngine};
use retryproof_memory::MemoryStore;

struct Meters {
    provider: SdkMeterProvider,
    exported: InMemoryMetricExporter,
}

impl Meters {
    fn new() -> Self {
        let exported = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exported.clone()).build();
        Self { provider: SdkMeterProvider::builder().with_reader(reader).build(), exported }
    }

    fn engine(&self, config: IdempotencyConfig) -> IdempotencyEngine {
        let meter = self.provider.meter("retryproof");
        IdempotencyEngine::builder(MemoryStore::new())
            .observer(retryproof_otel::observer_with(&meter, &config))
            .current_trace(retryproof_otel::current_trace)
            .config(config)
            .build()
            .unwrap()
    }

    /// Exports the metrics. Returns the sum of each series of counters, and the count of each
    /// series of histograms.
    fn export(&self) -> BTreeMap<String, i64> {
        self.provider.force_flush().unwrap();
        let mut series = BTreeMap::new();
        let finished = self.exported.get_finished_metrics().unwrap();
        let last = finished.last().unwrap();
        for metric in last.scope_metrics().flat_map(|scope| scope.metrics()) {
            let mut keep = |labels: String, value| {
                series.insert(format!("{}{labels}", metric.name()), value);
            };
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
                    .data_points()
                    .for_each(|p| keep(labels(p.attributes()), i64::try_from(p.value()).unwrap())),
                AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                    sum.data_points().for_each(|p| keep(labels(p.attributes()), p.value()));
                }
                AggregatedMetrics::F64(MetricData::Histogram(all)) => {
                    for point in all.data_points() {
                        let bounds = point.bounds().collect::<Vec<_>>();
                        let is_size = metric.name() == Instrument::ResultSize.name();
                        assert_eq!(bounds, if is_size { &BYTES[..] } else { &SECONDS[..] });
                        keep(labels(point.attributes()), i64::try_from(point.count()).unwrap());
                    }
                }
                AggregatedMetrics::U64(MetricData::Gauge(_)) => {}
                other => panic!("{} has an unexpected kind: {other:?}", metric.name()),
            }
        }
        series
    }
}

/// Returns the labels in the order of their names.
fn labels<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let labels: BTreeMap<&str, String> =
        attributes.map(|attribute| (attribute.key.as_str(), attribute.value.to_string())).collect();
    labels.iter().map(|(label, value)| format!(" {label}={value}")).collect()
}

async fn pay(engine: &IdempotencyEngine) {
    let ctx = IdempotencyContext::builder("payments", "canary-17").build().unwrap();
    let outcome = engine.execute(ctx, || async { Ok::<_, IoError>(1) }).await.unwrap();
    assert_eq!(outcome.into_value(), Some(1));
}

#[tokio::test]
async fn run_9_calls_are_exported_with_names_labels_and_buckets() {
    let meters = Meters::new();
    let engine = meters.engine(IdempotencyConfig::default());
    for _ in 0..3 {
        pay(&engine).await;
    }
    let exported = meters.export();
    for (series, value) in [
        ("idempotency.calls idempotency.outcome=executed idempotency.scope=payments", 1),
        ("idempotency.calls idempotency.outcome=replayed idempotency.scope=payments", 2),
        ("idempotency.call.duration idempotency.outcome=replayed idempotency.scope=payments", 2),
        ("idempotency.action.duration idempotency.attempt=first idempotency.scope=payments", 1),
        ("idempotency.result.size idempotency.scope=payments", 1),
        ("idempotency.leases idempotency.scope=payments", 0),
        ("idempotency.completions.unrecorded idempotency.scope=payments", 0),
        ("idempotency.store.circuit.open", 0),
        (
            "idempotency.store.operation.duration db.system.name=memory \
             idempotency.operation=acquire",
            3,
        ),
    ] {
        assert_eq!(exported.get(series), Some(&value), "{series} in {exported:#?}");
    }
    assert!(exported.keys().all(|series| !series.contains("canary")));
}

#[tokio::test]
async fn run_9_counters_of_alerts_are_exported_as_0_before_any_call() {
    let meters = Meters::new();
    let mut config = IdempotencyConfig::default();
    config.scopes.insert("payments".to_owned(), ScopeConfig::default());
    let engine = meters.engine(config);
    let exported = meters.export();
    for instrument in [Instrument::Unrecorded, Instrument::Takeovers] {
        let series = format!("{} idempotency.scope=payments", instrument.name());
        assert_eq!(exported.get(&series), Some(&0), "{series} in {exported:#?}");
    }
    let lost = "idempotency.lease.lost idempotency.reason=expired idempotency.scope=payments";
    assert_eq!(exported.get(lost), Some(&0));
    drop(engine);
}

#[tokio::test]
async fn rec_2_a_replays_span_is_linked_to_the_span_that_executed() {
    let meters = Meters::new();
    let engine = meters.engine(IdempotencyConfig::default());
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    let tracer = provider.tracer("test");
    for name in ["first", "second"] {
        let span = Context::new().with_span(tracer.start(name));
        pay(&engine).with_context(span.clone()).await;
        span.span().end();
    }
    let finished = spans.get_finished_spans().unwrap();
    let [first, second] = &finished[..] else { panic!("two spans, but got {finished:#?}") };
    assert!(first.links.is_empty());
    let [link] = &second.links[..] else { panic!("one link, but got {:#?}", second.links) };
    assert_eq!(link.span_context.trace_id(), first.span_context.trace_id());
    assert_eq!(link.span_context.span_id(), first.span_context.span_id());
    assert!(link.span_context.is_sampled());
    assert_ne!(first.span_context.trace_id(), second.span_context.trace_id());
}

#[tokio::test]
async fn rec_2_outside_of_a_span_there_is_no_trace_and_no_link() {
    assert_eq!(retryproof_otel::current_trace(), None);
    let meters = Meters::new();
    let engine = meters.engine(IdempotencyConfig::default());
    pay(&engine).await;
    pay(&engine).await;
}
