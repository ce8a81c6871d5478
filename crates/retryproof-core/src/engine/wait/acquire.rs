// SPDX-License-Identifier: MIT OR Apache-2.0
//! One acquire of the wait loop: polled in place, repeated once when its answer was lost, cleaned
//! up after when nobody waits for it any more (ACQ-8, ACQ-9, ACQ-11).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::super::flight::Seen;
use super::super::held::{HeldLease, Terms};
use super::super::running::Leave;
use super::super::{Acquisition, Inner, finish};
use super::{Attempting, Found};
use crate::clock::Instant;
use crate::context::Durations;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::OwnerId;
use crate::store::{AcquireRequest, Acquired};

impl Attempting<'_> {
    /// One acquire, sent at `sent` or later, and repeated once by the same owner when its answer
    /// was lost (ACQ-9).
    ///
    /// What waits for nothing is done in functions of their own, so that the future keeps none of
    /// it: every guarded request carries its room.
    pub(super) async fn acquire(
        &self,
        leave: Option<Leave<'_>>,
        sent: Instant,
        owner: OwnerId,
    ) -> Result<Found> {
        let pass = self.engine.enter().map_err(|error| self.failed(error))?;
        let runtime = self.engine.runtime()?;
        let (answer, counted_from) = match poll_fn(|cx| Poll::Ready(self.begin(owner, cx))).await {
            First::Answer(answer) => (answer, sent),
            First::Open(open) => Box::pin(self.ask(owner, runtime.clone(), sent, open)).await,
        };
        drop(pass);
        self.found(answer, counted_from, owner, leave, || Ok(runtime))
    }

    /// The first pass, of a store that answers at once. `None`: the loop has to go on, as the same
    /// owner, for whom the store may have done something; so it is for a refusal that a result may
    /// still answer (HTTP-14), for a store that does not answer at once after all, and for a holder
    /// to wait for.
    pub(super) fn run_now(&self) -> Result<Result<Acquisition>, OwnerId> {
        let may = self.leave().ok().zip(self.engine.enter().ok());
        let owner = self.engine.owner();
        let (leave, pass) = may.ok_or(owner)?;
        let answer = self.acquired_now(owner).ok_or(owner)?;
        let found = self.found(answer, self.started, owner, leave, || {
            // A lease cannot beat outside of a runtime.
            self.engine.runtime().inspect_err(|_| self.forget(owner))
        });
        drop(pass);
        match found {
            Ok(Found::End(end)) => Ok(Ok(end)),
            Ok(Found::Busy(seen)) if self.durations.wait.is_zero() => Ok(Ok(self.in_flight(seen))),
            Ok(Found::Busy(_)) => Err(owner),
            Err(error) => Ok(Err(error)),
        }
    }

    /// An acquire of a store that answers at once, with its repetition.
    fn acquired_now(&self, owner: OwnerId) -> Option<Result<Acquired>> {
        let answer = self.engine.acquire_now(self.identity(), &self.request(owner))?;
        if is_unavailable(&answer) { self.again_now(owner) } else { Some(answer) }
    }

    /// Repeats an acquire whose answer was lost, once (ACQ-9).
    #[cold]
    fn again_now(&self, owner: OwnerId) -> Option<Result<Acquired>> {
        let runtime = self.engine.runtime().ok()?;
        let answer = self.engine.acquire_now(self.identity(), &self.request(owner))?;
        if is_unavailable(&answer) {
            drop(self.abandoned(owner, runtime));
        }
        Some(answer)
    }

    /// Releases what an owner was granted in a store that answers at once.
    fn forget(&self, owner: OwnerId) {
        let mut release = self.engine.dyn_store().dyn_release(self.identity().clone(), owner);
        let _ = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Sends an acquire and polls it once. Answered within that poll, there is nothing to time, and
    /// nothing that a drop could leave behind.
    fn begin(&self, owner: OwnerId, cx: &mut Context<'_>) -> First {
        let request = self.request(owner);
        let answer = match self.engine.acquire_now(self.identity(), &request) {
            Some(answer) => answer,
            None => {
                let mut call =
                    self.engine.dyn_store().dyn_acquire(self.identity().clone(), request);
                match call.as_mut().poll(cx) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => return First::Open(Open::Call(call)),
                }
            }
        };
        if is_unavailable(&answer) {
            First::Open(Open::Lost(answer))
        } else {
            First::Answer(answer)
        }
    }

    fn found(
        &self,
        answer: Result<Acquired>,
        counted_from: Instant,
        owner: OwnerId,
        leave: Option<Leave<'_>>,
        runtime: impl FnOnce() -> Result<Handle>,
    ) -> Result<Found> {
        let Self { engine, ctx, durations, .. } = self;
        let acquired = answer.map_err(|error| {
            engine.gate.failed(&error);
            self.failed(error)
        })?;
        engine.gate.answered();
        Ok(match acquired {
            Acquired::Granted(grant) => {
                let runtime = runtime()?;
                let terms = Terms { durations: *durations, owner, grant, counted_from };
                Found::End(Acquisition::Granted(HeldLease::new(
                    engine,
                    ctx,
                    terms,
                    leave.map(Leave::keep),
                    runtime,
                )))
            }
            Acquired::Complete(result) => Found::End(Acquisition::Complete(result)),
            Acquired::Busy { remaining, token } => {
                Found::Busy(Seen { token, until: engine.now() + remaining })
            }
        })
    }

    fn failed(&self, error: Error) -> Error {
        error.during("acquire").for_identity(self.identity())
    }

    fn request(&self, owner: OwnerId) -> AcquireRequest {
        AcquireRequest::new(owner, self.durations.lease, self.durations.ttl)
            .with_fingerprint(self.ctx.fingerprint().copied())
    }

    /// Goes on with an acquire that was sent at `sent` and polled once. Says from when a lease that
    /// it got is counted.
    async fn ask(
        &self,
        owner: OwnerId,
        runtime: Handle,
        sent: Instant,
        open: Open,
    ) -> (Result<Acquired>, Instant) {
        let engine = self.engine;
        let mut abandoned = self.abandoned(owner, runtime);
        let ends = (sent + engine.gate.operation_timeout()).min(self.last());
        let left = || ends.saturating_duration_since(engine.now());
        let mut answer = match open {
            Open::Lost(answer) => answer,
            Open::Call(call) => abandoned.ask(left(), call).await,
        };
        let mut counted_from = sent;
        if is_unavailable(&answer) && !left().is_zero() {
            counted_from = engine.now();
            let again =
                engine.dyn_store().dyn_acquire(self.identity().clone(), self.request(owner));
            answer = abandoned.ask(left(), again).await;
        }
        if !is_unavailable(&answer) {
            abandoned.nothing_to_release();
        }
        (answer, counted_from)
    }
}

