// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait loop, written once: acquire, or wait for the holder, or say that it is in flight (ACQ-1
//! to ACQ-13).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::flight::{Seat, Seen};
use super::running::Leave;
use super::{Acquisition, IdempotencyEngine, Inner};
use crate::clock::Instant;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::outcome::InFlight;
use crate::owner::OwnerId;
use crate::payload::StoredResult;
use crate::store::Peeked;
use crate::told;

mod acquire;

/// How long a leader rests before it asks a failing store again, or looks again at a key that is
/// free while no permit is.
const REST: Duration = Duration::from_millis(20);

/// What the rest grows to: the waiters of many keys must not storm the store.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// One acquisition: what stays the same over the passes of the loop.
pub(crate) struct Attempting<'a> {
    engine: &'a Arc<Inner>,
    ctx: &'a IdempotencyContext,
    durations: Durations,
    /// Read once: a replay should not pay for the clock twice. A lease of the first pass is counted
    /// from here.
    started: Instant,
    deadline: Instant,
    tracked: bool,
}

/// What an acquire found, as the loop needs it.
enum Found {
    End(Acquisition),
    Busy(Seen),
}

impl IdempotencyEngine {
    /// As [`try_acquire`](Self::try_acquire), for a tracked action: counted against `max-running`,
    /// and waited for by [`shutdown`](Self::shutdown) (RUN-5). The permit is taken before the
    /// acquire and given back while waiting.
    ///
    /// # Errors
    /// `TooBusy` too, when no permit is free and nothing is stored yet.
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_tracked(&self, ctx: &IdempotencyContext) -> Result<Acquisition> {
        try_acquire(&self.0, ctx, true, self.0.owner()).await
    }

    /// As [`try_acquire_tracked`](Self::try_acquire_tracked), as far as it goes within this call.
    /// An `Err` is for [`try_acquire_tracked_as`](Self::try_acquire_tracked_as) to go on with: the
    /// store does not answer at once, or there is a holder to wait for.
    ///
    /// # Errors
    /// Those of the inner result, as of [`try_acquire_tracked`](Self::try_acquire_tracked).
    #[doc(hidden)]
    pub fn try_acquire_tracked_now(
        &self,
        ctx: &IdempotencyContext,
    ) -> Result<Result<Acquisition>, OwnerId> {
        try_acquire_now(&self.0, ctx)
    }

    /// Goes on where [`try_acquire_tracked_now`](Self::try_acquire_tracked_now) could not, as the
    /// same owner: whatever the store has done for it counts (ACQ-9).
    ///
    /// # Errors
    /// As [`try_acquire_tracked`](Self::try_acquire_tracked).
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    #[doc(hidden)]
    pub async fn try_acquire_tracked_as(
        &self,
        ctx: &IdempotencyContext,
        owner: OwnerId,
    ) -> Result<Acquisition> {
        try_acquire(&self.0, ctx, true, owner).await
    }
}

pub(crate) async fn try_acquire(
    engine: &Arc<Inner>,
    ctx: &IdempotencyContext,
    tracked: bool,
    owner: OwnerId,
) -> Result<Acquisition> {
    let attempting = Attempting::new(engine, ctx, tracked)?;
    let end = attempting.run(owner).await;
    attempting.tell(&end);
    end
}

/// [`try_acquire`] of a store that answers at once, as far as it goes without a wait; then who is
/// to go on.
fn try_acquire_now(
    engine: &Arc<Inner>,
    ctx: &IdempotencyContext,
) -> Result<Result<Acquisition>, OwnerId> {
    if !engine.immediate {
        return Err(engine.owner());
    }
    let attempting = match Attempting::new(engine, ctx, true) {
        Ok(attempting) => attempting,
        Err(error) => return Ok(Err(error)),
    };
    let end = attempting.run_now()?;
    attempting.tell(&end);
    Ok(end)
}

impl<'a> Attempting<'a> {
    fn new(engine: &'a Arc<Inner>, ctx: &'a IdempotencyContext, tracked: bool) -> Result<Self> {
        let durations = ctx.resolve(&engine.config);
        engine.check(ctx.identity(), durations)?;
        let started = engine.now();
        let deadline = started + durations.wait;
        Ok(Self { engine, ctx, durations, started, deadline, tracked })
    }

