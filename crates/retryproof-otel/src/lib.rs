// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod measurements;
mod trace;

use opentelemetry::metrics::Meter;
use retryproof_core::IdempotencyConfig;
use retryproof_core::observe::telemetry::MeasuringObserver;

pub use measurements::OtelMeasurements;
pub use trace::current_trace;

/// The name of the meter, and of the instrumentation scope in exports.
const METER: &str = "retryproof";

/// Creates an observer that records its measurements with the global meter provider. Install the
/// provider first, and pass the configuration that the engine is built with.
#[must_use = "pass the observer to `EngineBuilder::observer`"]
pub fn observer(config: &IdempotencyConfig) -> MeasuringObserver<OtelMeasurements> {
    observer_with(&opentelemetry::global::meter(METER), config)
}

/// Like [`observer`], but with your own meter, for a program without a global meter provider.
#[must_use = "pass the observer to `EngineBuilder::observer`"]
pub fn observer_with(
    meter: &Meter,
    config: &IdempotencyConfig,
) -> MeasuringObserver<OtelMeasurements> {
    MeasuringObserver::new(OtelMeasurements::new(meter), config)
}
