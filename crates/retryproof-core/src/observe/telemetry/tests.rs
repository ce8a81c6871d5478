// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which events make which measurements (RUN-9).

use std::collections::BTreeMap;

use super::*;
use crate::config::ScopeConfig;
use crate::lock::Mutex;
use crate::owner::{FencingToken, OwnerId};

/// Keeps the sum of each series, and how often it was measured.
#[derive(Debug, Default)]
struct Sums {
    sums: Mutex<BTreeMap<String, (f64, u32)>>,
    links: Mutex<Vec<TraceContext>>,
}

impl Sums {
    fn add(&self, series: &Series, value: f64) {
        let mut text = series.instrument().name().to_owned();
        for (label, value) in series.labels() {
            text.push_str(&format!(" {label}={value}"));
        }
        let mut sums = self.sums.lock();
        let (sum, times) = sums.entry(text).or_insert((0.0, 0));
        *sum += value;
        *times += 1;
    }
}

impl Measurements for Sums {
    fn count(&self, series: &Series, increment: u64) {
        assert_eq!(series.instrument().kind(), InstrumentKind::Counter);
        self.add(series, increment as f64);
    }

    fn change(&self, series: &Series, by: i64) {
        assert_eq!(series.instrument().kind(), InstrumentKind::UpDownCounter);
        self.add(series, by as f64);
    }

    fn set(&self, series: &Series, value: u64) {
        assert_eq!(series.instrument().kind(), InstrumentKind::Gauge);
        self.add(series, value as f64);
    }

    fn time(&self, series: &Series, took: Duration) {
        assert_eq!(series.instrument().kind(), InstrumentKind::Histogram);
        self.add(series, took.as_secs_f64());
    }

    fn link(&self, executed: TraceContext) {
        self.links.lock().push(executed);
    }
}

impl MeasuringObserver<Sums> {
    /// The sum of a series; `None` if the series does not exist.
    fn sum(&self, series: &str) -> Option<f64> {
        self.system.sums.lock().get(series).map(|(sum, _)| *sum)
    }

    fn series(&self) -> Vec<String> {
        self.system.sums.lock().keys().cloned().collect()
    }
}

fn observer(scopes: &[&str]) -> MeasuringObserver<Sums> {
    let mut config = IdempotencyConfig::default();
    for scope in scopes {
        config.scopes.insert((*scope).to_owned(), ScopeConfig::default());
    }
    MeasuringObserver::new(Sums::default(), &config)
}

fn lease(identity: &Identity) -> LeaseEvent<'_> {
    LeaseEvent {
        identity,
        token: FencingToken::new(1),
        attempt: Attempt::First,
        waited: Duration::from_secs(1),
        held_for: Duration::from_secs(2),
    }
}

fn call(identity: &Identity) -> CallEvent<'_> {
    CallEvent { identity, took: Duration::from_millis(500) }
}

#[test]
fn run_9_counters_of_alerts_are_born_at_0_for_each_configured_scope() {
    let observer = observer(&["payments"]);
    for series in [
        "idempotency.completions.unrecorded idempotency.scope=payments",
        "idempotency.lease.takeovers idempotency.scope=payments",
        "idempotency.lease.lost idempotency.scope=payments idempotency.reason=expired",
        "idempotency.lease.lost idempotency.scope=payments idempotency.reason=refused",
        "idempotency.store.circuit.open",
        "idempotency.purged",
    ] {
        assert_eq!(observer.sum(series), Some(0.0), "{series}");
    }
}

#[test]
fn run_9_counters_of_alerts_are_born_at_0_with_the_first_event_of_a_scope() {
    let (observer, identity) = (observer(&[]), Identity::of("mails", "1").unwrap());
    let series = "idempotency.completions.unrecorded idempotency.scope=mails";
    assert_eq!(observer.sum(series), None);
    observer.acquired(lease(&identity));
    assert_eq!(observer.sum(series), Some(0.0));
}

#[test]
fn run_9_an_execution_is_counted_and_timed() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    observer.acquired(lease(&identity));
    assert_eq!(observer.sum("idempotency.leases idempotency.scope=payments"), Some(1.0));
    observer.completed(lease(&identity), Recorded::Yes);
    for (series, sum) in [
        ("idempotency.leases idempotency.scope=payments", 0.0),
        ("idempotency.calls idempotency.scope=payments idempotency.outcome=executed", 1.0),
        ("idempotency.call.duration idempotency.scope=payments idempotency.outcome=executed", 3.0),
        ("idempotency.action.duration idempotency.scope=payments idempotency.attempt=first", 2.0),
        ("idempotency.completions.unrecorded idempotency.scope=payments", 0.0),
    ] {
        assert_eq!(observer.sum(series), Some(sum), "{series}");
    }
}

#[test]
fn run_9_each_phase_of_a_failure_has_its_outcome_and_error_type() {
    let identity = Identity::of("payments", "1").unwrap();
    for (phase, labels) in [
        (Phase::Action, "idempotency.outcome=failed error.type=action"),
        (Phase::Panic, "idempotency.outcome=failed error.type=panic"),
        (Phase::Held, "idempotency.outcome=failed error.type=held"),
        (Phase::Dropped, "idempotency.outcome=failed error.type=dropped"),
        (Phase::RolledBack, "idempotency.outcome=failed error.type=rolled_back"),
        (Phase::Released, "idempotency.outcome=released"),
        (Phase::Completion, "idempotency.outcome=executed error.type=completion"),
    ] {
        let observer = observer(&[]);
        observer.failed(lease(&identity), phase);
        let calls = format!("idempotency.calls idempotency.scope=payments {labels}");
        assert_eq!(observer.sum(&calls), Some(1.0), "{calls}");
        let unrecorded = "idempotency.completions.unrecorded idempotency.scope=payments";
        let expected = if phase == Phase::Completion { 1.0 } else { 0.0 };
        assert_eq!(observer.sum(unrecorded), Some(expected), "{phase:?}");
    }
}