    fn tell(&self, end: &Result<Acquisition>) {
        let observers = &self.engine.observers;
        match end {
            Ok(Acquisition::Granted(_)) => return,
            Ok(Acquisition::Complete(_)) => observers.tell(|o| o.replayed(self.identity())),
            Ok(Acquisition::InFlight(busy)) => {
                observers.tell(|o| o.in_flight(self.identity(), busy.remaining))
            }
            Err(_) => {}
        }
        told::not_granted(self.ctx, end, || {
            self.engine.now().saturating_duration_since(self.started)
        });
    }

    fn identity(&self) -> &Identity {
        self.ctx.identity()
    }

    async fn run(&self, owner: OwnerId) -> Result<Acquisition> {
        let leave = match self.leave() {
            Ok(leave) => leave,
            // Nothing new may run, but what is done is still replayed (HTTP-14).
            Err(kind) => return Box::pin(self.replay_or(kind)).await,
        };
        let seen = match self.acquire(leave, self.started, owner).await? {
            Found::End(end) => return Ok(end),
            Found::Busy(seen) => seen,
        };
        // A first look that outlasted the wait was the one call that may (ACQ-6).
        if self.durations.wait.is_zero() || self.left().is_zero() {
            return Ok(self.in_flight(seen));
        }
        let flights = &self.engine.flights;
        match flights.join(self.identity(), seen, self.ctx.held_bytes()) {
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
        let lead = timeout(self.left(), seat.flight.lead.lock()).await;
        if let Some(result) = seat.result() {
            return Ok(Acquisition::Complete(result));
        }
        let Ok(_lead) = lead else {
            // The leader may be in a future that is not polled, so this caller asks once for itself
            // (ACQ-5).
            return Ok(match self.pass(seat, self.leave()).await? {
                Some(Found::End(end)) => end,
                _ => self.in_flight(seat.flight.seen()),
            });
        };
        let mut rest = REST;
        // Whether the key was free at the last look: then this waits for a permit, and for no
        // holder.
        let mut free = false;
        loop {
            let leave = if free {
                let permit = timeout(rest.min(self.left()), self.engine.running.permit()).await;
                rest = (rest * 2).min(LONGEST_REST);
                permit.unwrap_or(Err(ErrorKind::TooBusy)).map(Some)
            } else {
                match self.wait_for_change(seat.flight.seen()).await {
                    Ok(()) => rest = REST,
                    // Nothing is known to be wrong with the record: ask again. (A failed acquire
                    // ends the call, ACQ-9.)
                    Err(error)
                        if error.kind() == ErrorKind::Unavailable && !self.left().is_zero() =>
                    {
                        sleep(rest.min(self.left())).await;
                        rest = (rest * 2).min(LONGEST_REST);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                self.leave()
            };
            if self.engine.now() >= self.last() {
                return Ok(self.in_flight(seat.flight.seen()));
            }
            match self.pass(seat, leave).await? {
                Some(Found::End(end)) => return Ok(end),
                Some(Found::Busy(_)) => free = false,
                None => free = true,
            }
        }
    }

    /// Sleeps until the holder may have changed, or its lease or the wait is over.
    async fn wait_for_change(&self, seen: Seen) -> Result<()> {
        let left = seen.until.min(self.deadline).saturating_duration_since(self.engine.now());
        // At least a little, so that a holder whose takeover a lock holds back is not asked in a
        // hot loop.
        let at_most = left.max(Duration::from_millis(1));
        let bound = at_most.saturating_add(self.engine.gate.operation_timeout());
        let changed = self.engine.dyn_store().dyn_wait_for_change(
            self.identity().clone(),
            seen.token,
            at_most,
        );
        self.engine.gate.within(bound, "wait_for_change", self.identity(), changed).await
    }

    /// One pass of a waiter: acquires, or without leave to do so looks. `None`: the key is free,
    /// and a permit is wanted.
    async fn pass(
        &self,
        seat: &Seat<'_>,
        leave: Result<Option<Leave<'_>>, ErrorKind>,
    ) -> Result<Option<Found>> {
        // Waiters that joined until now saw a holder that the answer comes after.
        let behind = seat.flight.seen();
        let found = match leave {
            Ok(leave) => self.acquire(leave, self.engine.now(), self.engine.owner()).await?,
            // The result may still come (RUN-5).
            Err(kind) => match self.stands(self.peek().await?) {
                Some(found) => found,
                None if self.left().is_zero() || kind == ErrorKind::ShuttingDown => {
                    return Err(self.refuse(kind));
                }
                None => return Ok(None),
            },
        };
        match &found {
            Found::End(Acquisition::Complete(result)) => seat.land(result, behind),
            // The others go on waiting, for this one.
            Found::End(Acquisition::Granted(held)) => seat.flight.found(held.seen()),
            Found::End(Acquisition::InFlight(_)) => {}
            Found::Busy(seen) => {
                seat.flight.found(*seen);
                if self.left().is_zero() {
                    return Ok(Some(Found::End(self.in_flight(*seen))));
                }
            }
        }
        Ok(Some(found))
    }

    /// What a look says, unless the key is free.
    fn stands(&self, standing: Peeked) -> Option<Found> {
        match standing {
            Peeked::Complete(result) => Some(Found::End(Acquisition::Complete(result))),
            Peeked::Busy { remaining, token } => {
                Some(Found::Busy(Seen { token, until: self.engine.now() + remaining }))
            }
            Peeked::Absent => None,
        }
    }

    /// Leave to acquire: not while shutting down, and a permit for a tracked action.
    fn leave(&self) -> Result<Option<Leave<'_>>, ErrorKind> {
        if self.tracked {
            return self.engine.running.admit().map(Some);
        }
        if self.engine.running.is_closing() { Err(ErrorKind::ShuttingDown) } else { Ok(None) }
    }

    async fn replay_or(&self, kind: ErrorKind) -> Result<Acquisition> {
        match self.peek().await? {
            Peeked::Complete(result) => Ok(Acquisition::Complete(result)),
            Peeked::Busy { .. } | Peeked::Absent => Err(self.refuse(kind)),
        }
    }

    fn refuse(&self, kind: ErrorKind) -> Error {
        let message = match kind {
            ErrorKind::ShuttingDown => "no new lease is granted; retry at another instance",
            _ => "max-running actions are running; retry later",
        };
        Error::new(kind, message).during("acquire").for_identity(self.identity())
    }

    async fn peek(&self) -> Result<Peeked> {
        let engine = self.engine;
        let pass =
            engine.enter().map_err(|error| error.during("peek").for_identity(self.identity()))?;
        let bound = self
            .last()
            .saturating_duration_since(engine.now())
            .min(engine.gate.operation_timeout());
        let call = engine.dyn_store().dyn_peek(self.identity().clone());
        let answer = engine.gate.within(bound, "peek", self.identity(), call).await;
        drop(pass);
        answer
    }

    /// When the last call to the store ends: one call after the deadline, whatever the calls before
    /// it took (ACQ-6).
    fn last(&self) -> Instant {
        self.deadline + self.engine.gate.operation_timeout()
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(self.engine.now())
    }

    fn in_flight(&self, seen: Seen) -> Acquisition {
        Acquisition::InFlight(InFlight::new(
            seen.until.saturating_duration_since(self.engine.now()),
        ))
    }
}

/// The fresh wait of a caller whose completion was refused (CMP-2): the taker's result, or in
/// flight, or `None` when the record is gone. It never acquires: the action ran already.
pub(crate) async fn watch(
    engine: &Arc<Inner>,
    identity: &Identity,
    wait: Duration,
) -> Result<Option<Result<StoredResult, InFlight>>> {
    let operation = engine.gate.operation_timeout();
    let deadline = engine.now() + wait;
    loop {
        let call = engine.dyn_store().dyn_peek(identity.clone());
        // One call after the deadline, whatever the calls before it took (ACQ-6).
        let bound = (deadline + operation).saturating_duration_since(engine.now()).min(operation);
        let (remaining, token) = match engine.gate.within(bound, "peek", identity, call).await? {
            Peeked::Complete(result) => return Ok(Some(Ok(result))),
            Peeked::Absent => return Ok(None),
            Peeked::Busy { remaining, token } => (remaining, token),
        };
        let left = deadline.saturating_duration_since(engine.now());
        if left.is_zero() {
            return Ok(Some(Err(InFlight::new(remaining))));
        }
        let at_most = left.min(remaining).max(Duration::from_millis(1));
        let changed = engine.dyn_store().dyn_wait_for_change(identity.clone(), token, at_most);
        let bound = at_most.saturating_add(operation);
        engine.gate.within(bound, "wait_for_change", identity, changed).await?;
    }
}
