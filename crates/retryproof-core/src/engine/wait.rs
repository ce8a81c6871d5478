// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait loop, written once: acquire, or wait for the holder, or say that it is in flight (ACQ-1 to ACQ-13).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::flight::{Seat, Seen};
use super::gate::at_once;
use super::held::{Held, Terms};
use super::running::Permit;
use super::{Acquisition, Inner};
use crate::clock::Instant;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::outcome::InFlight;
use crate::owner::OwnerId;
use crate::payload::StoredResult;
use crate::store::{AcquireRequest, Acquired, Standing};

/// How long a leader rests before it asks a failing store again, or looks again for a free permit.
const REST: Duration = Duration::from_millis(20);

/// What the rest grows to while the store keeps failing: the waiters of many keys must not storm it.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// One acquisition: what stays the same over the passes of the loop.
pub(crate) struct Attempting<'a> {
    engine: &'a Arc<Inner>,
    ctx: &'a IdempotencyContext,
    durations: Durations,
    deadline: Instant,
    tracked: bool,
}

/// What an acquire found, as the loop needs it.
enum Found {
    End(Acquisition),
    Busy(Seen),
}

pub(crate) async fn try_acquire(
    engine: &Arc<Inner>,
    ctx: &IdempotencyContext,
    tracked: bool,
) -> Result<Acquisition> {
    let durations = ctx.resolve(&engine.config);
    engine.check(ctx.identity(), durations)?;
    let deadline = engine.now() + durations.wait;
    let attempting = Attempting { engine, ctx, durations, deadline, tracked };
    let acquisition = attempting.run().await?;
    match &acquisition {
        Acquisition::Granted(_) => {}
        Acquisition::Complete(_) => engine.observers.tell(|o| o.duplicate(ctx.identity())),
        Acquisition::InFlight(busy) => engine.observers.tell(|o| o.in_flight(ctx.identity(), busy.remaining)),
    }
    Ok(acquisition)
}

