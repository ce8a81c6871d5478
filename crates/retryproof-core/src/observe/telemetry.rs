// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MeasuringObserver`]: turns the engine's events into the measurements of a metrics system
//! (RUN-9). A crate that supports a metrics system implements [`Measurements`]. All systems get the
//! same instruments, labels and buckets.
//!
//! This file is over 400 lines long because the observer has a method for each event.

use std::sync::Arc;
use std::time::Duration;

use super::{
    CallEvent, LeaseEvent, Loss, Observer, Phase, PurgeEvent, ShadowVerdict, StoreCallEvent,
    WaitEnd,
};
use crate::attempt::Attempt;
use crate::config::IdempotencyConfig;
use crate::error::ErrorKind;
use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::store::{HolderNote, TraceContext};

mod instrument;
mod scopes;
mod series;

pub use instrument::{BYTES, Instrument, InstrumentKind, SECONDS};
pub use scopes::{MAX_SCOPES, OTHER_SCOPES};
pub use series::{Series, SeriesHandles};

use scopes::{MeasuredScope, MeasuredScopes};
use series::Label;

/// The reasons of [`Instrument::LeasesLost`].
const LOSS_REASONS: [&str; 4] = ["expired", "taken_over", "max_hold", "refused"];

/// The outcome of a call whose scope is switched off.
const UNGUARDED: &str = "unguarded";

/// The outcome of a call whose scope is in shadow mode.
const SHADOW: &str = "shadow";

/// The verdicts whose counters start at 0. `Refused` is not among them, because its series also
/// depend on the kind of error.
const VERDICTS: [ShadowVerdict; 5] = [
    ShadowVerdict::Executed,
    ShadowVerdict::Replayed,
    ShadowVerdict::Mismatch,
    ShadowVerdict::NotReplayable,
    ShadowVerdict::InFlight,
];

/// Receives the measurements of a [`MeasuringObserver`] for a metrics system. The engine calls each
/// method during a guarded call, so each method should return quickly.
pub trait Measurements: Send + Sync + 'static {
    /// Adds to a [`Counter`](InstrumentKind::Counter). Adding 0 creates the series.
    fn count(&self, series: &Series, increment: u64);

    /// Adds to an [`UpDownCounter`](InstrumentKind::UpDownCounter).
    fn change(&self, series: &Series, by: i64);

    /// Sets a [`Gauge`](InstrumentKind::Gauge).
    fn set(&self, series: &Series, value: u64);

    /// Records a duration in a [`Histogram`](InstrumentKind::Histogram).
    fn time(&self, series: &Series, took: Duration);

    /// Records a size in a [`Histogram`](InstrumentKind::Histogram) of bytes.
    fn size(&self, series: &Series, bytes: usize);

    /// Links the current span, which belongs to a replay, to the trace of the call that executed
    /// the work. The default implementation does nothing, which suits a system without traces.
    fn link(&self, executed: TraceContext) {
        let _ = executed;
    }
}

