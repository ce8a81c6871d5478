// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first pass of an acquire without a future, from a store that answers at once.
//!
//! It keeps the HTTP replay of a store in memory within its published bound: an adapter begins here,
//! and awaits the rest only where there is one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use super::{AcquireLoop, Acquisition, Found, is_unavailable, try_acquire};
use crate::context::IdempotencyContext;
use crate::engine::IdempotencyEngine;
use crate::engine::state::EngineState;
use crate::engine::tasks::current_runtime;
use crate::error::Result;
use crate::owner::OwnerId;
use crate::store::Acquired;

/// What [`IdempotencyEngine::begin_acquire`] came to.
#[must_use]
pub enum Acquiring {
    /// The acquire has ended, as that of
    /// [`try_acquire_tracked`](IdempotencyEngine::try_acquire_tracked).
    Done(Result<Acquisition>),
    /// The store does not answer in place, or there is a holder to wait for.
    Waiting(AcquireRest),
}

/// The rest of an acquire. It owns what it needs, on the heap, so that the future of a request that
/// never waits has no room for it.
pub type AcquireRest = Pin<Box<dyn Future<Output = Result<Acquisition>> + Send>>;

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(end) => f.debug_tuple("Done").field(end).finish(),
            Self::Waiting(_) => f.debug_tuple("Waiting").finish_non_exhaustive(),
        }
    }
}

impl IdempotencyEngine {
    /// As [`try_acquire_tracked`](Self::try_acquire_tracked), without a future as far as it gets
    /// without waiting. The rest continues as the same owner: the store may have granted it a lease
    /// already (ACQ-9).
    ///
    /// # Cancel safety
    /// The rest is that of [`try_acquire`](Self::try_acquire).
    #[doc(hidden)]
    pub fn begin_acquire(&self, ctx: &IdempotencyContext) -> Acquiring {
        match try_acquire_in_place(&self.0, ctx) {
            Ok(end) => Acquiring::Done(end),
            Err(owner) => {
                let (engine, ctx) = (Arc::clone(&self.0), ctx.clone());
                Acquiring::Waiting(Box::pin(async move {
                    try_acquire(&engine, &ctx, true, owner).await
                }))
            }
        }
    }
}

/// [`try_acquire`] of an immediate store, as far as it gets without waiting; else the owner to
/// continue with.
#[inline]
fn try_acquire_in_place(
    engine: &EngineState,
    ctx: &IdempotencyContext,
) -> Result<Result<Acquisition>, OwnerId> {
    if !engine.store.is_immediate() {
        return Err(engine.store.owner());
    }
    let acquiring = match AcquireLoop::new(engine, ctx, true) {
        Ok(acquiring) => acquiring,
        Err(error) => return Ok(Err(error)),
    };
    let end = acquiring.run_in_place()?;
    acquiring.report(&end);
    Ok(end)
}

impl AcquireLoop<'_> {
    /// The first pass, of an immediate store. An `Err` is for [`run`](Self::run) to continue with,
    /// as the same owner, which the store may have granted a lease. The reasons: no permit or no
    /// admission, which a stored result may still answer (HTTP-14); a store that does not answer
    /// at once after all; a holder to wait for.
    #[inline]
    fn run_in_place(&self) -> Result<Result<Acquisition>, OwnerId> {
        let store = &self.engine.store;
        let may = self.permit().ok().zip(store.admit().ok());
        let owner = store.owner();
        let (permit, admission) = may.ok_or(owner)?;
        let answer = self.answer_in_place(owner).ok_or(owner)?;
        let found = self.found(answer, self.started, owner, permit, || {
            // A lease cannot beat outside of a runtime.
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

    /// The answer of an immediate store, to one acquire and its repetition.
    fn answer_in_place(&self, owner: OwnerId) -> Option<Result<Acquired>> {
        let store = &self.engine.store;
        let answer = store.acquire_in_place(self.identity(), &self.request(owner))?;
        if is_unavailable(&answer) { self.repeat_in_place(owner) } else { Some(answer) }
    }

    /// Repeats an acquire whose answer was lost, once (ACQ-9).
    #[cold]
    fn repeat_in_place(&self, owner: OwnerId) -> Option<Result<Acquired>> {
        let runtime = current_runtime().ok()?;
        let store = &self.engine.store;
        let answer = store.acquire_in_place(self.identity(), &self.request(owner))?;
        if is_unavailable(&answer) {
            drop(self.release_if_granted(owner, runtime));
        }
        Some(answer)
    }

    /// Releases a lease that an immediate store has granted.
    fn release_in_place(&self, owner: OwnerId) {
        let mut release = self.engine.store.release_call(self.identity(), owner);
        let _ = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}
