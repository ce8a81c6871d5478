// SPDX-License-Identifier: MIT OR Apache-2.0
//! An acquire, from the call to its outcome: granted, complete, or in flight (ACQ-1 to ACQ-13).
//!
//! The first pass calls the store once. Only a caller that finds the key busy continues with
//! [`wait`](self::wait), where the callers of one identity share one wait.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;

use self::clean_up::ReleaseIfGranted;
use self::shared_wait::Holder;
use super::IdempotencyEngine;
use super::lease::{GrantTerms, HeldLease};
use super::outcome_event;
use super::state::EngineState;
use super::tasks::{BorrowedPermit, current_runtime};
use crate::clock::Instant;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::outcome::InFlight;
use crate::owner::OwnerId;
use crate::payload::StoredResult;
use crate::store::{AcquireRequest, Acquired, StoreCall};

mod clean_up;
mod in_place;
mod shared_wait;
mod wait;

pub(super) use shared_wait::SharedWaits;
pub(super) use wait::watch;

/// The result of [`IdempotencyEngine::try_acquire`].
#[derive(Debug)]
#[must_use]
pub enum Acquisition {
    /// The caller has the lease, and its heartbeat is running.
    Granted(HeldLease),
    /// The work is done, and this is its result, to be opened with the caller's fingerprint.
    Complete(StoredResult),
    /// Another caller holds the key, and the wait is over.
    InFlight(InFlight),
}

/// The part of an acquire that stays the same across its passes.
struct AcquireLoop<'a> {
    engine: &'a EngineState,
    ctx: &'a IdempotencyContext,
    durations: Durations,
    /// When the acquire began. The clock is read only once, to keep replays fast. A lease granted
    /// in the first pass is counted from this instant.
    started: Instant,
    deadline: Instant,
    tracked: bool,
}

/// The result of one pass.
enum Found {
    End(Acquisition),
    Busy(Holder),
}

impl IdempotencyEngine {
    /// Like [`try_acquire`](Self::try_acquire), but for a tracked action, which counts against
    /// `max-running` and which [`shutdown`](Self::shutdown) waits for (RUN-5). The permit is taken
    /// before the acquire and given back while the call waits.
    ///
    /// # Errors
    /// Same as [`try_acquire`](Self::try_acquire), and `TooBusy` when no permit is free and nothing
    /// is stored yet.
    ///
    /// # Cancel safety
    /// Same as [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_tracked(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        try_acquire(&self.0, ctx, true, self.0.store.owner()).await
    }
}

/// The result of [`IdempotencyEngine::begin_acquire`].
#[must_use]
pub enum Acquiring {
    /// The acquire has ended, with the same result as
    /// [`try_acquire_tracked`](IdempotencyEngine::try_acquire_tracked).
    Done(Result<Acquisition>),
    /// The store did not answer immediately, or there is a holder to wait for.
    Waiting(AcquireRest),
}

/// The rest of an acquire. Its state is on the heap, so that it takes no space in the future of a
/// request that never waits.
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
    /// Like [`try_acquire_tracked`](Self::try_acquire_tracked), but goes as far as it can without
    /// waiting, and without a future. The returned rest continues as the same owner, because the
    /// store may already have granted that owner a lease (ACQ-9).
    ///
    /// # Cancel safety
    /// The rest is as cancel-safe as [`try_acquire`](Self::try_acquire).
    #[doc(hidden)]
    pub fn begin_acquire(&self, ctx: &IdempotencyContext) -> Acquiring {
        let owner = if self.0.store.is_immediate() {
            match in_place::try_acquire_in_place(&self.0, ctx) {
                Ok(end) => return Acquiring::Done(end),
                Err(owner) => owner,
            }
        } else {
            self.0.store.owner()
        };
        let (engine, ctx) = (Arc::clone(&self.0), ctx.clone());
        Acquiring::Waiting(Box::pin(async move { try_acquire(&engine, &ctx, true, owner).await }))
    }
}