impl Attempting<'_> {
    fn identity(&self) -> &Identity {
        self.ctx.identity()
    }

    async fn run(&self) -> Result<Acquisition> {
        let permit = match self.leave() {
            Ok(permit) => permit,
            // Nothing new may run, but what is done is still replayed (HTTP-14).
            Err(kind) => return Box::pin(self.replay_or(kind)).await,
        };
        let seen = match self.acquire(permit).await? {
            Found::End(end) => return Ok(end),
            Found::Busy(seen) => seen,
        };
        if self.durations.wait.is_zero() {
            return Ok(self.in_flight(seen));
        }
        let flights = &self.engine.flights;
        match flights.join(self.identity(), seen) {
            Some(seat) => {
                self.engine.observers.tell(|o| o.waiting(self.identity()));
                // On the heap: the others would carry its room through every move of their futures.
                Box::pin(self.wait(&seat)).await
            }
            None => Ok(self.in_flight(seen)),
        }
    }

    /// Waits in the flight: for leadership, then as its leader.
    async fn wait(&self, seat: &Seat<'_>) -> Result<Acquisition> {
        let Ok(_lead) = timeout(self.left(), seat.flight.lead.lock()).await else {
            return Ok(seat
                .result()
                .map_or_else(|| self.in_flight(seat.flight.seen()), Acquisition::Complete));
        };
        if let Some(result) = seat.result() {
            return Ok(Acquisition::Complete(result));
        }
        let mut rest = REST;
        loop {
            let seen = seat.flight.seen();
            let now = self.engine.now();
            // At least a little, so that a holder whose takeover a lock holds back is not asked in a hot loop.
            let at_most =
                seen.until.min(self.deadline).saturating_duration_since(now).max(Duration::from_millis(1));
            let bound = at_most.saturating_add(self.engine.gate.operation_timeout());
            let store = self.engine.dyn_store();
            let changed = store.dyn_changed(self.identity().clone(), seen.token, at_most);
            let slept = self.engine.gate.within(bound, "changed", self.identity(), changed).await;
            match slept {
                Ok(()) => rest = REST,
                // Nothing is known to be wrong with the record: ask again. (A failed acquire ends the call, ACQ-9.)
                Err(error) if error.kind() == ErrorKind::Unavailable && !self.left().is_zero() => {
                    sleep(rest.min(self.left())).await;
                    rest = (rest * 2).min(LONGEST_REST);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let permit = match self.leave() {
                Ok(permit) => permit,
                Err(kind) => match self.look_on(seat, kind).await? {
                    Some(end) => return Ok(end),
                    None => continue,
                },
            };
            // Whoever joined until now saw a holder that the acquire comes behind.
            let behind = seat.flight.seen();
            match self.acquire(permit).await? {
                Found::End(end) => {
                    match &end {
                        Acquisition::Complete(result) => seat.land(result, behind),
                        // The others go on waiting, for this one.
                        Acquisition::Granted(held) => seat.flight.found(held.seen()),
                        Acquisition::InFlight(_) => {}
                    }
                    return Ok(end);
                }
                Found::Busy(seen) => {
                    seat.flight.found(seen);
                    if self.left().is_zero() {
                        return Ok(self.in_flight(seen));
                    }
                }
            }
        }
    }

    /// A waiter that may not acquire now, for want of a permit, watches on: the result may still come (RUN-5).
    async fn look_on(&self, seat: &Seat<'_>, kind: ErrorKind) -> Result<Option<Acquisition>> {
        let behind = seat.flight.seen();
        match self.look().await? {
            Standing::Complete(result) => {
                seat.land(&result, behind);
                return Ok(Some(Acquisition::Complete(result)));
            }
            Standing::Busy { remaining, token } => {
                let seen = Seen { token, until: self.engine.now() + remaining };
                seat.flight.found(seen);
                if self.left().is_zero() {
                    return Ok(Some(self.in_flight(seen)));
                }
            }
            Standing::Absent => {
                if self.left().is_zero() || kind == ErrorKind::ShuttingDown {
                    return Err(self.refuse(kind));
                }
                let _ = timeout(REST.min(self.left()), self.engine.running.freed()).await;
            }
        }
        Ok(None)
    }

    /// Leave to acquire: not while shutting down, and a permit for a tracked action.
    fn leave(&self) -> Result<Option<Permit>, ErrorKind> {
        if self.tracked {
            return self.engine.running.admit().map(Some);
        }
        if self.engine.running.is_closing() { Err(ErrorKind::ShuttingDown) } else { Ok(None) }
    }

    async fn replay_or(&self, kind: ErrorKind) -> Result<Acquisition> {
        match self.look().await? {
            Standing::Complete(result) => Ok(Acquisition::Complete(result)),
            Standing::Busy { .. } | Standing::Absent => Err(self.refuse(kind)),
        }
    }

    fn refuse(&self, kind: ErrorKind) -> Error {
        let message = match kind {
            ErrorKind::ShuttingDown => "no new lease is granted; retry at another instance",
            _ => "max-running actions are running; retry later",
        };
        Error::new(kind, message).during("acquire").for_identity(self.identity())
    }

    async fn look(&self) -> Result<Standing> {
        let call = self.engine.dyn_store().dyn_look(self.identity().clone());
        self.engine.gate.call("look", self.identity(), call).await
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(self.engine.now())
    }

    fn in_flight(&self, seen: Seen) -> Acquisition {
        Acquisition::InFlight(InFlight::new(seen.until.saturating_duration_since(self.engine.now())))
    }

    /// One acquire, repeated once by the same owner when its answer was lost (ACQ-9).
    async fn acquire(&self, permit: Option<Permit>) -> Result<Found> {
        let Self { engine, ctx, durations, .. } = self;
        let identity = ctx.identity();
        let pass = engine.gate.enter().map_err(|error| error.during("acquire").for_identity(identity))?;
        let runtime = engine.runtime()?;
        let owner = OwnerId::new();
        let sent = engine.now();
        let mut call = self.request(owner);
        let (answer, counted_from) = match at_once(call.as_mut()).await {
            // Answered within one poll: there is nothing to time, and nothing that a drop could leave behind.
            Some(answer) if !is_unavailable(&answer) => (answer, sent),
            first => Box::pin(self.ask(owner, runtime.clone(), sent, call, first)).await,
        };
        drop(pass);
        let acquired = match answer {
            Ok(acquired) => acquired,
            Err(error) => {
                engine.gate.failed(&error);
                return Err(error.during("acquire").for_identity(identity));
            }
        };
        engine.gate.answered();
        Ok(match acquired {
            Acquired::Granted(grant) => {
                let terms = Terms { durations: *durations, owner, grant, counted_from };
                Found::End(Acquisition::Granted(Held::new(engine, ctx, terms, permit, runtime)))
            }
            Acquired::Complete(result) => Found::End(Acquisition::Complete(result)),
            Acquired::Busy { remaining, token } => {
                Found::Busy(Seen { token, until: engine.now() + remaining })
            }
        })
    }

    fn request(&self, owner: OwnerId) -> Call {
        let request = AcquireRequest::new(owner, self.durations.lease, self.durations.ttl)
            .with_fingerprint(self.ctx.fingerprint().copied());
        self.engine.dyn_store().dyn_acquire(self.identity().clone(), request)
    }

    /// Goes on with an acquire that was sent at `sent` and polled once: `first` is its answer, if it has one. Says from
    /// when a lease that it got is counted.
    async fn ask(
        &self,
        owner: OwnerId,
        runtime: tokio::runtime::Handle,
        sent: Instant,
        call: Call,
        first: Option<Result<Acquired>>,
    ) -> (Result<Acquired>, Instant) {
        let Self { engine, durations, .. } = *self;
        let mut abandoned =
            Abandoned { engine, identity: self.identity(), owner, runtime, durations, call: Some(None) };
        let left = || (sent + engine.gate.operation_timeout()).saturating_duration_since(engine.now());
        let mut answer = match first {
            Some(answer) => answer,
            None => abandoned.ask(left(), call).await,
        };
        let mut counted_from = sent;
        if is_unavailable(&answer) && !left().is_zero() {
            counted_from = engine.now();
            answer = abandoned.ask(left(), self.request(owner)).await;
        }
        if !is_unavailable(&answer) {
            abandoned.nothing_to_release();
        }
        (answer, counted_from)
    }
}

fn is_unavailable(answer: &Result<Acquired>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
}

type Call = std::pin::Pin<Box<dyn Future<Output = Result<Acquired>> + Send>>;

/// Cleans up after an acquire whose outcome is not known: the same call is finished, then released, on the runtime. A
/// release sent beside a call in flight could overtake it and leave an orphan lease (ACQ-11).
struct Abandoned<'a> {
    engine: &'a Arc<Inner>,
    identity: &'a Identity,
    owner: OwnerId,
    runtime: tokio::runtime::Handle,
    durations: Durations,
    call: Option<Option<Call>>,
}

