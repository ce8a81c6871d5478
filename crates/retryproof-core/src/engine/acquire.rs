// SPDX-License-Identifier: MIT OR Apache-2.0
//! An acquire, from the call to its outcome: granted, complete, or in flight (ACQ-1 to ACQ-13).
//!
//! The first pass makes one attempt to acquire. A caller that finds the key taken continues with
//! [`wait`](self::wait), where all callers of one identity share one wait.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{Instrument as _, Span};

use self::clean_up::OpenAcquire;
use self::in_place::acquire_in_place;
use self::shared_wait::Holder;
use super::IdempotencyEngine;
use super::lease::{GrantTerms, HeldLease};
use super::nested;
use super::outcome_event::{self, CallAnswer};
use super::span;
use super::state::EngineState;
use super::store_client::StoreClient;
use super::tasks::{BorrowedPermit, current_runtime};
use crate::clock::Instant;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::outcome::InFlight;
use crate::owner::OwnerId;
use crate::seal::CallSeal;
use crate::store::{AcquireRequest, Acquired, LiveLease};

mod answer;
mod clean_up;
mod in_place;
mod sealed;
mod shared_wait;
mod wait;

pub use answer::{AcquireRest, Acquiring, Acquisition, EndedAcquire};
pub(super) use sealed::opened;
pub(super) use shared_wait::SharedWaits;
pub(super) use wait::watch;

/// The part of an acquire that stays the same across its passes.
struct AcquireLoop<'a> {
    engine: &'a EngineState,
    /// The engine's store, or its replacement if the scope is switched off or in shadow mode
    /// (CTX-5, CTX-6).
    store: &'a Arc<StoreClient>,
    ctx: &'a IdempotencyContext,
    durations: Durations,
    /// When the call began. To keep an immediate replay fast, the acquire reads the clock only
    /// here. A lease granted in the first pass is measured from this instant.
    began: Instant,
    deadline: Instant,
    tracked: bool,
    /// Seals the result, if the store has sealed results (SEAL-1).
    seal: Option<Arc<CallSeal>>,
}

/// The result of one pass.
enum Found {
    End(Acquisition),
    Busy(Holder),
}