pub(super) async fn try_acquire(
    engine: &EngineState,
    ctx: &IdempotencyContext,
    tracked: bool,
    owner: OwnerId,
) -> Result<Acquisition> {
    let acquiring = AcquireLoop::new(engine, ctx, tracked)?;
    let end = acquiring.run(owner).await;
    acquiring.report(&end);
    end
}

impl<'a> AcquireLoop<'a> {
    #[inline]
    fn new(engine: &'a EngineState, ctx: &'a IdempotencyContext, tracked: bool) -> Result<Self> {
        let durations = ctx.resolve(&engine.config);
        engine.store.check(ctx.identity(), durations.ttl.max(durations.lease))?;
        let started = engine.store.now();
        let deadline = started + durations.wait;
        Ok(Self { engine, ctx, durations, started, deadline, tracked })
    }

    fn identity(&self) -> &Identity {
        self.ctx.identity()
    }

    /// Runs the first pass, then the wait.
    async fn run(&self, owner: OwnerId) -> Result<Acquisition> {
        let permit = match self.permit() {
            Ok(permit) => permit,
            // Nothing new may run, but a finished result is still replayed (HTTP-14).
            Err(kind) => return Box::pin(self.replay_or(kind)).await,
        };
        let holder = match self.acquire(permit, self.started, owner).await? {
            Found::End(end) => return Ok(end),
            Found::Busy(holder) => holder,
        };
        // One store call may run past the wait timeout (ACQ-6). If the first call did, no other
        // call may follow.
        if self.durations.wait.is_zero() || self.left().is_zero() {
            return Ok(self.in_flight(holder));
        }
        match self.engine.waits.join(self.identity(), holder, self.ctx.held_bytes()) {
            Some(ticket) => {
                self.engine.store.observers.tell(|o| o.waiting(self.identity()));
                // The wait is boxed, because otherwise it would enlarge every caller's future.
                Box::pin(self.wait(&ticket)).await
            }
            None => Ok(self.in_flight(holder)),
        }
    }

    /// Sends one acquire, at `sent` or later, and repeats it once as the same owner if its answer
    /// was lost (ACQ-9).
    ///
    /// Code that does not await is in other functions, so that this future, which is part of every
    /// guarded request, stays small.
    async fn acquire(
        &self,
        permit: Option<BorrowedPermit<'_>>,
        sent: Instant,
        owner: OwnerId,
    ) -> Result<Found> {
        let admission = self.engine.store.admit().map_err(|error| self.named(error))?;
        let runtime = current_runtime()?;
        let first = poll_fn(|cx| Poll::Ready(self.first_poll(owner, cx)));
        let (answer, counted_from) = match first.await {
            FirstPoll::Answered(answer) => (answer, sent),
            FirstPoll::Open(open) => {
                Box::pin(self.finish(owner, runtime.clone(), sent, open)).await
            }
        };
        drop(admission);
        self.found(answer, counted_from, owner, permit, || Ok(runtime))
    }

    /// Sends an acquire and polls it once. If that poll answers the call, the call needs no timer,
    /// and a drop leaves nothing behind.
    fn first_poll(&self, owner: OwnerId, cx: &mut Context<'_>) -> FirstPoll {
        let store = &self.engine.store;
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
        if is_unavailable(&answer) {
            FirstPoll::Open(OpenAcquire::Lost(answer))
        } else {
            FirstPoll::Answered(answer)
        }
    }

