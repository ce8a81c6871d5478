// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HeldLease`]: a beating lease in a caller's hands, consumed by its end (ACQ-1, RUN-3, RUN-5).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::lock::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Inner;
use super::commit::{JoinError, PendingCommit};
use super::finish::{CompletionResult, First, complete, complete_at_once, release};
use super::flight::Seen;
use super::gate::Finish;
use super::running::{Permit, Running};
use crate::blob::Blob;
use crate::clock::Instant;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::lease::{Attempt, Beating, Lease, LeaseState};
use crate::observe::Phase;
use crate::owner::OwnerId;
use crate::payload::{Payload, Tombstone};
use crate::store::{Completion, Dialect, DynJoin, Grant, TxPort};
use crate::told::End;

/// A granted lease. It beats until it is completed, released or dropped.
///
/// Dropped, it counts as an owner that died: the beats stop, the lease runs out, and the next grant
/// is a takeover (RUN-5). Nothing is known then about the effects of the work, so nothing frees the
/// key early.
pub struct HeldLease {
    lease: Lease,
    ttl: Duration,
    fingerprint: Option<Fingerprint>,
    permit: Option<Permit>,
    /// Whether a call has taken over the end of the lease.
    consumed: bool,
}

/// What a grant was asked with and what it said.
pub(crate) struct Terms {
    pub(crate) durations: Durations,
    pub(crate) owner: OwnerId,
    pub(crate) grant: Grant,
    /// When the call that was granted was sent: the lease is counted from there, so that the holder
    /// stops believing before the store does.
    pub(crate) counted_from: Instant,
}

impl HeldLease {
    pub(crate) fn new(
        engine: &Arc<Inner>,
        ctx: &IdempotencyContext,
        terms: Terms,
        permit: Option<Permit>,
        runtime: Handle,
    ) -> Self {
        let Terms { durations, owner, grant, counted_from } = terms;
        let beating = Beating {
            until: counted_from + durations.lease,
            loss: None,
            stopped: false,
            resting: false,
            in_flight: false,
            due: None,
        };
        let state = Arc::new(LeaseState {
            engine: Arc::clone(engine),
            identity: ctx.identity().clone(),
            owner,
            token: grant.token,
            attempt: if grant.took_over { Attempt::Takeover } else { Attempt::First },
            lease: durations.lease,
            granted_at: counted_from,
            lane: engine.beats.lane(runtime),
            beating: Mutex::new(beating),
            changed: Notify::new(),
            hold_on_error: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        engine.observers.tell(|o| o.acquired(state.event()));
        if grant.took_over {
            tracing::info!(identity = %state.identity, token = %state.token, "took over an expired lease");
            engine.observers.tell(|o| o.taken_over(state.event()));
        }
        let first = durations.lease / 2;
        state.lane.add(&state, counted_from + first.min(engine.config.max_hold));
        engine.keep_purging();
        Self {
            lease: Lease(state),
            ttl: durations.ttl,
            fingerprint: ctx.fingerprint().copied(),
            permit,
            consumed: false,
        }
    }

    /// The lease, for the work to look at.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The permit of `max-running`, for a caller that keeps it beyond the end of the lease: as long
    /// as it lives, `shutdown` waits.
    #[must_use]
    pub fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Records the result (CMP-1): ends the heartbeat, then completes, repeating what was not
    /// answered (CMP-3).
    ///
    /// The call decides: from here on the result is recorded, whether the future is awaited or not
    /// (RUN-5). A store in memory has it when this returns. Any other is sent it when the future is
    /// first polled or dropped; until then the lease beats.
    ///
    /// # Cancel safety
    /// Dropped, polled or not, the completion is finished in the background (RUN-5).
    pub fn complete(
        self,
        value: Payload,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.finish_with(value.into_envelope(), false)
    }

    /// Records that the work is done and that its result cannot be replayed (CMP-9, HTTP-13).
    ///
    /// # Cancel safety
    /// As [`complete`](Self::complete).
    pub fn complete_tombstone(
        self,
        tombstone: Tombstone,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.finish_with(tombstone.into_envelope(), true)
    }

    /// Not an `async fn`, which would do nothing before it is polled.
    fn finish_with(
        mut self,
        envelope: Blob,
        tombstone: bool,
    ) -> impl Future<Output = CompletionResult> + Send + 'static {
        self.consumed = true;
        let done = Completion::new(envelope, self.ttl, self.fingerprint);
        let rest = match complete_at_once(&self.lease, &done, tombstone) {
            First::Recorded => None,
            First::Open(sent) => {
                Some(self.finish(complete(self.lease.clone(), done, tombstone, sent)))
            }
        };
        async move {
            match rest {
                // On the heap: a store in memory would carry its room.
                Some(rest) => Box::pin(self.await_end(rest)).await,
                None => CompletionResult::Recorded,
            }
        }
    }

    /// Writes the result as the last statement of a transaction of the caller's, so that it commits
    /// with the caller's writes or not at all (CMP-7). Open the transaction after the lease was
    /// granted; write; call this; commit; then say so to the [`PendingCommit`].
    ///
    /// It ends the heartbeat first and awaits its end, so commit soon: the lease runs out, and only
    /// the lock on the record's row holds a taker off. READ COMMITTED is the isolation that suits:
    /// a stricter one may refuse the statement because a beat has touched the row.
    ///
    /// # Errors
    /// **Roll the transaction back on any of them.** [`JoinError::LeaseLost`] when another owner
    /// has taken over; [`JoinError::Failed`] when the store cannot join this transaction
    /// (`Unsupported`) or the database refuses.
    ///
    /// # Cancel safety
    /// Dropped, polled or not, roll the transaction back: the key is freed in the background.
    pub fn complete_in<D, P>(
        self,
        tx: &mut P,
        value: Payload,
    ) -> impl Future<Output = Result<PendingCommit, JoinError>>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        self.join_in(tx, value.into_envelope(), false)
    }

