// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers for testing listeners on a message broker. The helpers find the shared brokers, start a
//! private broker for one test, and wait for conditions.

use std::time::Duration;

use tokio::time::{sleep, timeout};

mod running;
mod seen;
mod server;
mod verdicts;
mod work;

pub use running::{Running, Stop};
pub use seen::{MessageFate, Seen};
pub use server::Server;
pub use verdicts::{lease_lost, not_recorded};
pub use work::{Gate, counted, gated, unsure};

/// The time limit of a step. Every successful step is faster, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the address of the service `name` from the environment variable `name`. If the variable
/// is not set, reads the file that `cargo xtask services` wrote below `root`, the workspace's
/// folder. Returns `None` if neither contains the address.
#[must_use]
pub fn service(root: &str, name: &str) -> Option<String> {
    if let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) {
        return Some(value);
    }
    let written = std::fs::read_to_string(format!("{root}/target/services/env")).ok()?;
    written.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// Calls `holds` repeatedly until it returns `true`.
///
/// # Panics
/// If `holds` does not return `true` within [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        timeout(PATIENCE, waiting).await.is_ok(),
        "expected within {PATIENCE:?}, but did not happen: {what}"
    );
}

/// Like [`eventually`], for a condition that is not async.
///
/// # Panics
/// Like [`eventually`].
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, async || holds()).await;
}
