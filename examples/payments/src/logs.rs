// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service's log of each request: executed, replayed, waited, taken over, and how it ended.

use std::time::Duration;

use retryproof::observe::{CallEvent, LeaseEvent, Loss, Observer, Phase};
use retryproof::store::HolderNote;
use retryproof::{ErrorKind, Identity, Recorded};
use tracing_subscriber::EnvFilter;

/// Logs to stderr, at the level of `RUST_LOG` or else at `info`.
pub(crate) fn start() {
    // Each line below names its call, so the span of the call would repeat that.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,retryproof::call=off"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .try_init();
}

/// One line per event. An identity prints masked, so a log contains no key.
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