    /// Continues an acquire that was sent at `sent` and polled once. Also returns the instant from
    /// which a granted lease is counted.
    async fn finish(
        &self,
        owner: OwnerId,
        runtime: Handle,
        sent: Instant,
        open: OpenAcquire,
    ) -> (Result<Acquired>, Instant) {
        let store = &self.engine.store;
        let mut guard = self.release_if_granted(owner, runtime);
        let ends = (sent + store.operation_timeout()).min(self.last());
        let left = || ends.saturating_duration_since(store.now());
        let mut answer = match open {
            OpenAcquire::Lost(answer) => answer,
            OpenAcquire::Unanswered(call) => guard.answer(left(), call).await,
        };
        let mut counted_from = sent;
        if is_unavailable(&answer) && !left().is_zero() {
            counted_from = store.now();
            let again = store.acquire_call(self.identity(), self.request(owner));
            answer = guard.answer(left(), again).await;
        }
        if !is_unavailable(&answer) {
            guard.disarm();
        }
        (answer, counted_from)
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
        let Self { engine, ctx, durations, .. } = self;
        let store = &engine.store;
        store.count(&answer);
        Ok(match answer.map_err(|error| self.named(error))? {
            Acquired::Granted(grant) => {
                let queue = engine.beats.of(runtime()?);
                let terms = GrantTerms {
                    durations: *durations,
                    max_hold: engine.config.max_hold,
                    owner,
                    grant,
                    counted_from,
                };
                engine.purge.keep_running(store, queue.runtime());
                let permit = permit.map(BorrowedPermit::keep);
                let held = HeldLease::new(store, &engine.tasks, queue, ctx, terms, permit);
                Found::End(Acquisition::Granted(held))
            }
            Acquired::Complete(result) => Found::End(Acquisition::Complete(result)),
            Acquired::Busy(lease) => {
                Found::Busy(Holder { token: lease.token, until: store.now() + lease.remaining })
            }
        })
    }

    fn request(&self, owner: OwnerId) -> AcquireRequest {
        let lease = self.durations.lease;
        AcquireRequest::new(owner, lease, self.durations.ttl)
            .with_fingerprint(self.ctx.fingerprint().copied())
            .with_holder(self.engine.holder_notes.note(owner, lease))
    }

    fn named(&self, error: Error) -> Error {
        error.during("acquire").for_identity(self.identity())
    }

    fn release_if_granted(&self, owner: OwnerId, runtime: Handle) -> ReleaseIfGranted<'a> {
        ReleaseIfGranted::new(
            self.engine,
            self.ctx.identity(),
            owner,
            self.durations.lease,
            runtime,
        )
    }

    /// Returns the permit that a tracked action needs. During shutdown, no permit is given out, and
    /// untracked actions are refused too.
    fn permit(&self) -> Result<Option<BorrowedPermit<'_>>, ErrorKind> {
        if self.tracked {
            return self.engine.tasks.try_permit().map(Some);
        }
        if self.engine.tasks.is_closing() { Err(ErrorKind::ShuttingDown) } else { Ok(None) }
    }

    /// The latest time at which a store call may end. One call may run past the deadline, however
    /// long the earlier calls took (ACQ-6).
    fn last(&self) -> Instant {
        self.deadline + self.engine.store.operation_timeout()
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(self.engine.store.now())
    }

    fn in_flight(&self, holder: Holder) -> Acquisition {
        Acquisition::InFlight(InFlight::new(
            holder.until.saturating_duration_since(self.engine.store.now()),
        ))
    }

    /// Reports the end of a call that was not granted a lease.
    fn report(&self, end: &Result<Acquisition>) {
        let store = &self.engine.store;
        let waited = || store.now().saturating_duration_since(self.started);
        match end {
            // A grant is reported when its lease ends.
            Ok(Acquisition::Granted(_)) => {}
            Ok(Acquisition::Complete(stored)) => {
                store.observers.tell(|o| o.replayed(self.identity()));
                outcome_event::duplicate(self.ctx, stored, waited);
            }
            Ok(Acquisition::InFlight(busy)) => {
                store.observers.tell(|o| o.in_flight(self.identity(), busy.remaining));
                outcome_event::in_flight(self.ctx, waited);
            }
            Err(error) => outcome_event::refused(self.ctx, error, waited),
        }
    }
}

/// The result of the first poll of an acquire.
enum FirstPoll {
    Answered(Result<Acquired>),
    Open(OpenAcquire),
}

/// An acquire whose outcome is unknown.
enum OpenAcquire {
    /// The store answered with an error that leaves the outcome unknown.
    Lost(Result<Acquired>),
    /// The call was polled once and is not answered yet.
    Unanswered(StoreCall<Acquired>),
}

fn is_unavailable(answer: &Result<Acquired>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}