impl IdempotencyEngine {
    /// Like [`try_acquire`](Self::try_acquire), but for a tracked action. The action counts against
    /// `max-running`, and [`shutdown`](Self::shutdown) waits for it (RUN-5). The call takes a
    /// `max-running` permit before the acquire, and has none while it waits.
    ///
    /// # Errors
    /// Same as [`try_acquire`](Self::try_acquire), and `TooBusy` when no permit is free and no
    /// result is stored yet.
    ///
    /// # Cancel safety
    /// Same as [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_tracked(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        let ctx = &self.identified(ctx);
        try_acquire(&self.0, ctx, true, self.0.store.owner()).await
    }

    /// Acquires a lease. If there is a stored result, the caller opens and reports it.
    pub(super) async fn acquire(&self, ctx: &IdempotencyContext) -> EndedAcquire {
        acquire(&self.0, ctx, false, self.0.store.owner()).await
    }

    /// Like [`acquire`](Self::acquire), but for a tracked action.
    pub(super) async fn acquire_tracked(&self, ctx: &IdempotencyContext) -> EndedAcquire {
        acquire(&self.0, ctx, true, self.0.store.owner()).await
    }

    /// Returns the span of a call that begins now, for an adapter that acquires with
    /// [`begin_acquire`](Self::begin_acquire). The adapter runs the whole call inside this span
    /// (RUN-10).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn call_span(&self, ctx: &IdempotencyContext) -> Span {
        span::of_call(ctx)
    }

    /// Like [`try_acquire_tracked`](Self::try_acquire_tracked), but gets as far as possible without
    /// waiting and without creating a future. If the call has to wait, the returned [`AcquireRest`]
    /// continues as the same owner, because the store may already have granted that owner a lease
    /// (ACQ-9). If there is a stored result, the caller opens it and [reports](Self::report_answer)
    /// the answer. The caller must [identify](Self::identify) the context first.
    ///
    /// # Cancel safety
    /// The rest is as cancel-safe as [`try_acquire`](Self::try_acquire).
    #[doc(hidden)]
    pub fn begin_acquire(&self, ctx: &IdempotencyContext) -> Acquiring {
        let owner = if self.0.store.is_immediate() {
            match acquire_in_place(&self.0, ctx) {
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

/// Acquires a lease. If there is a stored result, compares the fingerprints and reports the answer
/// to the call.
pub(super) async fn try_acquire(
    engine: &EngineState,
    ctx: &IdempotencyContext,
    tracked: bool,
    owner: OwnerId,
) -> Result<Acquisition> {
    // The lease keeps this span until the lease ends.
    let span = span::of_call(ctx);
    let acquired = span::run_in(&span, || acquire(engine, ctx, tracked, owner));
    let EndedAcquire { acquired, began } = acquired.await;
    if let Ok(Acquisition::Complete(stored)) = &acquired {
        let answer = || CallAnswer::from_record(ctx, stored);
        span.in_scope(|| outcome_event::answered(&engine.store, ctx, began, answer));
    }
    acquired
}

/// Acquires a lease. Reports a call that got neither a lease nor a stored result.
pub(super) async fn acquire(
    engine: &EngineState,
    ctx: &IdempotencyContext,
    tracked: bool,
    owner: OwnerId,
) -> EndedAcquire {
    let mut acquiring = AcquireLoop::new(engine, ctx, tracked);
    let acquired = match acquiring.check() {
        Ok(()) => match acquiring.sealing() {
            None => acquiring.run(owner).await,
            // The future is boxed, because an unboxed one would enlarge every caller's future.
            Some(sealing) => Box::pin(acquiring.run_sealed(sealing, owner)).await,
        },
        Err(error) => Err(error),
    };
    acquiring.ended(acquired)
}

impl<'a> AcquireLoop<'a> {
    #[inline]
    fn new(engine: &'a EngineState, ctx: &'a IdempotencyContext, tracked: bool) -> Self {
        let mut durations = ctx.resolve(&engine.config);
        let store = engine.store_of(&durations);
        store.round_up(ctx.identity().scope(), &mut durations.lease, &mut durations.ttl);
        let began = store.now();
        let deadline = began + durations.wait;
        Self { engine, store, ctx, durations, began, deadline, tracked, seal: None }
    }

    /// Refuses a call whose ttl or lease is too short or too long for the store.
    #[inline]
    fn check(&self) -> Result<()> {
        let Durations { ttl, lease, .. } = self.durations;
        self.store.check(self.identity(), lease, ttl)
    }

    fn identity(&self) -> &Identity {
        self.ctx.identity()
    }

    /// Makes the first pass, then waits if the key is taken.
    async fn run(&self, owner: OwnerId) -> Result<Acquisition> {
        let permit = match self.permit() {
            Ok(permit) => permit,
            // No action can start, because the `max-running` limit is reached or the engine is
            // shutting down. A stored result can still be replayed (HTTP-14).
            Err(kind) => return Box::pin(self.replay_or(kind)).await,
        };
        let holder = match self.acquire(permit, self.began, owner).await? {
            Found::End(end) => return Ok(end),
            Found::Busy(holder) => holder,
        };
        // Only one store call is allowed to run past the wait timeout (ACQ-6). If the first store
        // call used up the timeout, do not wait, because a wait needs another store call. Do not
        // wait inside the action that holds the key either, because the call would wait for itself
        // (ACQ-14).
        if self.durations.wait.is_zero()
            || self.left().is_zero()
            || nested::is_inside(self.store, self.identity(), holder.token)
        {
            return Ok(self.in_flight(holder));
        }
        match self.engine.waits.join(self.identity(), holder, self.ctx.held_bytes()) {
            // The wait is boxed, because an unboxed wait would enlarge every caller's future.
            Some(ticket) => Box::pin(self.wait(&ticket)).await,
            None => Ok(self.in_flight(holder)),
        }
    }

    /// Sends one acquire, at `sent` or later. If the answer is lost, repeats the acquire once as
    /// the same owner (ACQ-9).
    ///
    /// This future is part of every guarded request. Code that does not await is in other
    /// functions, so that the future stays small.
    async fn acquire(
        &self,
        permit: Option<BorrowedPermit<'_>>,
        sent: Instant,
        owner: OwnerId,
    ) -> Result<Found> {
        let admission = self.store.admit().map_err(|error| self.named(error))?;
        let runtime = current_runtime()?;
        let first = poll_fn(|cx| Poll::Ready(self.first_poll(owner, sent, cx)));
        let (answer, counted_from) = match first.await {
            FirstPoll::Answered(answer) => (answer, sent),
            FirstPoll::Open(open) => {
                Box::pin(
                    self.finish(owner, runtime.clone(), sent, open).instrument(span::of_acquire()),
                )
                .await
            }
        };
        drop(admission);
        self.found(answer, counted_from, owner, permit, || Ok(runtime))
    }

    /// Sends an acquire and polls it once. If the store answers that poll, the acquire needs no
    /// timer and no clean-up.
    fn first_poll(&self, owner: OwnerId, sent: Instant, cx: &mut Context<'_>) -> FirstPoll {
        let store = self.store;
        let request = self.request(owner);
        let answer = match store.acquire_in_place(self.identity(), &request) {
            Some(answer) => answer,
            None => {
                let mut call = store.acquire_call(self.identity(), request);
                match call.as_mut().poll(cx) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => return FirstPoll::Open(OpenAcquire::Unanswered(call)),
                }
            }
        };
        store.called("acquire", sent, &answer);
        if is_unavailable(&answer) {
            FirstPoll::Open(OpenAcquire::Lost(answer))
        } else {
            FirstPoll::Answered(answer)
        }
    }

    /// Turns the store's answer into the result of a pass. A grant becomes a lease with a
    /// heartbeat.
    fn found(
        &self,
        answer: Result<Acquired>,
        counted_from: Instant,
        owner: OwnerId,
        permit: Option<BorrowedPermit<'_>>,
        runtime: impl FnOnce() -> Result<Handle>,
    ) -> Result<Found> {
        let Self { engine, store, ctx, durations, .. } = self;
        store.count(&answer);
        Ok(match answer.map_err(|error| self.named(error))? {
            Acquired::Granted(_) if !self.tracked && engine.tasks.is_closing() => {
                return Err(self.overtaken(owner, runtime()?));
            }
            Acquired::Granted(grant) => {
                let queue = engine.beats.of(runtime()?);
                let terms = GrantTerms {
                    durations: *durations,
                    max_hold: engine.config.max_hold,
                    owner,
                    grant,
                    began: self.began,
                    counted_from,
                    seal: self.seal.clone(),
                };
                engine.purge.keep_running(&engine.store, queue.runtime());
                let permit = permit.map(BorrowedPermit::keep);
                let store = engine.keeper_of(store, &grant);
                let held = HeldLease::new(store, &engine.tasks, queue, ctx, terms, permit);
                Found::End(Acquisition::Granted(held))
            }
            Acquired::Complete(result) => Found::End(Acquisition::Complete(result)),
            Acquired::Busy(lease) => self.busy(&lease),
        })
    }

    /// Returns the result of a pass that found another holder. If fingerprints are compared in
    /// flight, a different fingerprint ends the call (FP-6). If the holder's lease is over, the
    /// holder may be dead, so the comparison is ignored.
    fn busy(&self, lease: &LiveLease) -> Found {
        if lease.mismatch && !lease.remaining.is_zero() {
            return Found::End(Acquisition::Mismatch);
        }
        Found::Busy(Holder { token: lease.token, until: self.store.now() + lease.remaining })
    }

    fn request(&self, owner: OwnerId) -> AcquireRequest {
        let lease = self.durations.lease;
        let request = AcquireRequest::new(owner, lease, self.durations.ttl)
            .with_fingerprint(self.ctx.fingerprint().copied())
            .with_holder(self.engine.holder_notes.note(owner, lease))
            .comparable_by(self.durations.compares_in_flight().then(|| self.ctx.comparable()));
        match &self.seal {
            None => request,
            Some(seal) => request.hidden_by(seal),
        }
    }

    fn named(&self, error: Error) -> Error {
        error.during("acquire").for_identity(self.identity())
    }

    /// Returns the permit that a tracked action needs, or `None` for an untracked action. During a
    /// shutdown, refuses both kinds of action.
    fn permit(&self) -> Result<Option<BorrowedPermit<'_>>, ErrorKind> {
        if self.tracked {
            return self.engine.tasks.try_permit().map(Some);
        }
        if self.engine.tasks.is_closing() { Err(ErrorKind::ShuttingDown) } else { Ok(None) }
    }

    /// Returns the latest time at which a store call can end: one operation timeout after the
    /// deadline, however slow the earlier calls were (ACQ-6).
    fn last(&self) -> Instant {
        self.deadline + self.store.operation_timeout()
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(self.store.now())
    }

    fn in_flight(&self, holder: Holder) -> Acquisition {
        Acquisition::InFlight(InFlight::new(
            holder.until.saturating_duration_since(self.store.now()),
        ))
    }

    /// Ends the acquire. Reports a call that got neither a lease nor a stored result.
    #[inline]
    fn ended(&self, acquired: Result<Acquisition>) -> EndedAcquire {
        match &acquired {
            // Report nothing here. A grant is reported when its lease ends. A stored result is
            // reported by the code that opens it.
            Ok(Acquisition::Granted(_) | Acquisition::Complete(_)) => {}
            Ok(Acquisition::InFlight(busy)) => {
                self.report(|| CallAnswer::InFlight(busy.remaining));
            }
            Ok(Acquisition::Mismatch) => self.report(|| CallAnswer::Mismatch),
            Err(error) => self.report(|| CallAnswer::Refused(error.kind())),
        }
        EndedAcquire { acquired, began: self.began }
    }

    #[cold]
    fn report(&self, answer: impl FnOnce() -> CallAnswer<'static>) {
        outcome_event::answered(self.store, self.ctx, self.began, answer);
    }
}

/// The result of the first poll of an acquire.
enum FirstPoll {
    Answered(Result<Acquired>),
    Open(OpenAcquire),
}

fn is_unavailable(answer: &Result<Acquired>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}