    /// As [`complete_in`](Self::complete_in), for a result that cannot be replayed (CMP-9).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub fn complete_tombstone_in<D, P>(
        self,
        tx: &mut P,
        tombstone: Tombstone,
    ) -> impl Future<Output = Result<PendingCommit, JoinError>>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        self.join_in(tx, tombstone.into_envelope(), true)
    }

    fn join_in<D, P>(
        self,
        tx: &mut P,
        envelope: Blob,
        tombstone: bool,
    ) -> impl Future<Output = Result<PendingCommit, JoinError>>
    where
        D: Dialect,
        P: TxPort<D> + ?Sized,
    {
        let engine = Arc::clone(&self.lease.0.engine);
        // Before the first poll, so that a future which is dropped without one frees the key as
        // well.
        let pending = match engine.store.joiner::<D>() {
            Ok(join) => Ok(self.join(Arc::clone(join), envelope, tombstone)),
            Err(error) => {
                let error = error.for_identity(self.lease.identity());
                self.release_soon(Phase::RolledBack);
                Err(JoinError::Failed(error))
            }
        };
        async move {
            let mut pending = pending?;
            match pending.write(tx).await {
                Ok(1) => Ok(pending),
                Ok(_) => {
                    pending.lost_soon();
                    Err(JoinError::LeaseLost)
                }
                // Dropped, it frees the key once the transaction is rolled back.
                Err(error) => Err(JoinError::Failed(error)),
            }
        }
    }

    /// Hands the end of the lease to a transaction's commit.
    pub(super) fn join(
        mut self,
        join: Arc<dyn DynJoin>,
        envelope: Blob,
        tombstone: bool,
    ) -> PendingCommit {
        self.consumed = true;
        let done = Completion::new(envelope, self.ttl, self.fingerprint);
        let permit = self.permit.take();
        PendingCommit::new(
            self.lease.clone(),
            join,
            done,
            tombstone,
            permit,
            self.lease.0.lane.runtime().clone(),
        )
    }

    /// Runs the end of the lease to its own end even when the caller goes away.
    fn finish<F>(&self, end: F) -> Finish<F>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        Finish::new(
            self.lease.0.lane.runtime().clone(),
            Arc::clone(&self.lease.0.engine.running),
            end,
        )
    }

    pub(super) fn is_of(&self, engine: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.lease.0.engine, engine)
    }

    /// Where an end goes on in the background.
    pub(super) fn place(&self) -> (Handle, Arc<Running>) {
        (self.lease.0.lane.runtime().clone(), Arc::clone(&self.lease.0.engine.running))
    }

    async fn await_end(&self, work: impl Future<Output = CompletionResult>) -> CompletionResult {
        let bound = self.lease.0.engine.gate.operation_timeout();
        match tokio::time::timeout(bound, work).await {
            Ok(finished) => finished,
            // The time-out dropped the work, and so sent it to the background.
            Err(_) => CompletionResult::Unconfirmed(
                Error::unavailable(
                    "the completion was not confirmed in time; it is repeated in the background",
                )
                .during("complete")
                .for_identity(self.lease.identity()),
            ),
        }
    }

    /// Frees the key at once (RUN-4): the next caller sees an unused key.
    ///
    /// # Errors
    /// When the store did not confirm; the release goes on in the background until the lease is
    /// over.
    ///
    /// # Cancel safety
    /// Dropped, polled or not, the release is finished in the background (RUN-5).
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release_after(Phase::Released)
    }

    /// As [`release`](Self::release), telling observers why the work failed: an adapter that runs
    /// the work itself knows whether it returned an error or panicked. Where the work said
    /// [`hold_on_error`](Lease::hold_on_error), it is held instead.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    /// As [`release`](Self::release).
    pub fn release_after(
        mut self,
        phase: Phase,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let lease = self.lease.clone();
        let bound = lease.0.engine.gate.operation_timeout();
        // Released on purpose, it is free, whatever the work said.
        let work = if phase != Phase::Released && lease.holds_on_error() {
            self.let_run_out(Phase::Held);
            None
        } else {
            self.consumed = true;
            lease.0.end(End::Failed(phase));
            Some(self.finish(release(lease)))
        };
        async move {
            let Some(work) = work else { return Ok(()) };
            tokio::time::timeout(bound, work).await.unwrap_or_else(|_| {
                let message =
                    "the release was not confirmed in time; it is repeated in the background";
                Err(Error::unavailable(message)
                    .during("release")
                    .for_identity(self.lease.identity()))
            })
        }
    }

    /// Frees the key in the background, from a place that cannot wait.
    pub(crate) fn release_soon(mut self, phase: Phase) {
        self.consumed = true;
        let lease = self.lease.clone();
        lease.0.stop_beats();
        lease.0.end(End::Failed(phase));
        // A shutdown waits for it.
        let (runtime, running) = self.place();
        let ending = running.ending();
        drop(runtime.spawn(async move {
            let _ = release(lease).await;
            drop(ending);
        }));
    }

    /// Stops the heartbeat and lets the lease run out: the effect of the work is not known (HTTP-7
    /// `Hold`, RUN-4).
    pub fn hold(mut self) {
        self.let_run_out(Phase::Held);
    }

    fn let_run_out(&mut self, phase: Phase) {
        self.consumed = true;
        self.lease.0.stop_beats();
        self.lease.0.end(End::Failed(phase));
    }

    pub(crate) fn seen(&self) -> Seen {
        Seen { token: self.lease.0.token, until: self.lease.0.until() }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if !self.consumed {
            self.let_run_out(Phase::Dropped);
        }
    }
}

impl fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLease")
            .field("lease", &self.lease)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