impl Abandoned<'_> {
    async fn ask(&mut self, bound: Duration, call: Call) -> Result<Acquired> {
        let call = self.call.insert(Some(call));
        let answered = timeout(
            bound,
            std::future::poll_fn(|cx| match call {
                Some(in_flight) => in_flight.as_mut().poll(cx),
                None => std::task::Poll::Pending,
            }),
        )
        .await;
        match answered {
            Ok(answer) => {
                *call = None;
                answer
            }
            Err(_) => Err(Error::unavailable("no answer in time").with("after", format_args!("{bound:?}"))),
        }
    }

    fn nothing_to_release(&mut self) {
        self.call = None;
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (engine, identity, owner) = (Arc::clone(self.engine), self.identity.clone(), self.owner);
        let until = self.engine.now() + self.durations.lease;
        drop(self.runtime.spawn(async move {
            if let Some(call) = call {
                let bound =
                    engine.gate.operation_timeout().max(until.saturating_duration_since(engine.now()));
                match timeout(bound, call).await {
                    Ok(Ok(Acquired::Complete(_) | Acquired::Busy { .. })) => return,
                    Ok(Ok(Acquired::Granted(_)) | Err(_)) | Err(_) => {}
                }
            }
            // Tried until the lease is over; then there is nothing to release.
            let _ = super::finish::release_until(&engine, &identity, owner, until).await;
        }));
    }
}

/// The fresh wait of a caller whose completion was refused (CMP-2): the taker's result, or in flight, or `None` when
/// the record is gone. It never acquires: the action ran already.
pub(crate) async fn watch(
    engine: &Arc<Inner>,
    identity: &Identity,
    wait: Duration,
) -> Result<Option<Result<StoredResult, InFlight>>> {
    let deadline = engine.now() + wait;
    loop {
        let call = engine.dyn_store().dyn_look(identity.clone());
        let (remaining, token) = match engine.gate.always("look", identity, call).await? {
            Standing::Complete(result) => return Ok(Some(Ok(result))),
            Standing::Absent => return Ok(None),
            Standing::Busy { remaining, token } => (remaining, token),
        };
        let left = deadline.saturating_duration_since(engine.now());
        if left.is_zero() {
            return Ok(Some(Err(InFlight::new(remaining))));
        }
        let at_most = left.min(remaining).max(Duration::from_millis(1));
        let changed = engine.dyn_store().dyn_changed(identity.clone(), token, at_most);
        let bound = at_most.saturating_add(engine.gate.operation_timeout());
        engine.gate.within(bound, "changed", identity, changed).await?;
    }
}
