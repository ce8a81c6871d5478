// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MeasuringObserver`]: turns the engine's events into the measurements of a metrics system
//! (RUN-9). A crate for such a system implements [`Measurements`]; the instruments, their labels
//! and their buckets are the same for every system.

use std::sync::Arc;
use std::time::Duration;

use super::{CallEvent, LeaseEvent, Loss, Observer, Phase, PurgeEvent, StoreCallEvent, WaitEnd};
use crate::attempt::Attempt;
use crate::config::IdempotencyConfig;
use crate::error::ErrorKind;
use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::store::{HolderNote, TraceContext};

mod instrument;
mod scopes;
mod series;

pub use instrument::{Instrument, InstrumentKind, SECONDS};
pub use scopes::{MAX_SCOPES, OTHER_SCOPES};
pub use series::{Series, SeriesHandles};

use scopes::{MeasuredScope, MeasuredScopes};
use series::Label;

/// The reasons of [`Instrument::LeasesLost`].
const LOSS_REASONS: [&str; 4] = ["expired", "taken_over", "max_hold", "refused"];

/// A metrics system, as a [`MeasuringObserver`] uses it. The methods are called inside guarded
/// calls, so each should return quickly.
pub trait Measurements: Send + Sync + 'static {
    /// Adds to a [`Counter`](InstrumentKind::Counter). Adding 0 creates the series.
    fn count(&self, series: &Series, increment: u64);

    /// Adds to an [`UpDownCounter`](InstrumentKind::UpDownCounter).
    fn change(&self, series: &Series, by: i64);

    /// Sets a [`Gauge`](InstrumentKind::Gauge).
    fn set(&self, series: &Series, value: u64);

    /// Records a duration in a [`Histogram`](InstrumentKind::Histogram).
    fn time(&self, series: &Series, took: Duration);

    /// Links the current span, which belongs to a replay, to the trace of the call that executed
    /// the work. By default, nothing is linked, which is right for a system without traces.
    fn link(&self, executed: TraceContext) {
        let _ = executed;
    }
}

/// Observes an engine, and measures its events with the instruments of [`Instrument`].
///
/// The label for the scope names at most [`MAX_SCOPES`] scopes: the configured scopes, then those
/// that are used first. All other scopes share the label [`OTHER_SCOPES`]. Keys and callers are
/// never labels.
///
/// The counters that alerts watch have the value 0 from the start for each configured scope that is
/// named, and from the first event for each scope that is named later. A counter whose first value
/// is 1 would not raise an alert, because a rate needs an earlier value.
///
/// # When to use
/// Use the crates `retryproof-otel` and `retryproof-metrics`, which create this observer for
/// OpenTelemetry and for the facade `metrics`. To feed another metrics system, implement
/// [`Measurements`].
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
    /// Creates an observer for an engine that is built with `config`. The scopes of this
    /// configuration are named first.
    #[must_use = "pass the observer to `EngineBuilder::observer`"]
    pub fn new(system: M, config: &IdempotencyConfig) -> Self {
        let observer = Self { system, scopes: MeasuredScopes::default() };
        observer.system.count(&Series::new(Instrument::Purged), 0);
        observer.system.change(&Series::new(Instrument::OpenCircuits), 0);
        // Sort the scopes, so that each process names the same ones if there are more than
        // `MAX_SCOPES`.
        let mut configured: Vec<&String> = config.scopes.keys().collect();
        configured.sort_unstable();
        for name in configured {
            observer.scope_named(name);
        }
        observer
    }

    /// The metrics system.
    #[must_use]
    pub fn system(&self) -> &M {
        &self.system
    }

    fn scope(&self, identity: &Identity) -> Arc<MeasuredScope> {
        self.scope_named(identity.scope().as_str())
    }

    /// The scope's measurements. The counters that alerts watch are created with the scope.
    fn scope_named(&self, name: &str) -> Arc<MeasuredScope> {
        let (scope, is_new) = self.scopes.get(name);
        if is_new {
            for reason in LOSS_REASONS {
                self.count(&scope, Instrument::LeasesLost, &[(Label::Reason, reason)], 0);
            }
            for instrument in [Instrument::Takeovers, Instrument::Unrecorded, Instrument::Saved] {
                self.count(&scope, instrument, &[], 0);
            }
        }
        scope
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

    fn completed(&self, event: LeaseEvent<'_>, _: Recorded) {
        let scope = self.lease_ended(&event, "executed", None, true);
        scope.executed(event.held_for);
    }

    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        // If an execution was released or dropped, nothing shows how far its action came, so the
        // action's duration is not measured.
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

    /// The call's lease was not in the store, so the leases are not counted.
    fn unguarded(&self, event: LeaseEvent<'_>) {
        let scope = self.scope(event.identity);
        self.call_ended(&scope, "unguarded", None, event.waited + event.held_for);
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

/// The name of a store in OpenTelemetry's conventions (`db.system.name`).
fn database_of(store: &'static str) -> &'static str {
    match store {
        "postgres" => "postgresql",
        other => other,
    }
}

/// The value of `error.type`, which is the same as in the log.
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
