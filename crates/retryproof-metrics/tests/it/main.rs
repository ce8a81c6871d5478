// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks what an engine's calls record through the `metrics` facade (RUN-9).

use std::collections::BTreeMap;
use std::io::Error as IoError;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use retryproof_core::config::ScopeConfig;
use retryproof_core::{IdempotencyConfig, IdempotencyContext, IdempotencyEngine};
use retryproof_memory::MemoryStore;

/// Returns the value of each counter and gauge, and the count of each histogram. The snapshot takes
/// the values out of the recorder.
fn take(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    for (key, _, description, value) in snapshotter.snapshot().into_vec() {
        assert!(description.is_some(), "{key:?} has no description");
        let (_, key) = key.into_parts();
        let labels: BTreeMap<&str, &str> =
            key.labels().map(|label| (label.key(), label.value())).collect();
        let labels: String =
            labels.iter().map(|(label, value)| format!(" {label}={value}")).collect();
        let value = match value {
            DebugValue::Counter(value) => f64::from(u32::try_from(value).unwrap()),
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => f64::from(u32::try_from(values.len()).unwrap()),
        };
        series.insert(format!("{}{labels}", key.name()), value);
    }
    series
}

fn engine(config: IdempotencyConfig) -> IdempotencyEngine {
    IdempotencyEngine::builder(MemoryStore::new())
        .observer(retryproof_metrics::observer(&config))
        .config(config)
        .build()
        .unwrap()
}

#[test]
fn run_9_calls_reach_the_recorder_with_the_names_of_prometheus() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let engine = engine(IdempotencyConfig::default());
            for _ in 0..3 {
                let ctx = IdempotencyContext::builder("payments", "canary-17").build().unwrap();
                let outcome = engine.execute(ctx, || async { Ok::<_, IoError>(1) }).await.unwrap();
                assert_eq!(outcome.into_value(), Some(1));
            }
        });
    });
    let taken = take(&snapshotter);
    for (series, value) in [
        ("idempotency_calls_total idempotency_outcome=executed idempotency_scope=payments", 1.0),
        ("idempotency_calls_total idempotency_outcome=replayed idempotency_scope=payments", 2.0),
        (
            "idempotency_call_duration_seconds idempotency_outcome=replayed \
             idempotency_scope=payments",
            2.0,
        ),
        ("idempotency_result_size_bytes idempotency_scope=payments", 1.0),
        ("idempotency_leases idempotency_scope=payments", 0.0),
        ("idempotency_completions_unrecorded_total idempotency_scope=payments", 0.0),
        (
            "idempotency_store_operation_duration_seconds db_system_name=memory \
             idempotency_operation=acquire",
            3.0,
        ),
    ] {
        assert_eq!(taken.get(series), Some(&value), "{series} in {taken:#?}");
    }
    assert!(taken.keys().all(|series| !series.contains("canary")));
}

#[test]
fn run_9_counters_of_alerts_are_0_before_any_call() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut config = IdempotencyConfig::default();
    config.scopes.insert("payments".to_owned(), ScopeConfig::default());
    metrics::with_local_recorder(&recorder, || drop(engine(config)));
    let taken = take(&snapshotter);
    for series in [
        "idempotency_completions_unrecorded_total idempotency_scope=payments",
        "idempotency_lease_lost_total idempotency_reason=expired idempotency_scope=payments",
        "idempotency_lease_takeovers_total idempotency_scope=payments",
    ] {
        assert_eq!(taken.get(series), Some(&0.0), "{series} in {taken:#?}");
    }
}
