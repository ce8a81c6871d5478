// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod measurements;

use retryproof_core::IdempotencyConfig;
use retryproof_core::observe::telemetry::MeasuringObserver;

pub use measurements::FacadeMeasurements;
pub use retryproof_core::observe::telemetry::SECONDS;

/// Creates an observer that measures with the recorder that is installed. Install the recorder
/// first, and pass the configuration with which the engine is built.
#[must_use = "pass the observer to `EngineBuilder::observer`"]
pub fn observer(config: &IdempotencyConfig) -> MeasuringObserver<FacadeMeasurements> {
    MeasuringObserver::new(FacadeMeasurements::described(), config)
}
