// SPDX-License-Identifier: MIT OR Apache-2.0
//! For tests of listeners on a message broker: where the shared brokers are, one of a test's own,
//! and waiting for what has to come.

use std::time::Duration;

use tokio::time::{sleep, timeout};

mod running;
mod seen;
mod server;
mod verdicts;
mod work;

pub use running::{Running, Stop};
pub use seen::{Fate, Seen};
pub use server::Server;
pub use verdicts::{lease_lost, not_recorded};
pub use work::{Gate, counted, gated, unsure};

/// Longer than anything takes that ends well, also on a machine with a lot to do.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What `cargo xtask services` says under `name`: the variable, else the line of the file that it
/// wrote below `root`, the folder of the workspace. None where nothing runs.
#[must_use]
pub fn service(root: &str, name: &str) -> Option<String> {
    if let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) {
        return Some(value);
    }
    let written = std::fs::read_to_string(format!("{root}/target/services/env")).ok()?;
    written.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// Waits until `holds`, which is asked again and again.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "{what}: not within {PATIENCE:?}");
}

/// The same for a condition that is seen at once.
///
/// # Panics
/// As [`eventually`].
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, async || holds()).await;
}
