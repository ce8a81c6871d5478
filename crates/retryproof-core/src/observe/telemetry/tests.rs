// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests which measurements each event makes (RUN-9).

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

/// Returns the name of a series, with its labels.
fn text_of(series: &Series) -> String {
    let mut text = series.instrument().name().to_owned();
    for (label, value) in series.labels() {
        text.push_str(&format!(" {label}={value}"));
    }
    text
}

impl Sums {
    fn add(&self, series: &Series, value: f64) {
        let mut sums = self.sums.lock();
        let (sum, times) = sums.entry(text_of(series)).or_insert((0.0, 0));
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
        self.sums.lock().remove(&text_of(series));
        self.add(series, value as f64);
    }

    fn time(&self, series: &Series, took: Duration) {
        assert_eq!(series.instrument().kind(), InstrumentKind::Histogram);
        self.add(series, took.as_secs_f64());
    }

    fn size(&self, series: &Series, bytes: usize) {
        assert_eq!(series.instrument().kind(), InstrumentKind::Histogram);
        self.add(series, bytes as f64);
    }

    fn link(&self, executed: TraceContext) {
        self.links.lock().push(executed);
    }
}

impl MeasuringObserver<Sums> {
    /// Returns the sum of a series; `None` if the series does not exist.
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
        result_bytes: None,
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
fn run_9_counters_of_alerts_are_born_at_0_for_the_scopes_that_are_not_named() {
    let observer = observer(&[]);
    let born = |scope: &str| {
        let label = format!(" idempotency.scope={scope}");
        let of_scope =
            |series: &String| series.contains(&label).then(|| series.replace(&label, ""));
        observer.series().iter().filter_map(of_scope).collect::<Vec<_>>()
    };
    let at_first = born(OTHER_SCOPES);
    for n in 0..MAX_SCOPES {
        observer.scope_named(&format!("scope-{n}"));
    }
    assert_eq!(at_first, born("scope-0"), "the same counters as for a named scope");
    let unrecorded = format!("idempotency.completions.unrecorded idempotency.scope={OTHER_SCOPES}");
    assert_eq!(observer.sum(&unrecorded), Some(0.0));
    let late = Identity::of("late", "1").unwrap();
    observer.failed(lease(&late), Phase::Completion);
    assert_eq!(observer.sum(&unrecorded), Some(1.0));
}

#[test]
fn run_9_ctx_5_calls_of_a_scope_that_is_off_are_counted_from_0() {
    let mut config = IdempotencyConfig::default();
    for (scope, enabled) in [("off", Some(false)), ("on", Some(true)), ("unset", None)] {
        let own = ScopeConfig { enabled, ..ScopeConfig::default() };
        config.scopes.insert(scope.to_owned(), own);
    }
    let observer = MeasuringObserver::new(Sums::default(), &config);
    let calls = |scope: &str| {
        let labels = format!("idempotency.scope={scope} idempotency.outcome=unguarded");
        observer.sum(&format!("idempotency.calls {labels}"))
    };
    assert_eq!([calls("off"), calls("on"), calls("unset")], [Some(0.0), None, None]);
    observer.unguarded(lease(&Identity::of("off", "1").unwrap()));
    assert_eq!(calls("off"), Some(1.0));
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
fn run_9_the_size_of_a_recorded_result_is_measured() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    let series = "idempotency.result.size idempotency.scope=payments";
    let event = LeaseEvent { result_bytes: Some(300), ..lease(&identity) };
    observer.completed(event, Recorded::Tombstone);
    assert_eq!(observer.sum(series), None, "a tombstone is no result");
    observer.completed(event, Recorded::Yes);
    assert_eq!(observer.sum(series), Some(300.0));
    let size = Instrument::ResultSize;
    assert_eq!((size.unit(), size.prometheus_name()), ("By", "idempotency_result_size_bytes"));
    assert_eq!(size.boundaries(), BYTES);
    assert_eq!(Instrument::CallDuration.boundaries(), SECONDS);
    assert!(Instrument::Calls.boundaries().is_empty());
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
        let action =
            "idempotency.action.duration idempotency.scope=payments idempotency.attempt=first";
        let is_timed = !matches!(phase, Phase::Dropped | Phase::Released);
        assert_eq!(observer.sum(action), is_timed.then_some(2.0), "{phase:?}");
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
fn run_9_ctx_6_calls_in_shadow_mode_are_counted_from_0_by_what_the_guard_would_have_done() {
    let mut config = IdempotencyConfig::default();
    let own = ScopeConfig { shadow: Some(true), ..ScopeConfig::default() };
    config.scopes.insert("payments".to_owned(), own);
    let observer = MeasuringObserver::new(Sums::default(), &config);
    let labels = "idempotency.scope=payments idempotency.outcome=shadow";
    let calls = |rest: &str| {
        observer.sum(&format!("idempotency.calls {labels} idempotency.would_be={rest}"))
    };
    for verdict in ["executed", "replayed", "mismatch", "not_replayable", "in_flight"] {
        assert_eq!(calls(verdict), Some(0.0), "{verdict}");
    }
    let identity = Identity::of("payments", "1").unwrap();
    observer.shadowed(lease(&identity), ShadowVerdict::Replayed);
    observer.shadowed(lease(&identity), ShadowVerdict::Refused(ErrorKind::Unavailable));
    assert_eq!(calls("replayed"), Some(1.0));
    assert_eq!(calls("refused error.type=Unavailable"), Some(1.0));
    assert_eq!(observer.sum(&format!("idempotency.call.duration {labels}")), Some(6.0));
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
    observer.loss_noticed(lease(&identity), Loss::TakenOver);
    observer.loss_noticed(lease(&identity), Loss::TakenOver);
    observer.loss_noticed(lease(&identity), Loss::MaxHold);
    observer.lost(lease(&identity));
    observer.beat_failed(lease(&identity), ErrorKind::Unavailable);
    let failed = "idempotency.lease.beats.failed idempotency.scope=payments error.type=Unavailable";
    assert_eq!(observer.sum(failed), Some(1.0));
    let lost = [("expired", 1.0), ("taken_over", 2.0), ("max_hold", 1.0), ("refused", 1.0)];
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
    observer.purged(PurgeEvent { deleted: 3, took, kept_up: false, left_to_another: false });
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
    observer.circuit_closed();
    observer.purged(PurgeEvent { deleted: 0, took, kept_up: true, left_to_another: true });
    assert_eq!(observer.sum("idempotency.store.circuit.open"), Some(0.0));
    assert_eq!(observer.sum("idempotency.purge.backlog"), Some(0.0));
}

#[test]
fn run_9_takeovers_waits_and_saved_time_are_measured() {
    let (observer, identity) = (observer(&[]), Identity::of("payments", "1").unwrap());
    let takeover = LeaseEvent { attempt: Attempt::Takeover, ..lease(&identity) };
    observer.acquired(takeover);
    observer.taken_over(takeover);
    observer.completed(takeover, Recorded::Yes);
    observer.waited(&identity, Duration::from_millis(1_500), WaitEnd::Complete);
    observer.replayed(call(&identity), None);
    for (series, sum) in [
        ("idempotency.lease.takeovers idempotency.scope=payments", 1.0),
        (
            "idempotency.action.duration idempotency.scope=payments idempotency.attempt=takeover",
            2.0,
        ),
        ("idempotency.wait.duration idempotency.scope=payments idempotency.ended_by=complete", 1.5),
        ("idempotency.saved idempotency.scope=payments", 2.0),
    ] {
        assert_eq!(observer.sum(series), Some(sum), "{series} in {:#?}", observer.series());
    }
}

#[test]
fn run_9_which_scopes_are_named_depends_on_their_names_alone() {
    let scopes: Vec<String> = (0..2 * MAX_SCOPES).map(|n| format!("scope-{n:03}")).collect();
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let (observer, takeovers) = (observer(&scopes), "idempotency.lease.takeovers");
    for (n, scope) in scopes.into_iter().enumerate() {
        let sum = observer.sum(&format!("{takeovers} idempotency.scope={scope}"));
        assert_eq!(sum.is_some(), n < MAX_SCOPES, "{scope}");
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
        match instrument.unit() {
            "s" => name.push_str("_seconds"),
            "By" => name.push_str("_bytes"),
            _ => {}
        }
        if instrument.kind() == InstrumentKind::Counter {
            name.push_str("_total");
        }
        assert_eq!(instrument.prometheus_name(), name);
    }
    assert!(SECONDS.is_sorted() && BYTES.is_sorted());
}
