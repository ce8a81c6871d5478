// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FacadeMeasurements`] records the engine's instruments through the `metrics` facade (RUN-9).

use std::fmt;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, SharedString, Unit,
    with_recorder,
};
use retryproof_core::observe::telemetry::{
    Instrument, InstrumentKind, Measurements, Series, SeriesHandles,
};

static METADATA: Metadata<'static> = Metadata::new("retryproof", Level::INFO, Some(module_path!()));

/// Records measurements with the installed recorder, and keeps a handle for each series.
/// [`observer`](crate::observer) creates this type.
#[derive(Default)]
pub struct FacadeMeasurements {
    counters: SeriesHandles<Counter>,
    gauges: SeriesHandles<Gauge>,
    histograms: SeriesHandles<Histogram>,
}

impl FacadeMeasurements {
    /// Describes each instrument to the installed recorder.
    pub(crate) fn described() -> Self {
        with_recorder(|recorder| {
            for instrument in Instrument::ALL {
                let name = KeyName::from_const_str(instrument.prometheus_name());
                let unit = match instrument.unit() {
                    "s" => Some(Unit::Seconds),
                    "By" => Some(Unit::Bytes),
                    _ => None,
                };
                let description = SharedString::const_str(instrument.description());
                match instrument.kind() {
                    InstrumentKind::Counter => recorder.describe_counter(name, unit, description),
                    InstrumentKind::Histogram => {
                        recorder.describe_histogram(name, unit, description);
                    }
                    _ => recorder.describe_gauge(name, unit, description),
                }
            }
        });
        Self::default()
    }

    fn histogram(&self, series: &Series) -> Histogram {
        let create = || with_recorder(|r| r.register_histogram(&key(series), &METADATA));
        self.histograms.get(series, create)
    }

    fn gauge(&self, series: &Series) -> Gauge {
        self.gauges.get(series, || with_recorder(|r| r.register_gauge(&key(series), &METADATA)))
    }
}

/// Returns the name and labels of a series, in the form in which Prometheus shows OpenTelemetry's
/// instruments.
fn key(series: &Series) -> Key {
    let labels: Vec<Label> = series
        .labels()
        .map(|(label, value)| Label::new(label.replace('.', "_"), value.to_owned()))
        .collect();
    Key::from_parts(KeyName::from_const_str(series.instrument().prometheus_name()), labels)
}

impl Measurements for FacadeMeasurements {
    fn count(&self, series: &Series, increment: u64) {
        let create = || with_recorder(|r| r.register_counter(&key(series), &METADATA));
        self.counters.get(series, create).increment(increment);
    }

    fn change(&self, series: &Series, by: i64) {
        // `f64` cannot represent every `i64`, so convert through `i32`. Each step is 0, 1 or -1 and
        // always fits.
        let by = i32::try_from(by).unwrap_or_default();
        self.gauge(series).increment(f64::from(by));
    }

    fn set(&self, series: &Series, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.gauge(series).set(f64::from(value));
    }

    fn time(&self, series: &Series, took: Duration) {
        self.histogram(series).record(took.as_secs_f64());
    }

    /// Records a size. A size of 4 GiB or more counts as 4 GiB, which is above the last bucket.
    fn size(&self, series: &Series, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.histogram(series).record(f64::from(bytes));
    }
}

impl fmt::Debug for FacadeMeasurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FacadeMeasurements")
            .field("counters", &self.counters)
            .field("gauges", &self.gauges)
            .field("histograms", &self.histograms)
            .finish()
    }
}
