// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FacadeMeasurements`]: the instruments of the engine as metrics of the facade (RUN-9).

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

/// Measures with the recorder that is installed, and keeps a handle for each series. Created by
/// [`observer`](crate::observer).
#[derive(Default)]
pub struct FacadeMeasurements {
    counters: SeriesHandles<Counter>,
    gauges: SeriesHandles<Gauge>,
    histograms: SeriesHandles<Histogram>,
}

impl FacadeMeasurements {
    /// Gives the recorder the description of each instrument.
    pub(crate) fn described() -> Self {
        with_recorder(|recorder| {
            for instrument in Instrument::ALL {
                let name = KeyName::from_const_str(instrument.prometheus_name());
                let unit = (instrument.unit() == "s").then_some(Unit::Seconds);
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

    fn gauge(&self, series: &Series) -> Gauge {
        self.gauges.get(series, || with_recorder(|r| r.register_gauge(&key(series), &METADATA)))
    }
}

/// The name and labels of a series, as Prometheus shows them for OpenTelemetry's instruments.
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
        // There is no lossless conversion from i64 to f64, but each step is 0, 1 or -1.
        let by = i32::try_from(by).unwrap_or_default();
        self.gauge(series).increment(f64::from(by));
    }

    fn set(&self, series: &Series, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.gauge(series).set(f64::from(value));
    }

    fn time(&self, series: &Series, took: Duration) {
        let create = || with_recorder(|r| r.register_histogram(&key(series), &METADATA));
        self.histograms.get(series, create).record(took.as_secs_f64());
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