/// Observes an engine and turns its events into the measurements of each [`Instrument`].
///
/// The scope label names at most [`MAX_SCOPES`] scopes: first the configured scopes, then other
/// scopes in the order of their first event. All other scopes share the label [`OTHER_SCOPES`].
/// Keys and callers are never labels.
///
/// Each counter that an alert watches starts at 0. For the configured scopes that are named and for
/// [`OTHER_SCOPES`], the counter is created together with the observer. For any other named scope,
/// the counter is created at the scope's first event. If the first value were 1, no alert would
/// follow, because a rate needs an earlier value.
///
/// # When to use
/// For OpenTelemetry, use the crate `retryproof-otel`; for the facade `metrics`, use
/// `retryproof-metrics`. Both crates create this observer. To feed another metrics system,
/// implement [`Measurements`].
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use retryproof_core::observe::telemetry::{
///     Instrument, Measurements, MeasuringObserver, Series,
/// };
/// use retryproof_core::{IdempotencyConfig, IdempotencyContext, IdempotencyEngine};
/// use retryproof_memory::MemoryStore;
///
/// struct Calls(Arc<AtomicU64>);
///
/// impl Measurements for Calls {
///     fn count(&self, series: &Series, increment: u64) {
///         if series.instrument() == Instrument::Calls {
///             self.0.fetch_add(increment, Ordering::Relaxed);
///         }
///     }
///     fn change(&self, _: &Series, _: i64) {}
///     fn set(&self, _: &Series, _: u64) {}
///     fn time(&self, _: &Series, _: Duration) {}
///     fn size(&self, _: &Series, _: usize) {}
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (calls, config) = (Arc::default(), IdempotencyConfig::default());
/// let observer = MeasuringObserver::new(Calls(Arc::clone(&calls)), &config);
/// let engine = IdempotencyEngine::builder(MemoryStore::new()).observer(observer).build()?;
/// let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
/// engine.execute(ctx, || async { Ok::<_, std::io::Error>(1) }).await?;
/// assert_eq!(calls.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MeasuringObserver<M> {
    system: M,
    scopes: MeasuredScopes,
}

impl<M: Measurements> MeasuringObserver<M> {
    /// Creates an observer for an engine that is built with `config`. The scopes in `config` are
    /// the first to get labels of their own.
    #[must_use = "pass the observer to `EngineBuilder::observer`"]
    pub fn new(system: M, config: &IdempotencyConfig) -> Self {
        let observer = Self { system, scopes: MeasuredScopes::default() };
        observer.system.count(&Series::new(Instrument::Purged), 0);
        observer.system.change(&Series::new(Instrument::OpenCircuits), 0);
        observer.count_from_0(observer.scopes.other());
        // Sort the scopes. If more than `MAX_SCOPES` are configured, every process then gives
        // labels to the same scopes.
        let mut configured: Vec<&String> = config.scopes.keys().collect();
        configured.sort_unstable();
        for name in configured {
            observer.scope_named(name);
        }
        for name in config.disabled_scopes() {
            let (scope, _) = observer.scopes.get(name);
            observer.count(&scope, Instrument::Calls, &[(Label::Outcome, UNGUARDED)], 0);
        }
        for name in config.shadowed_scopes() {
            let (scope, _) = observer.scopes.get(name);
            for verdict in VERDICTS {
                let labels = [(Label::Outcome, SHADOW), (Label::WouldBe, verdict.as_str())];
                observer.count(&scope, Instrument::Calls, &labels, 0);
            }
        }
        observer
    }

    /// Returns the metrics system.
    #[must_use]
    pub fn system(&self) -> &M {
        &self.system
    }

    fn scope(&self, identity: &Identity) -> Arc<MeasuredScope> {
        self.scope_named(identity.scope().as_str())
    }

    /// Returns the scope's measurements. The first use of a named scope also creates the counters
    /// that alerts watch.
    fn scope_named(&self, name: &str) -> Arc<MeasuredScope> {
        let (scope, is_new) = self.scopes.get(name);
        if is_new {
            self.count_from_0(&scope);
        }
        scope
    }

    /// Creates the counters that alerts watch.
    fn count_from_0(&self, scope: &MeasuredScope) {
        for reason in LOSS_REASONS {
            self.count(scope, Instrument::LeasesLost, &[(Label::Reason, reason)], 0);
        }
        for instrument in [Instrument::Takeovers, Instrument::Unrecorded, Instrument::Saved] {
            self.count(scope, instrument, &[], 0);
        }
    }

