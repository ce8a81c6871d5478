// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs what happened to each request: for example, whether it executed, was replayed, waited or
//! took over.

use std::time::Duration;

use retryproof::observe::{CallEvent, LeaseEvent, Loss, Observer, Phase};
use retryproof::store::HolderNote;
use retryproof::{ErrorKind, Identity, Recorded};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use crate::operate::Telemetry;

/// Logs to stderr, at the level that `RUST_LOG` sets (by default `info`). Also passes the spans of
/// calls and of their phases to the telemetry.
pub(crate) fn start(telemetry: Option<&Telemetry>) {
    // Do not log the spans of calls, because each line below already names its call.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,retryproof::call=off"));
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_filter(filter);
    let lines = tracing_subscriber::registry().with(lines);
    // Add the second layer only if it exists: an empty layer (`None`) would suppress some lines of
    // the first layer.
    let _ = match telemetry {
        Some(telemetry) => {
            let calls = Targets::new().with_target("retryproof::call", Level::DEBUG);
            let spans = tracing_opentelemetry::layer().with_tracer(telemetry.tracer());
            lines.with(spans.with_filter(calls)).try_init()
        }
        None => lines.try_init(),
    };
}

/// Logs one line per event. Identities are printed masked, so the log contains no key.
#[derive(Debug)]
pub(crate) struct Log;

impl Observer for Log {
    fn taken_over(&self, event: LeaseEvent<'_>) {
        tracing::warn!(id = %event.identity, token = %event.token, "taken over");
    }

    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        tracing::info!(id = %event.identity, ?recorded, ms = event.held_for.as_millis(), "executed");
    }

    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        tracing::warn!(id = %event.identity, ?phase, "failed");
    }

    fn lost(&self, event: LeaseEvent<'_>) {
        tracing::warn!(id = %event.identity, "lost");
    }

    fn loss_noticed(&self, event: LeaseEvent<'_>, loss: Loss) {
        tracing::warn!(id = %event.identity, ?loss, "lease lost while paying");
    }

    fn waiting(&self, identity: &Identity) {
        tracing::info!(id = %identity, "waiting");
    }

    fn replayed(&self, event: CallEvent<'_>, _: Option<&HolderNote>) {
        tracing::info!(id = %event.identity, "replayed");
    }

    fn mismatch(&self, event: CallEvent<'_>) {
        tracing::warn!(id = %event.identity, "key used for another request");
    }

    fn in_flight(&self, event: CallEvent<'_>, remaining: Duration) {
        tracing::info!(id = %event.identity, ms = remaining.as_millis(), "in flight");
    }

    fn refused(&self, event: CallEvent<'_>, kind: ErrorKind) {
        tracing::warn!(id = %event.identity, ?kind, "refused");
    }
}
