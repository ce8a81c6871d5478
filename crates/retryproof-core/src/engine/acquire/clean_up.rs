// SPDX-License-Identifier: MIT OR Apache-2.0
//! Continues, under a time limit, an acquire whose outcome is unknown after its first poll. If the
//! outcome stays unknown or the call is dropped, [`ReleaseIfGranted`] starts a task that releases
//! the lease (ACQ-8, ACQ-9, ACQ-11).

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::{AcquireLoop, is_unavailable};
use crate::clock::Instant;
use crate::context::Guarding;
use crate::engine::complete::release_until;
use crate::engine::state::EngineState;
use crate::engine::store_client::no_answer;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::OwnerId;
use crate::store::{Acquired, StoreCall};

/// An acquire whose outcome is unknown.
pub(super) enum OpenAcquire {
    /// The store answered with an error that leaves the outcome unknown.
    Lost(Result<Acquired>),
    /// The call was polled once and has not been answered yet.
    Unanswered(StoreCall<Acquired>),
}

impl<'a> AcquireLoop<'a> {
    /// Continues an acquire that was sent at `sent` and polled once. Also returns the instant from
    /// which a granted lease is measured.
    pub(super) async fn finish(
        &self,
        owner: OwnerId,
        runtime: Handle,
        sent: Instant,
        open: OpenAcquire,
    ) -> (Result<Acquired>, Instant) {
        let store = self.store;
        let mut guard = self.release_if_granted(owner, runtime);
        let ends = (sent + store.operation_timeout()).min(self.last());
        let left = || ends.saturating_duration_since(store.now());
        let mut answer = match open {
            OpenAcquire::Lost(answer) => answer,
            OpenAcquire::Unanswered(call) => {
                let answer = guard.answer(left(), call).await;
                store.called("acquire", sent, &answer);
                answer
            }
        };
        let mut counted_from = sent;
        if is_unavailable(&answer) && !left().is_zero() {
            counted_from = store.now();
            let again = store.acquire_call(self.identity(), self.request(owner));
            answer = guard.answer(left(), again).await;
            store.called("acquire", counted_from, &answer);
        }
        if !is_unavailable(&answer) {
            guard.disarm();
        }
        (answer, counted_from)
    }

    /// Gives back the lease of an untracked call that a shutdown overtook, and returns the call's
    /// error. The shutdown does not wait for the action of such a call (RUN-5).
    pub(super) fn overtaken(&self, owner: OwnerId, runtime: Handle) -> Error {
        // A scope that is switched off does not use the engine's store (CTX-5).
        if self.durations.guarding != Guarding::Off {
            drop(self.release_if_granted(owner, runtime));
        }
        self.refuse(ErrorKind::ShuttingDown)
    }

    pub(super) fn release_if_granted(
        &self,
        owner: OwnerId,
        runtime: Handle,
    ) -> ReleaseIfGranted<'a> {
        ReleaseIfGranted {
            engine: self.engine,
            identity: self.ctx.identity(),
            owner,
            lease: self.durations.lease,
            runtime,
            armed: true,
            unanswered: None,
        }
    }
}

/// Cleans up after an acquire whose outcome is unknown. When this value is dropped, a task on the
/// runtime first finishes the acquire and then releases the lease. A release that overtook the
/// acquire would leave a lease without a holder (ACQ-11).
pub(super) struct ReleaseIfGranted<'a> {
    engine: &'a EngineState,
    identity: &'a Identity,
    owner: OwnerId,
    lease: Duration,
    runtime: Handle,
    armed: bool,
    unanswered: Option<StoreCall<Acquired>>,
}

impl ReleaseIfGranted<'_> {
    /// Awaits a call for up to `limit`. If there is no answer by then, keeps the call, so that
    /// `drop` can finish it.
    async fn answer(&mut self, limit: Duration, call: StoreCall<Acquired>) -> Result<Acquired> {
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
    fn disarm(mut self) {
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