    fn count(
        &self,
        scope: &MeasuredScope,
        instrument: Instrument,
        labels: &[(Label, &'static str)],
        increment: u64,
    ) {
        self.system.count(&Series::of_scope(instrument, scope.name(), labels), increment);
    }

    fn time(
        &self,
        scope: &MeasuredScope,
        instrument: Instrument,
        labels: &[(Label, &'static str)],
        took: Duration,
    ) {
        self.system.time(&Series::of_scope(instrument, scope.name(), labels), took);
    }

    fn leases(&self, scope: &MeasuredScope, by: i64) {
        self.system.change(&Series::of_scope(Instrument::Leases, scope.name(), &[]), by);
    }

    /// Measures the end of a call.
    fn call_ended(
        &self,
        scope: &MeasuredScope,
        outcome: &'static str,
        error: Option<&'static str>,
        took: Duration,
    ) {
        let outcome = (Label::Outcome, outcome);
        match error {
            Some(error) => {
                let labels = [outcome, (Label::ErrorType, error)];
                self.count(scope, Instrument::Calls, &labels, 1);
            }
            None => self.count(scope, Instrument::Calls, &[outcome], 1),
        }
        self.time(scope, Instrument::CallDuration, &[outcome], took);
    }

    /// Measures the end of a call that had a lease.
    fn lease_ended(
        &self,
        event: &LeaseEvent<'_>,
        outcome: &'static str,
        error: Option<&'static str>,
        acted: bool,
    ) -> Arc<MeasuredScope> {
        let scope = self.scope(event.identity);
        self.leases(&scope, -1);
        self.call_ended(&scope, outcome, error, event.waited + event.held_for);
        if acted {
            let attempt = match event.attempt {
                Attempt::First => "first",
                Attempt::Takeover => "takeover",
            };
            let labels = [(Label::Attempt, attempt)];
            self.time(&scope, Instrument::ActionDuration, &labels, event.held_for);
        }
        scope
    }

    /// Measures the end of a call that had no lease.
    fn answered(
        &self,
        event: &CallEvent<'_>,
        outcome: &'static str,
        error: Option<&'static str>,
    ) -> Arc<MeasuredScope> {
        let scope = self.scope(event.identity);
        self.call_ended(&scope, outcome, error, event.took);
        scope
    }
}

impl<M: Measurements> Observer for MeasuringObserver<M> {
    fn acquired(&self, event: LeaseEvent<'_>) {
        self.leases(&self.scope(event.identity), 1);
    }

    fn taken_over(&self, event: LeaseEvent<'_>) {
        self.count(&self.scope(event.identity), Instrument::Takeovers, &[], 1);
    }

    fn loss_noticed(&self, event: LeaseEvent<'_>, loss: Loss) {
        let reason = match loss {
            Loss::Expired => "expired",
            Loss::TakenOver => "taken_over",
            Loss::MaxHold => "max_hold",
        };
        let labels = [(Label::Reason, reason)];
        self.count(&self.scope(event.identity), Instrument::LeasesLost, &labels, 1);
    }

    fn beat_failed(&self, event: LeaseEvent<'_>, kind: ErrorKind) {
        let labels = [(Label::ErrorType, error_type(kind))];
        self.count(&self.scope(event.identity), Instrument::BeatsFailed, &labels, 1);
    }

    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        let scope = self.lease_ended(&event, "executed", None, true);
        scope.executed(event.held_for);
        if let (Recorded::Yes, Some(bytes)) = (recorded, event.result_bytes) {
            let series = Series::of_scope(Instrument::ResultSize, scope.name(), &[]);
            self.system.size(&series, bytes);
        }
    }

    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        // Do not time an action that was released or dropped, because it is unknown how far the
        // action got.
        let (error, acted) = match phase {
            Phase::Action => (Some("action"), true),
            Phase::Panic => (Some("panic"), true),
            Phase::Held => (Some("held"), true),
            Phase::Completion => (Some("completion"), true),
            Phase::RolledBack => (Some("rolled_back"), true),
            Phase::Dropped => (Some("dropped"), false),
            Phase::Released => (None, false),
        };
        let scope = self.lease_ended(&event, phase.outcome(), error, acted);
        if phase == Phase::Completion {
            self.count(&scope, Instrument::Unrecorded, &[], 1);
        }
    }

    fn lost(&self, event: LeaseEvent<'_>) {
        let scope = self.lease_ended(&event, "lost", None, true);
        self.count(&scope, Instrument::LeasesLost, &[(Label::Reason, "refused")], 1);
    }

    /// Counts no lease, because an unguarded call has no lease in the store.
    fn unguarded(&self, event: LeaseEvent<'_>) {
        let scope = self.scope(event.identity);
        self.call_ended(&scope, UNGUARDED, None, event.waited + event.held_for);
    }

    /// Counts what the guard would have done, but counts no lease.
    fn shadowed(&self, event: LeaseEvent<'_>, verdict: ShadowVerdict) {
        let scope = self.scope(event.identity);
        let outcome = (Label::Outcome, SHADOW);
        let would_be = (Label::WouldBe, verdict.as_str());
        match verdict {
            ShadowVerdict::Refused(kind) => {
                let labels = [outcome, would_be, (Label::ErrorType, error_type(kind))];
                self.count(&scope, Instrument::Calls, &labels, 1);
            }
            _ => self.count(&scope, Instrument::Calls, &[outcome, would_be], 1),
        }
        self.time(&scope, Instrument::CallDuration, &[outcome], event.waited + event.held_for);
    }

    fn waited(&self, identity: &Identity, waited: Duration, end: WaitEnd) {
        let labels = [(Label::EndedBy, end.as_str())];
        self.time(&self.scope(identity), Instrument::WaitDuration, &labels, waited);
    }

    fn replayed(&self, event: CallEvent<'_>, holder: Option<&HolderNote>) {
        let scope = self.answered(&event, "replayed", None);
        if let Some(seconds) = scope.saved() {
            self.count(&scope, Instrument::Saved, &[], seconds);
        }
        if let Some(executed) = holder.and_then(HolderNote::trace) {
            self.system.link(executed);
        }
    }

    fn mismatch(&self, event: CallEvent<'_>) {
        self.answered(&event, "mismatch", None);
    }

    fn not_replayable(&self, event: CallEvent<'_>) {
        self.answered(&event, "not_replayable", None);
    }

    fn in_flight(&self, event: CallEvent<'_>, _: Duration) {
        self.answered(&event, "in_flight", None);
    }

    fn refused(&self, event: CallEvent<'_>, kind: ErrorKind) {
        self.answered(&event, "refused", Some(error_type(kind)));
    }

    fn store_called(&self, event: StoreCallEvent) {
        let operation = (Label::Operation, event.operation);
        let store = (Label::Store, database_of(event.store));
        let series = match event.error {
            Some(kind) => Series::with(
                Instrument::StoreDuration,
                &[operation, store, (Label::ErrorType, error_type(kind))],
            ),
            None => Series::with(Instrument::StoreDuration, &[operation, store]),
        };
        self.system.time(&series, event.took);
    }

    fn circuit_opened(&self) {
        self.system.change(&Series::new(Instrument::OpenCircuits), 1);
    }

    fn circuit_closed(&self) {
        self.system.change(&Series::new(Instrument::OpenCircuits), -1);
    }

    fn purged(&self, event: PurgeEvent) {
        let deleted = u64::try_from(event.deleted).unwrap_or(u64::MAX);
        self.system.count(&Series::new(Instrument::Purged), deleted);
        self.system.set(&Series::new(Instrument::PurgeBacklog), u64::from(!event.kept_up));
    }
}

/// Returns the name of a store in OpenTelemetry's conventions (`db.system.name`).
fn database_of(store: &'static str) -> &'static str {
    match store {
        "postgres" => "postgresql",
        other => other,
    }
}

/// Returns the value of `error.type`, which is the same as in the log.
fn error_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "Invalid",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::ShuttingDown => "ShuttingDown",
        ErrorKind::TooBusy => "TooBusy",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::Config => "Config",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::Schema => "Schema",
        ErrorKind::Full => "Full",
        ErrorKind::TooLarge => "TooLarge",
        ErrorKind::Codec => "Codec",
        ErrorKind::Unexpected => "Unexpected",
    }
}

#[cfg(test)]
mod tests;