#[test]
fn run_9_ctx_5_an_unguarded_call_is_counted_and_timed_without_a_lease() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    observer.unguarded(lease(&identity));
    let labels = "idempotency.scope=payments idempotency.outcome=unguarded";
    assert_eq!(observer.sum(&format!("idempotency.calls {labels}")), Some(1.0));
    assert_eq!(observer.sum(&format!("idempotency.call.duration {labels}")), Some(3.0));
    assert_eq!(observer.sum("idempotency.leases idempotency.scope=payments"), None);
}

#[test]
fn run_9_answers_without_a_lease_are_counted_by_outcome() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    observer.replayed(call(&identity), None);
    observer.mismatch(call(&identity));
    observer.not_replayable(call(&identity));
    observer.in_flight(call(&identity), Duration::ZERO);
    observer.refused(call(&identity), ErrorKind::Unavailable);
    for labels in [
        "idempotency.outcome=replayed",
        "idempotency.outcome=mismatch",
        "idempotency.outcome=not_replayable",
        "idempotency.outcome=in_flight",
        "idempotency.outcome=refused error.type=Unavailable",
    ] {
        let calls = format!("idempotency.calls idempotency.scope=payments {labels}");
        assert_eq!(observer.sum(&calls), Some(1.0), "{calls}");
    }
    let refused =
        "idempotency.call.duration idempotency.scope=payments idempotency.outcome=refused";
    assert_eq!(observer.sum(refused), Some(0.5));
}

#[test]
fn run_9_a_replay_is_linked_to_the_trace_that_executed() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    let trace = TraceContext { trace_id: [7; 16], span_id: [9; 8], sampled: true };
    let note = |trace| HolderNote::new(OwnerId::new(), Duration::from_secs(30), trace, "host:1");
    observer.replayed(call(&identity), None);
    observer.replayed(call(&identity), Some(&note(None)));
    assert!(observer.system.links.lock().is_empty());
    observer.replayed(call(&identity), Some(&note(Some(trace))));
    assert_eq!(*observer.system.links.lock(), [trace]);
}

#[test]
fn run_9_a_lost_lease_is_counted_by_reason() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    observer.loss_noticed(lease(&identity), Loss::Expired);
    observer.loss_noticed(lease(&identity), Loss::MaxHold);
    observer.lost(lease(&identity));
    observer.beat_failed(lease(&identity), ErrorKind::Unavailable);
    let failed = "idempotency.lease.beats.failed idempotency.scope=payments error.type=Unavailable";
    assert_eq!(observer.sum(failed), Some(1.0));
    let lost = [("expired", 1.0), ("taken_over", 0.0), ("max_hold", 1.0), ("refused", 1.0)];
    for (reason, sum) in lost {
        let lost = format!(
            "idempotency.lease.lost idempotency.scope=payments idempotency.reason={reason}"
        );
        assert_eq!(observer.sum(&lost), Some(sum), "{lost}");
    }
}

#[test]
fn run_9_the_store_the_circuit_and_the_purge_are_measured_without_a_scope() {
    let observer = observer(&[]);
    let (store, operation, took) = ("postgres", "acquire", Duration::from_millis(250));
    observer.store_called(StoreCallEvent { store, operation, took, error: None });
    let error = Some(ErrorKind::Unavailable);
    observer.store_called(StoreCallEvent { store, operation, took, error });
    observer.circuit_opened();
    observer.purged(PurgeEvent { deleted: 3, took, kept_up: false });
    let calls = "idempotency.store.operation.duration idempotency.operation=acquire \
                 db.system.name=postgresql";
    let failed = format!("{calls} error.type=Unavailable");
    for (series, sum) in [
        (calls, 0.25),
        (failed.as_str(), 0.25),
        ("idempotency.store.circuit.open", 1.0),
        ("idempotency.purged", 3.0),
        ("idempotency.purge.backlog", 1.0),
    ] {
        assert_eq!(observer.sum(series), Some(sum), "{series}");
    }
}

#[test]
fn run_9_no_label_contains_a_key() {
    let identity = Identity::of("payments", "canary-4711").unwrap();
    let observer = observer(&[]);
    observer.acquired(lease(&identity));
    observer.waited(&identity, Duration::ZERO, WaitEnd::Granted);
    observer.completed(lease(&identity), Recorded::Yes);
    observer.replayed(call(&identity), None);
    assert!(!observer.series().is_empty());
    assert!(observer.series().iter().all(|series| !series.contains("canary")));
}

#[test]
fn run_9_names_units_and_kinds_agree_with_the_names_in_prometheus() {
    for instrument in Instrument::ALL {
        let mut name = instrument.name().replace('.', "_");
        if instrument.unit() == "s" {
            name.push_str("_seconds");
        }
        if instrument.kind() == InstrumentKind::Counter {
            name.push_str("_total");
        }
        assert_eq!(instrument.prometheus_name(), name);
    }
    assert!(SECONDS.is_sorted());
}
