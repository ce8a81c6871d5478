// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Lease`]: what a running action sees of its hold on the key (ACQ-12, RUN-2).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lock::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::clock::Instant;
use crate::engine::Inner;
use crate::error::Result;
use crate::heartbeat::Lane;
use crate::identity::Identity;
use crate::observe::{LeaseEvent, Loss};
use crate::owner::{FencingToken, OwnerId};
use crate::store::FencedWrite;
use crate::told::{self, End};

/// Whether a grant is the first since the key was free, or took over from an owner that died
/// (ACQ-12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attempt {
    /// The key was free.
    First,
    /// Another owner's lease had run out: its effects may have happened, so reconcile before
    /// repeating them.
    Takeover,
}

/// A handle on the lease of a running action. Cheap to clone; it does not keep the lease alive.
///
/// A lease fences the *record*, not the world: a paused process may act after its lease is over.
/// Hand [`downstream_key`](Self::downstream_key) to services that take an idempotency key, and
/// [`token`](Self::token) to resources that can refuse an older one.
#[derive(Clone)]
pub struct Lease(pub(crate) Arc<LeaseState>);

pub(crate) struct LeaseState {
    pub(crate) engine: Arc<Inner>,
    pub(crate) identity: Identity,
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) attempt: Attempt,
    pub(crate) lease: Duration,
    pub(crate) granted_at: Instant,
    /// Where it beats.
    pub(crate) lane: Arc<Lane>,
    pub(crate) beating: Mutex<Beating>,
    /// Told when the lease is lost, when a beat is to end and when it has ended.
    pub(crate) changed: Notify,
    /// Set by an action whose failure would tell nothing of its effect.
    pub(crate) hold_on_error: AtomicBool,
    /// Set by the one terminal event.
    pub(crate) ended: AtomicBool,
}

/// What the heartbeat and the end of the execution agree on.
#[derive(Debug)]
pub(crate) struct Beating {
    /// Until when the lease is believed held: counted from before the call that got it was sent.
    pub(crate) until: Instant,
    pub(crate) loss: Option<Loss>,
    /// No beat starts any more (RUN-3).
    pub(crate) stopped: bool,
    /// The last try to beat failed, and the next one is queued.
    pub(crate) resting: bool,
    /// A beat is on its way.
    pub(crate) in_flight: bool,
    /// Its place in the queue of beats.
    pub(crate) due: Option<(Instant, u64)>,
}

