// SPDX-License-Identifier: MIT OR Apache-2.0
//! An acquire, from the call to its outcome: granted, complete, or in flight (ACQ-1 to ACQ-13).
//!
//! The first pass makes one attempt to acquire. Only a caller that finds the key busy continues
//! with [`wait`](self::wait), where the callers of one identity share one wait.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::Instrument as _;

use self::clean_up::ReleaseIfGranted;
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
use crate::payload::StoredResult;
use crate::store::{AcquireRequest, Acquired, StoreCall};

mod begin;
mod clean_up;
mod in_place;
mod shared_wait;
mod wait;

pub use begin::{AcquireRest, Acquiring, EndedAcquire};
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
    /// Another caller holds the key, and this call does not wait any longer.
    InFlight(InFlight),
}

/// The part of an acquire that stays the same across its passes.
struct AcquireLoop<'a> {
    engine: &'a EngineState,
    /// The engine's store, or what stands in for it if the scope is switched off (CTX-5).
    store: &'a Arc<StoreClient>,
    ctx: &'a IdempotencyContext,
    durations: Durations,
    /// When the call began. A replay that the store answers immediately reads the clock only here,
    /// which keeps it fast. A lease granted in the first pass is measured from this instant.
    began: Instant,
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
    /// `max-running` and which [`shutdown`](Self::shutdown) waits for (RUN-5). The call takes a
    /// `max-running` permit before the acquire, and gives it back while it waits.
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

    /// Acquires a lease for a caller that opens and reports a stored result itself.
    pub(super) async fn acquire(&self, ctx: &IdempotencyContext) -> EndedAcquire {
        acquire(&self.0, ctx, false, self.0.store.owner()).await
    }

    /// Like [`acquire`](Self::acquire), but for a tracked action.
    pub(super) async fn acquire_tracked(&self, ctx: &IdempotencyContext) -> EndedAcquire {
        acquire(&self.0, ctx, true, self.0.store.owner()).await
    }
}

/// Acquires a lease. If there is a stored result, reports how the call is answered, which depends
/// on the context's fingerprint.
pub(super) async fn try_acquire(
    engine: &EngineState,
    ctx: &IdempotencyContext,
    tracked: bool,
    owner: OwnerId,
) -> Result<Acquisition> {
    // The lease keeps this span until the lease ends.
    let span = span::of_call(ctx);
    let acquired = acquire(engine, ctx, tracked, owner).instrument(span.clone());
    let EndedAcquire { acquired, began } = acquired.await;
    if let Ok(Acquisition::Complete(stored)) = &acquired {
        let answer = || CallAnswer::from_record(ctx, stored);
        span.in_scope(|| outcome_event::answered(&engine.store, ctx, began, answer));
    }
    acquired
}

/// Acquires a lease, and reports a call that got neither a lease nor a stored result.
pub(super) async fn acquire(
    engine: &EngineState,
    ctx: &IdempotencyContext,
    tracked: bool,
    owner: OwnerId,
) -> EndedAcquire {
    let acquiring = AcquireLoop::new(engine, ctx, tracked);
    let acquired = match acquiring.check() {
        Ok(()) => acquiring.run(owner).await,
        Err(error) => Err(error),
    };
    acquiring.ended(acquired)
}

impl<'a> AcquireLoop<'a> {
    #[inline]
    fn new(engine: &'a EngineState, ctx: &'a IdempotencyContext, tracked: bool) -> Self {
        let durations = ctx.resolve(&engine.config);
        let store = engine.store_of(&durations);
        let began = store.now();
        Self { engine, store, ctx, durations, began, deadline: began + durations.wait, tracked }
    }

    /// Refuses a call whose ttl or lease is too long for the store.
    #[inline]
    fn check(&self) -> Result<()> {
        let Durations { ttl, lease, .. } = self.durations;
        self.store.check(self.identity(), ttl.max(lease))
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
        let holder = match self.acquire(permit, self.began, owner).await? {
            Found::End(end) => return Ok(end),
            Found::Busy(holder) => holder,
        };
        // One store call may run past the wait timeout (ACQ-6). If the first call did, no other
        // call may follow. A call inside the action of its own key would wait for itself (ACQ-14).
        if self.durations.wait.is_zero()
            || self.left().is_zero()
            || nested::is_inside(self.store, self.identity(), holder.token)
        {
            return Ok(self.in_flight(holder));
        }
        match self.engine.waits.join(self.identity(), holder, self.ctx.held_bytes()) {
            // The wait is boxed, because otherwise it would enlarge every caller's future.
            Some(ticket) => Box::pin(self.wait(&ticket)).await,
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

    /// Sends an acquire and polls it once. If the store answers during that poll, no timer is
    /// needed, and dropping the future leaves nothing behind.
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

    /// Continues an acquire that was sent at `sent` and polled once. Also returns the instant from
    /// which a granted lease is measured.
    async fn finish(
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
            Acquired::Granted(grant) => {
                let queue = engine.beats.of(runtime()?);
                let terms = GrantTerms {
                    durations: *durations,
                    max_hold: engine.config.max_hold,
                    owner,
                    grant,
                    began: self.began,
                    counted_from,
                };
                engine.purge.keep_running(&engine.store, queue.runtime());
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

    /// Returns the permit that a tracked action needs, or `None` for an untracked action. During
    /// shutdown, both are refused.
    fn permit(&self) -> Result<Option<BorrowedPermit<'_>>, ErrorKind> {
        if self.tracked {
            return self.engine.tasks.try_permit().map(Some);
        }
        if self.engine.tasks.is_closing() { Err(ErrorKind::ShuttingDown) } else { Ok(None) }
    }

    /// The latest time at which a store call may end. One call may run past the deadline, however
    /// long the earlier calls took (ACQ-6).
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

    /// Ends the acquire, and reports a call that got neither a lease nor a stored result.
    #[inline]
    fn ended(&self, acquired: Result<Acquisition>) -> EndedAcquire {
        match &acquired {
            // A grant is reported when its lease ends. A stored result is reported by the code that
            // opens it.
            Ok(Acquisition::Granted(_) | Acquisition::Complete(_)) => {}
            Ok(Acquisition::InFlight(busy)) => {
                self.report(|| CallAnswer::InFlight(busy.remaining));
            }
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

/// An acquire whose outcome is unknown.
enum OpenAcquire {
    /// The store answered with an error that leaves the outcome unknown.
    Lost(Result<Acquired>),
    /// The call was polled once and has not been answered yet.
    Unanswered(StoreCall<Acquired>),
}

fn is_unavailable(answer: &Result<Acquired>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}