impl<'a> Attempting<'a> {
    /// Releases, when it is dropped, what an owner may have been granted.
    fn abandoned(&self, owner: OwnerId, runtime: Handle) -> Abandoned<'a> {
        let Self { engine, ctx, durations, .. } = *self;
        Abandoned { engine, identity: ctx.identity(), owner, runtime, durations, call: Some(None) }
    }
}

fn is_unavailable(answer: &Result<Acquired>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}

/// How an acquire began.
enum First {
    Answer(Result<Acquired>),
    Open(Open),
}

/// An acquire whose outcome is not known yet.
enum Open {
    /// It answered that nobody knows.
    Lost(Result<Acquired>),
    /// It was polled once.
    Call(Call),
}

type Call = Pin<Box<dyn Future<Output = Result<Acquired>> + Send>>;

/// Cleans up after an acquire whose outcome is not known: the same call is finished, then released,
/// on the runtime. A release sent beside a call in flight could overtake it and leave an orphan
/// lease (ACQ-11).
struct Abandoned<'a> {
    engine: &'a Arc<Inner>,
    identity: &'a Identity,
    owner: OwnerId,
    runtime: Handle,
    durations: Durations,
    call: Option<Option<Call>>,
}

impl Abandoned<'_> {
    async fn ask(&mut self, bound: Duration, call: Call) -> Result<Acquired> {
        let call = self.call.insert(Some(call));
        let answered = timeout(
            bound,
            poll_fn(|cx| match call {
                Some(in_flight) => in_flight.as_mut().poll(cx),
                None => Poll::Pending,
            }),
        )
        .await;
        match answered {
            Ok(answer) => {
                *call = None;
                answer
            }
            Err(_) => {
                Err(Error::unavailable("no answer in time")
                    .with("after", format_args!("{bound:?}")))
            }
        }
    }

    fn nothing_to_release(&mut self) {
        self.call = None;
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (engine, identity, owner) =
            (Arc::clone(self.engine), self.identity.clone(), self.owner);
        let until = self.engine.now() + self.durations.lease;
        // A shutdown waits for it.
        let ending = engine.running.ending();
        drop(self.runtime.spawn(async move {
            let _ending = ending;
            if let Some(call) = call {
                let bound = engine
                    .gate
                    .operation_timeout()
                    .max(until.saturating_duration_since(engine.now()));
                match timeout(bound, call).await {
                    Ok(Ok(Acquired::Complete(_) | Acquired::Busy { .. })) => return,
                    Ok(Ok(Acquired::Granted(_)) | Err(_)) | Err(_) => {}
                }
            }
            // Tried until the lease is over; then there is nothing to release.
            let _ = finish::release_until(&engine, &identity, owner, until).await;
        }));
    }
}
