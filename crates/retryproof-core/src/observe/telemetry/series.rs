// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Series`]: an instrument with the values of its labels. [`SeriesHandles`] keeps a metrics
//! system's handle for each series.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::instrument::Instrument;

const SCOPE: &str = "idempotency.scope";

/// An instrument with the values of its labels. The numbers of named scopes and of label values are
/// limited, so a metrics system can keep a handle for each series.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Series {
    instrument: Instrument,
    scope: Option<Arc<str>>,
    labels: [Option<(Label, &'static str)>; MAX_LABELS],
}

/// The largest number of labels that an instrument has besides the scope.
const MAX_LABELS: usize = 3;

/// A label whose values are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Label {
    Outcome,
    WouldBe,
    ErrorType,
    EndedBy,
    Attempt,
    Reason,
    Operation,
    Store,
}

impl Label {
    const fn name(self) -> &'static str {
        match self {
            Self::Outcome => "idempotency.outcome",
            Self::WouldBe => "idempotency.would_be",
            Self::ErrorType => "error.type",
            Self::EndedBy => "idempotency.ended_by",
            Self::Attempt => "idempotency.attempt",
            Self::Reason => "idempotency.reason",
            Self::Operation => "idempotency.operation",
            Self::Store => "db.system.name",
        }
    }
}

impl Series {
    /// Creates a series without labels.
    pub(super) fn new(instrument: Instrument) -> Self {
        Self { instrument, scope: None, labels: [None; MAX_LABELS] }
    }

    /// Creates a series with these labels, but without a scope.
    pub(super) fn with(instrument: Instrument, labels: &[(Label, &'static str)]) -> Self {
        let mut series = Self::new(instrument);
        debug_assert!(labels.len() <= MAX_LABELS, "an instrument has at most 3 labels");
        for (place, label) in series.labels.iter_mut().zip(labels) {
            *place = Some(*label);
        }
        series
    }

    /// Creates a series with these labels and a scope.
    pub(super) fn of_scope(
        instrument: Instrument,
        scope: &Arc<str>,
        labels: &[(Label, &'static str)],
    ) -> Self {
        Self { scope: Some(Arc::clone(scope)), ..Self::with(instrument, labels) }
    }

    /// Returns the instrument.
    #[must_use]
    pub fn instrument(&self) -> Instrument {
        self.instrument
    }

    /// Returns the names of the labels, which follow OpenTelemetry's conventions, and their values.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let scope = self.scope.as_deref().map(|scope| (SCOPE, scope));
        let others = self.labels.iter().flatten().map(|(label, value)| (label.name(), *value));
        scope.into_iter().chain(others)
    }
}

/// Keeps a handle for each [`Series`]. A measurement then need not look up its labels in the
/// metrics system.
pub struct SeriesHandles<H>(RwLock<HashMap<Series, H>>);

impl<H: Clone> SeriesHandles<H> {
    /// Returns the handle of a series, and creates the handle if it does not exist yet.
    pub fn get(&self, series: &Series, create: impl FnOnce() -> H) -> H {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner).get(series).cloned();
        kept.unwrap_or_else(|| {
            // Call `create` without holding the lock, because the metrics system can panic.
            let created = create();
            let mut handles = self.0.write().unwrap_or_else(PoisonError::into_inner);
            handles.entry(series.clone()).or_insert(created).clone()
        })
    }
}

impl<H> Default for SeriesHandles<H> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<H> fmt::Debug for SeriesHandles<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("SeriesHandles").field("kept", &kept).finish()
    }
}
