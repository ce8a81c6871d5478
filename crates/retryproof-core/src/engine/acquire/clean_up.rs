// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ReleaseIfGranted`]: awaits, with a time limit, an acquire that was not answered at its first
//! poll. If this guard is dropped, a task on the runtime releases the lease (ACQ-8, ACQ-9, ACQ-11).

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::engine::complete::release_until;
use crate::engine::state::EngineState;
use crate::engine::store_client::no_answer;
use crate::error::Result;
use crate::identity::Identity;
use crate::owner::OwnerId;
use crate::store::{Acquired, StoreCall};

/// Cleans up after an acquire whose outcome is unknown. When dropped, it finishes the acquire on
/// the runtime and then releases the lease: a release sent while the acquire is in flight could
/// overtake it, and the acquire would then leave a lease without a holder (ACQ-11).
pub(super) struct ReleaseIfGranted<'a> {
    engine: &'a EngineState,
    identity: &'a Identity,
    owner: OwnerId,
    lease: Duration,
    runtime: Handle,
    armed: bool,
    unanswered: Option<StoreCall<Acquired>>,
}

impl<'a> ReleaseIfGranted<'a> {
    pub(super) fn new(
        engine: &'a EngineState,
        identity: &'a Identity,
        owner: OwnerId,
        lease: Duration,
        runtime: Handle,
    ) -> Self {
        Self { engine, identity, owner, lease, runtime, armed: true, unanswered: None }
    }

    /// Awaits a call for up to `limit`. If the call is still unanswered then, keeps it, so that
    /// `drop` can finish it.
    pub(super) async fn answer(
        &mut self,
        limit: Duration,
        call: StoreCall<Acquired>,
    ) -> Result<Acquired> {
        let call = self.unanswered.insert(call);
        match timeout(limit, call.as_mut()).await {
            Ok(answer) => {
                self.unanswered = None;
                answer
            }
            Err(_) => Err(no_answer(limit)),
        }
    }

    /// Marks the outcome as known, so that `drop` does not clean up.
    pub(super) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for ReleaseIfGranted<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (store, identity) = (Arc::clone(&self.engine.store), self.identity.clone());
        let (owner, unanswered) = (self.owner, self.unanswered.take());
        let until = store.now() + self.lease;
        self.engine.tasks.end_in_background(&self.runtime, async move {
            if let Some(call) = unanswered {
                let left = until.saturating_duration_since(store.now());
                let answer = timeout(store.operation_timeout().max(left), call).await;
                if let Ok(Ok(Acquired::Complete(_) | Acquired::Busy(_))) = answer {
                    return;
                }
            }
            // Ignore a failure: at worst, the key stays taken until the lease runs out.
            let _ = release_until(&store, &identity, owner, until).await;
        });
    }
}