impl Lease {
    /// First, or takeover: then the earlier owner's effects may have happened (ACQ-12).
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.0.attempt
    }

    /// The fencing token of this grant (ACQ-10).
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.token
    }

    /// The identity; it prints masked (ID-4).
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Whether the lease, as counted here, still runs. The store may know better:
    /// [`confirm`](Self::confirm).
    #[must_use]
    pub fn believed_held(&self) -> bool {
        let beating = self.0.beating.lock();
        beating.loss.is_none() && !beating.stopped && self.0.engine.now() < beating.until
    }

    /// What is left of the lease as counted here; zero when it is over or lost. The heartbeat
    /// renews it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let beating = self.0.beating.lock();
        match beating.loss {
            None => beating.until.saturating_duration_since(self.0.engine.now()),
            Some(_) => Duration::ZERO,
        }
    }

    /// Asks the store, by extending the lease once: `false` means that it is lost, or that its
    /// holder has completed it or let it go; then nothing is extended.
    ///
    /// # Errors
    /// Those of the store; then nothing is known.
    ///
    /// # Cancel safety
    /// A drop leaves the lease extended or not.
    pub async fn confirm(&self) -> Result<bool> {
        let state = &self.0;
        {
            let beating = state.beating.lock();
            // Of a lease that was let go the rest has to run out (RUN-5).
            if beating.loss.is_some() || beating.stopped {
                return Ok(false);
            }
        }
        let sent = state.engine.now();
        let call =
            state.engine.dyn_store().dyn_extend(state.identity.clone(), state.owner, state.lease);
        let answer = state.engine.gate.always("extend", &state.identity, call).await?;
        Ok(match answer {
            FencedWrite::Applied | FencedWrite::AlreadyApplied => {
                let mut beating = state.beating.lock();
                beating.until = beating.until.max(sent + state.lease);
                true
            }
            FencedWrite::NotOwner => {
                state.lose(Loss::TakenOver);
                false
            }
        })
    }

    /// **From here on the effect is unknown, unless this run returns a value**: say so when a
    /// request is on its way, or when its error does not tell whether it was carried out. An error
    /// or a panic of the action, or its drop, then frees nothing: the key stays taken until the
    /// lease runs out, and the next run knows that it is a [takeover](Attempt::Takeover) (RUN-4).
    /// Without it they free the key, and the next call runs at once. The answer of an HTTP handler
    /// states its own fate (`AnswerFate`).
    ///
    /// ```
    /// # use retryproof_core::{ExecuteError, IdempotencyContext, IdempotencyEngine, MemoryStore};
    /// # enum PayError { TimedOut, Refused }
    /// # async fn charge(_key: String) -> Result<u64, PayError> { Err(PayError::TimedOut) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = IdempotencyEngine::new(MemoryStore::new());
    /// let ctx = IdempotencyContext::builder("charges", "order-7").build()?;
    /// let charged = engine.execute_with(ctx, |lease| async move {
    ///     charge(lease.downstream_key("charge")).await.inspect_err(|error| match error {
    ///         PayError::TimedOut => lease.hold_on_error(),
    ///         PayError::Refused => {} // surely nothing happened: the key is free again
    ///     })
    /// });
    /// assert!(matches!(charged.await, Err(ExecuteError::Held { error: PayError::TimedOut, .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_on_error(&self) {
        self.0.hold_on_error.store(true, Ordering::Release);
    }

    pub(crate) fn holds_on_error(&self) -> bool {
        self.0.hold_on_error.load(Ordering::Acquire)
    }

    /// Resolves when the lease is lost, and says why (RUN-2, RUN-6); pending for ever when it never
    /// is, so race it against the work: `select! { () = work => .., loss = lease.lost() => .. }`.
    ///
    /// # Cancel safety
    /// A drop leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the look, so that a loss between the two is not missed.
            changed.as_mut().enable();
            if let Some(loss) = self.0.beating.lock().loss {
                return loss;
            }
            changed.await;
        }
    }

    /// An idempotency key for a call that this action makes to another service: 64 hex digits of
    /// SHA-256 over scope, key and `step`, the same for the holder and for whoever takes over. Name
    /// each call's step differently.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> String {
        let mut hash = Sha256::new();
        let key = self.0.identity.key().expose();
        for part in ["retryproof downstream key 1", self.0.identity.scope().as_str(), key, step] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("identity", &self.0.identity)
            .field("token", &self.0.token)
            .field("attempt", &self.0.attempt)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl LeaseState {
    /// Marks the lease as lost, once, and tells whoever listens.
    pub(crate) fn lose(&self, loss: Loss) {
        {
            let mut beating = self.beating.lock();
            if beating.loss.is_some() || beating.stopped {
                return;
            }
            beating.loss = Some(loss);
        }
        self.changed.notify_waiters();
        tracing::warn!(identity = %self.identity, token = %self.token, ?loss,
            "the lease is lost while its action runs");
        self.engine.observers.tell(|o| o.loss_noticed(self.event(), loss));
    }

    pub(crate) fn event(&self) -> LeaseEvent<'_> {
        let held_for = self.engine.now().saturating_duration_since(self.granted_at);
        LeaseEvent { identity: &self.identity, token: self.token, held_for }
    }

    /// The terminal event: the first to come is the only one.
    pub(crate) fn end(&self, end: End) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        told::ended(self, end);
        self.engine.observers.tell(|o| match end {
            End::Completed(recorded) => o.completed(self.event(), recorded),
            End::Failed(phase) => o.failed(self.event(), phase),
            End::Lost => o.lost(self.event()),
        });
    }

    /// Until when the lease runs as counted here.
    pub(crate) fn until(&self) -> Instant {
        self.beating.lock().until
    }

    /// Lets no further beat start.
    pub(crate) fn stop_beats(&self) {
        let (due, in_flight) = {
            let mut beating = self.beating.lock();
            beating.stopped = true;
            (beating.due.take(), beating.in_flight)
        };
        if in_flight {
            self.changed.notify_waiters();
        }
        if let Some(due) = due {
            self.lane.remove(due);
        }
    }

    /// Whether a beat is on its way.
    pub(crate) fn is_beating(&self) -> bool {
        self.beating.lock().in_flight
    }

    /// Ends the heartbeat and awaits a beat that is on its way (RUN-3). Each beat is bounded below
    /// lease / 4.
    pub(crate) async fn end_beats(&self) {
        self.stop_beats();
        // After the stop none begins, so one look is enough in the common case.
        while self.is_beating() {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.is_beating() {
                changed.await;
            }
        }
    }
}
