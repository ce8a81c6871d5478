// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OtelMeasurements`] records the engine's instruments through OpenTelemetry (RUN-9).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter};
use retryproof_core::observe::telemetry::{
    Instrument, InstrumentKind, Measurements, Series, SeriesHandles,
};
use retryproof_core::store::TraceContext;

use crate::trace;

/// Records measurements with the instruments of a meter. [`observer`](crate::observer) creates this
/// type.
pub struct OtelMeasurements {
    counters: BTreeMap<Instrument, Counter<u64>>,
    up_down_counters: BTreeMap<Instrument, UpDownCounter<i64>>,
    gauges: BTreeMap<Instrument, Gauge<u64>>,
    histograms: BTreeMap<Instrument, Histogram<f64>>,
    attributes: SeriesHandles<Arc<[KeyValue]>>,
}

impl OtelMeasurements {
    pub(crate) fn new(meter: &Meter) -> Self {
        let of = |kind: InstrumentKind| {
            Instrument::ALL.into_iter().filter(move |one| one.kind() == kind)
        };
        let counter = |one: Instrument| {
            meter.u64_counter(one.name()).with_unit(one.unit()).with_description(one.description())
        };
        let up_down_counter = |one: Instrument| {
            let builder = meter.i64_up_down_counter(one.name());
            builder.with_unit(one.unit()).with_description(one.description())
        };
        let gauge = |one: Instrument| {
            meter.u64_gauge(one.name()).with_unit(one.unit()).with_description(one.description())
        };
        let histogram = |one: Instrument| {
            let builder = meter.f64_histogram(one.name());
            builder
                .with_unit(one.unit())
                .with_description(one.description())
                .with_boundaries(one.boundaries().to_vec())
        };
        Self {
            counters: of(InstrumentKind::Counter).map(|one| (one, counter(one).build())).collect(),
            up_down_counters: of(InstrumentKind::UpDownCounter)
                .map(|one| (one, up_down_counter(one).build()))
                .collect(),
            gauges: of(InstrumentKind::Gauge).map(|one| (one, gauge(one).build())).collect(),
            histograms: of(InstrumentKind::Histogram)
                .map(|one| (one, histogram(one).build()))
                .collect(),
            attributes: SeriesHandles::default(),
        }
    }

    fn attributes(&self, series: &Series) -> Arc<[KeyValue]> {
        self.attributes.get(series, || {
            series.labels().map(|(label, value)| KeyValue::new(label, value.to_owned())).collect()
        })
    }
}

impl Measurements for OtelMeasurements {
    fn count(&self, series: &Series, increment: u64) {
        if let Some(counter) = self.counters.get(&series.instrument()) {
            counter.add(increment, &self.attributes(series));
        }
    }

    fn change(&self, series: &Series, by: i64) {
        if let Some(counter) = self.up_down_counters.get(&series.instrument()) {
            counter.add(by, &self.attributes(series));
        }
    }

    fn set(&self, series: &Series, value: u64) {
        if let Some(gauge) = self.gauges.get(&series.instrument()) {
            gauge.record(value, &self.attributes(series));
        }
    }

    fn time(&self, series: &Series, took: Duration) {
        if let Some(histogram) = self.histograms.get(&series.instrument()) {
            histogram.record(took.as_secs_f64(), &self.attributes(series));
        }
    }

    fn size(&self, series: &Series, bytes: usize) {
        if let Some(histogram) = self.histograms.get(&series.instrument()) {
            histogram.record(as_float(bytes), &self.attributes(series));
        }
    }

    fn link(&self, executed: TraceContext) {
        trace::link(executed);
    }
}

/// Converts a size to a float. A size of 4 GiB or more counts as 4 GiB, which is above the last
/// bucket.
fn as_float(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX))
}

impl fmt::Debug for OtelMeasurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtelMeasurements")
            .field("attributes", &self.attributes)
            .finish_non_exhaustive()
    }
}
