// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Resource`]: what actions change outside of the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use history::{Event, Fun, Phase, Said};
use parking_lot::Mutex;
use retryproof::{Identity, Lease};

use crate::log::Log;

/// The guard of the resource: it refuses a token that is older than one it has seen (ACQ-10).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guard;

/// The largest token that each identity's actions have shown.
#[derive(Debug, Default)]
pub(crate) struct Resource(Mutex<HashMap<Identity, u64>>);

impl Resource {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes an effect in the name of a lease, and logs whether the guard let it through.
    pub(crate) async fn touch(&self, log: &Log, _: Guard, identity: &Identity, lease: &Lease) {
        // This pause stands for work between the grant and the effect. If the process is killed
        // during the pause, another owner can take over.
        tokio::time::sleep(Duration::from_millis(2)).await;
        if log.is_dead() {
            return;
        }
        let token = lease.token().get();
        let mut seen = self.0.lock();
        let top = seen.entry(identity.clone()).or_default();
        let said = if token >= *top { Said::Applied } else { Said::Refused };
        *top = token.max(*top);
        log.write(&Event {
            token: Some(token),
            said: Some(said),
            ..log.of(0, Fun::Effect, Phase::Ok, identity)
        });
    }
}
