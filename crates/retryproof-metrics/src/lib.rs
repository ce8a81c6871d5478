// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod measurements;

use retryproof_core::IdempotencyConfig;
use retryproof_core::observe::telemetry::MeasuringObserver;

pub use measurements::FacadeMeasurements;
pub use retryproof_core::observe::telemetry::{BYTES, SECONDS};

/// Creates an observer that records its measurements with the installed recorder. Install the
/// recorder first, and pass the configuration that the engine is built with.
#[must_use = "pass the observer to `EngineBuilder::observer`"]
pub fn observer(config: &IdempotencyConfig) -> MeasuringObserver<FacadeMeasurements> {
    MeasuringObserver::new(FacadeMeasurements::described(), config)
}
