// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first pass of an acquire, without a future, for a store that answers immediately.
//!
//! This path is faster than the usual one. It exists because a published bound limits the time of
//! an HTTP replay from a memory store. Only stores that declare themselves `immediate` use this
//! path.

use std::task::{Context, Poll, Waker};

use super::{AcquireLoop, Acquisition, EndedAcquire, Found, is_unavailable};
use crate::context::IdempotencyContext;
use crate::engine::state::EngineState;
use crate::engine::tasks::current_runtime;
use crate::error::Result;
use crate::owner::OwnerId;
use crate::store::Acquired;

/// Runs [`acquire`](super::acquire) on an immediate store. If the call has to wait, returns the
/// owner id with which the call continues.
#[inline]
pub(super) fn acquire_in_place(
    engine: &EngineState,
    ctx: &IdempotencyContext,
) -> Result<EndedAcquire, OwnerId> {
    let acquiring = AcquireLoop::new(engine, ctx, true);
    let acquired = match acquiring.check() {
        Ok(()) => acquiring.run_in_place()?,
        Err(error) => Err(error),
    };
    Ok(acquiring.ended(acquired))
}

impl AcquireLoop<'_> {
    /// Runs the first pass on an immediate store. Returns an `Err` in three cases:
    /// - The call gets no permit, or the circuit breaker refuses it. A stored result may still be
    ///   the answer (HTTP-14).
    /// - The store does not answer immediately after all.
    /// - There is a holder to wait for.
    ///
    /// After an `Err`, [`run`](Self::run) continues as the same owner, because the store may
    /// already have granted that owner a lease.
    #[inline]
    fn run_in_place(&self) -> Result<Result<Acquisition>, OwnerId> {
        let store = self.store;
        let may = self.permit().ok().zip(store.admit().ok());
        let owner = store.owner();
        let (permit, admission) = may.ok_or(owner)?;
        let answer = self.answer_in_place(owner).ok_or(owner)?;
        let found = self.found(answer, self.began, owner, permit, || {
            // Outside a tokio runtime, the engine cannot send heartbeats, so the lease is released.
            current_runtime().inspect_err(|_| self.release_in_place(owner))
        });
        drop(admission);
        match found {
            Ok(Found::End(end)) => Ok(Ok(end)),
            Ok(Found::Busy(holder)) if self.durations.wait.is_zero() => {
                Ok(Ok(self.in_flight(holder)))
            }
            Ok(Found::Busy(_)) => Err(owner),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Sends an acquire to an immediate store, and sends it again if the answer is lost. Returns
    /// `None` if the call has to continue as a future.
    fn answer_in_place(&self, owner: OwnerId) -> Option<Result<Acquired>> {
        let store = self.store;
        let answer = store.acquire_in_place(self.identity(), &self.request(owner))?;
        store.called("acquire", self.began, &answer);
        if is_unavailable(&answer) { self.repeat_in_place(owner) } else { Some(answer) }
    }

    /// Repeats an acquire once after its answer was lost (ACQ-9).
    #[cold]
    fn repeat_in_place(&self, owner: OwnerId) -> Option<Result<Acquired>> {
        let runtime = current_runtime().ok()?;
        let store = self.store;
        let began = store.call_began();
        let answer = store.acquire_in_place(self.identity(), &self.request(owner))?;
        store.called("acquire", began, &answer);
        if is_unavailable(&answer) {
            drop(self.release_if_granted(owner, runtime));
        }
        Some(answer)
    }

    /// Releases a lease that an immediate store has granted.
    fn release_in_place(&self, owner: OwnerId) {
        let store = self.store;
        let began = store.call_began();
        let mut release = store.release_call(self.identity(), owner);
        if let Poll::Ready(answer) = release.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            store.called("release", began, &answer);
        }
    }
}
