// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyEngine::begin_acquire`]: an acquire for an adapter that opens the stored result
//! itself. Only such an adapter knows how the call is answered.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tracing::Span;

use super::{Acquisition, acquire, in_place};
use crate::clock::Instant;
use crate::context::IdempotencyContext;
use crate::engine::IdempotencyEngine;
use crate::engine::outcome_event::{self, CallAnswer};
use crate::engine::span;
use crate::error::Result;

/// An acquire that has ended. If it found a stored result, only the code that opens the result
/// knows how the call is answered, so that code reports the outcome (RUN-7). The engine reports
/// every other outcome.
#[derive(Debug)]
#[must_use]
pub struct EndedAcquire {
    /// The same result as that of
    /// [`try_acquire_tracked`](IdempotencyEngine::try_acquire_tracked).
    pub acquired: Result<Acquisition>,
    /// When the call began.
    pub began: Instant,
}

/// The result of [`IdempotencyEngine::begin_acquire`].
#[must_use]
pub enum Acquiring {
    /// The acquire has ended.
    Done(EndedAcquire),
    /// The acquire has to continue, for example because the store did not answer immediately or
    /// there is a holder to wait for.
    Waiting(AcquireRest),
}

/// The rest of an acquire, boxed so that its state takes no space in the future of a request that
/// never waits.
pub type AcquireRest = Pin<Box<dyn Future<Output = EndedAcquire> + Send>>;

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(end) => f.debug_tuple("Done").field(end).finish(),
            Self::Waiting(_) => f.debug_tuple("Waiting").finish_non_exhaustive(),
        }
    }
}

impl IdempotencyEngine {
    /// Returns the span of a call that begins now, for an adapter that acquires with
    /// [`begin_acquire`](Self::begin_acquire). The adapter runs the whole call inside this span
    /// (RUN-10).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn call_span(&self, ctx: &IdempotencyContext) -> Span {
        span::of_call(ctx)
    }

    /// Like [`try_acquire_tracked`](Self::try_acquire_tracked), but goes as far as it can without
    /// waiting and without creating a future. If the call has to wait, the returned rest continues
    /// as the same owner, because the store may already have granted that owner a lease (ACQ-9). If
    /// there is a stored result, the caller opens it and [reports](Self::report_answer) the answer.
    ///
    /// # Cancel safety
    /// The rest is as cancel-safe as [`try_acquire`](Self::try_acquire).
    #[doc(hidden)]
    pub fn begin_acquire(&self, ctx: &IdempotencyContext) -> Acquiring {
        let owner = if self.0.store.is_immediate() {
            match in_place::acquire_in_place(&self.0, ctx) {
                Ok(end) => return Acquiring::Done(end),
                Err(owner) => owner,
            }
        } else {
            self.0.store.owner()
        };
        let (engine, ctx) = (Arc::clone(&self.0), ctx.clone());
        Acquiring::Waiting(Box::pin(async move { acquire(&engine, &ctx, true, owner).await }))
    }

    /// Reports the answer to a call whose acquire found a stored result (RUN-7, RUN-8). `began` is
    /// the instant from [`EndedAcquire`].
    #[doc(hidden)]
    #[inline]
    pub fn report_answer<'a>(
        &self,
        ctx: &IdempotencyContext,
        began: Instant,
        answer: impl FnOnce() -> CallAnswer<'a>,
    ) {
        outcome_event::answered(&self.0.store, ctx, began, answer);
    }
}
