// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Lease`]: a running action's handle to its lease. [`HeldLease`]: the same lease, owned by the
//! caller that has to end it (ACQ-1, ACQ-12, RUN-2).
//!
//! This file is over 400 lines long because `Lease` and `HeldLease` share one private state, and
//! their docs contain long examples.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tracing::Span;

use super::span;
use super::store_client::StoreClient;
use super::tasks::{Permit, Tasks};
use crate::attempt::Attempt;
use crate::clock::Instant;
use crate::context::{Durations, IdempotencyContext};
use crate::error::{ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::lock::Mutex;
use crate::observe::{LeaseEvent, Loss, ShadowVerdict};
use crate::owner::{FencingToken, OwnerId};
use crate::seal::CallSeal;
use crate::store::{FencedWrite, Grant};

mod heartbeat;

pub(super) use heartbeat::{BeatQueue, BeatQueues};

/// A handle to the lease of a running action. A handle is cheap to clone, and does not keep the
/// lease alive.
///
/// A lease protects only the *record*: a paused process can still act elsewhere after its lease is
/// over. Pass [`downstream_key`](Self::downstream_key) to services that accept an idempotency key,
/// and [`token`](Self::token) to resources that can refuse an older token.
#[derive(Clone)]
pub struct Lease(pub(super) Arc<LeaseState>);

pub(super) struct LeaseState {
    pub(super) store: Arc<StoreClient>,
    pub(super) tasks: Arc<Tasks>,
    /// The queue in which the lease waits for its heartbeats.
    pub(super) queue: Arc<BeatQueue>,
    pub(super) identity: Identity,
    pub(super) owner: OwnerId,
    pub(super) token: FencingToken,
    pub(super) attempt: Attempt,
    /// What the guard would have done, if the scope is in shadow mode (CTX-6).
    pub(super) shadow: Option<ShadowVerdict>,
    pub(super) duration: Duration,
    granted_at: Instant,
    /// How long the call had been running when it requested the lease.
    waited: Duration,
    /// After this instant the lease sends no more heartbeats (RUN-6).
    hold_until: Instant,
    beat: Mutex<BeatState>,
    /// Notified when the lease is lost, when a running heartbeat has to end, and when that
    /// heartbeat has ended.
    changed: Notify,
    /// Set by [`Lease::hold_on_error`]. A failure then leaves it unknown whether the action had an
    /// effect.
    hold_on_error: AtomicBool,
    /// Set when the lease's only terminal event is reported.
    pub(super) ended: AtomicBool,
    /// The span of the call that was granted the lease. The span is disabled if the call has no
    /// span, and after the terminal event.
    pub(super) span: Mutex<Span>,
}

/// The state that the heartbeat and the end of the execution share.
#[derive(Debug)]
struct BeatState {
    /// When the lease ends by the engine's clock. The lease runs from just before the last acquire
    /// or extend was sent.
    until: Instant,
    loss: Option<Loss>,
    /// Whether the heartbeats are stopped, so that no further heartbeat starts (RUN-3).
    stopped: bool,
    /// Whether the last heartbeat failed and the next try is queued.
    retrying: bool,
    /// Whether a heartbeat is running.
    in_flight: bool,
    /// The lease's position in the queue.
    due: Option<(Instant, u64)>,
}

impl Lease {
    /// Whether this is the first attempt or a takeover from an owner whose work may already have
    /// had effects (ACQ-12).
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.0.attempt
    }

    /// Returns the fencing token of this grant (ACQ-10).
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.token
    }

    /// Returns the identity, which is masked when it is printed (ID-4).
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Whether the lease keeps other calls from running. The result is `false` if the scope is
    /// configured with `enabled = false` (CTX-5) or `shadow = true` (CTX-6). In such a scope,
    /// nothing is replayed, and calls with the same key can run at the same time. The token fences
    /// nothing, and [`confirm`](Self::confirm) does not check with the store.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.0.store.guards()
    }

    /// Returns what the guard would have done with this call, if its scope is in shadow mode
    /// (CTX-6); otherwise `None`.
    #[must_use]
    pub fn shadow(&self) -> Option<ShadowVerdict> {
        self.0.shadow
    }

    /// Whether the lease is still running by the engine's clock. To check with the store, use
    /// [`confirm`](Self::confirm).
    #[must_use]
    pub fn believed_held(&self) -> bool {
        // Read the clock before the lock is taken, because an application's clock can call methods
        // of this lease.
        let now = self.0.store.now();
        let beat = self.0.beat.lock();
        beat.loss.is_none() && !beat.stopped && now < beat.until
    }

    /// Returns how much time is left on the lease by the engine's clock. Zero if the lease is over
    /// or lost. Each heartbeat extends the lease.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = self.0.store.now();
        let beat = self.0.beat.lock();
        match beat.loss {
            None => beat.until.saturating_duration_since(now),
            Some(_) => Duration::ZERO,
        }
    }

    /// Checks with the store that the lease is still held, by extending it once. Returns `false` if
    /// the lease is lost, or if its holder has completed, released or given up the lease. The lease
    /// is not extended then.
    ///
    /// # Errors
    /// The store's errors. After an error, it is unknown whether the lease is held.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lease may or may not be extended.
    pub async fn confirm(&self) -> Result<bool> {
        let state = &self.0;
        {
            let beat = state.beat.lock();
            // Do not extend a lease that was lost, or a lease that has to run out because its
            // heartbeat was stopped (RUN-5).
            if beat.loss.is_some() || beat.stopped {
                return Ok(false);
            }
        }
        let sent = state.store.now();
        Ok(match state.store.extend(&state.identity, state.owner, state.duration).await? {
            FencedWrite::Applied | FencedWrite::AlreadyApplied => {
                let mut beat = state.beat.lock();
                beat.until = beat.until.max(sent + state.duration);
                true
            }
            FencedWrite::NotOwner => {
                state.lose(Loss::TakenOver);
                false
            }
        })
    }

    /// **Declares that a failure of this run leaves it unknown whether the action had an effect.**
    /// Call this method when a request is on its way, or when an error does not show whether the
    /// request was carried out. After this call, an error, a panic or a drop of the action does not
    /// free the key, and neither does a [joined transaction](crate::JoinedEngine) that is rolled
    /// back after the action has returned. The key stays taken until the lease runs out, and the
    /// next run is a [takeover](Attempt::Takeover) (RUN-4). Without this call, an error, a panic or
    /// such a rollback frees the key, and the next call runs immediately. The same holds for the
    /// drop of a joined call or of a call with [`OnDrop::Release`](crate::OnDrop::Release). To find
    /// out how a transaction ended, the engine may extend the lease once more. In an HTTP handler,
    /// set the fate of the answer (`AnswerFate`) instead.
    ///
    /// ```
    /// # use retryproof_core::{ExecuteError, IdempotencyContext, IdempotencyEngine};
    /// # use retryproof_memory::MemoryStore;
    /// # enum PayError { TimedOut, Refused }
    /// # async fn charge(_key: String) -> Result<u64, PayError> { Err(PayError::TimedOut) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = IdempotencyEngine::new(MemoryStore::new());
    /// let ctx = IdempotencyContext::builder("charges", "order-7").build()?;
    /// let charged = engine.execute_with(ctx, |lease| async move {
    ///     charge(lease.downstream_key("charge")).await.inspect_err(|error| match error {
    ///         PayError::TimedOut => lease.hold_on_error(),
    ///         PayError::Refused => {} // nothing was charged, so the key is freed
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

    /// Waits until the lease is lost, and returns the reason (RUN-2, RUN-6). The future never
    /// resolves while the lease is held, so race it against the work:
    /// `select! { () = work => .., loss = lease.lost() => .. }`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Register before the check, so that a loss between the two steps is not missed.
            changed.as_mut().enable();
            if let Some(loss) = self.0.beat.lock().loss {
                return loss;
            }
            changed.await;
        }
    }

    /// Derives an idempotency key for a call that this action makes to another service. The derived
    /// key has 64 hex digits: SHA-256 over the scope, the key and `step`. A holder that takes over
    /// derives the same key. Give each downstream call a different `step`.
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
    pub(super) fn event(&self) -> LeaseEvent<'_> {
        let held_for = self.store.now().saturating_duration_since(self.granted_at);
        LeaseEvent {
            identity: &self.identity,
            token: self.token,
            attempt: self.attempt,
            waited: self.waited,
            held_for,
            result_bytes: None,
        }
    }

    /// Reports a heartbeat that failed or was cut off unanswered.
    fn beat_failed(&self, kind: ErrorKind) {
        self.store.observers.tell(|o| o.beat_failed(self.event(), kind));
    }

    /// Returns when the lease ends by the engine's clock.
    pub(super) fn until(&self) -> Instant {
        self.beat.lock().until
    }
}

/// A granted lease, which sends heartbeats until it is completed, released or dropped.
///
/// A dropped lease is treated as if its owner had died: the heartbeats stop, the lease runs out,
/// and the next grant is a takeover (RUN-5). The effects of the work are then unknown, so the key
/// is not freed early.
/// # When to use
/// Use a held lease for work that does not fit into a closure, for example in an adapter. The
/// adapter gets the lease from [`try_acquire`](crate::IdempotencyEngine::try_acquire), and has to
/// end it on every path. Otherwise use [`execute`](crate::IdempotencyEngine::execute), which ends
/// the lease itself.
///
/// ```
/// use retryproof_core::{
///     Acquisition, CodecId, CompletionResult, IdempotencyContext, IdempotencyEngine, Payload,
/// };
/// # use retryproof_memory::MemoryStore;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = IdempotencyEngine::new(MemoryStore::new());
/// let ctx = IdempotencyContext::builder("payments", "order-17").build()?;
/// match engine.try_acquire(&ctx).await? {
///     Acquisition::Granted(held) => {
///         // Do the work here. If it does not happen, call `held.release().await?` instead.
///         let receipt = Payload::new(CodecId::BYTES, 0, b"receipt 1");
///         assert!(matches!(held.complete(receipt).await, CompletionResult::Recorded));
///     }
///     Acquisition::Complete(stored) => drop(stored.open(ctx.fingerprint())?),
///     Acquisition::InFlight(busy) => println!("retry after {:?}", busy.retry_after()),
///     Acquisition::Mismatch => println!("the key is in use for another request"),
/// }
/// # Ok(())
/// # }
/// ```
pub struct HeldLease {
    pub(super) lease: Lease,
    pub(super) ttl: Duration,
    pub(super) fingerprint: Option<Fingerprint>,
    /// Seals the result, if the store has sealed results (SEAL-1).
    pub(super) seal: Option<Arc<CallSeal>>,
    pub(super) permit: Option<Permit>,
    /// Whether a method has begun to end the lease.
    pub(super) consumed: bool,
}

/// What an acquire requested and what the store granted.
pub(super) struct GrantTerms {
    pub(super) durations: Durations,
    pub(super) max_hold: Duration,
    pub(super) owner: OwnerId,
    pub(super) grant: Grant,
    /// When the call began.
    pub(super) began: Instant,
    /// When the granted acquire was sent. The lease is measured from this instant, so that it ends
    /// for the holder before it ends for the store (ACQ-7).
    pub(super) counted_from: Instant,
    pub(super) seal: Option<Arc<CallSeal>>,
}

impl HeldLease {
    /// Creates a held lease from a grant, and starts its heartbeat.
    pub(super) fn new(
        store: &Arc<StoreClient>,
        tasks: &Arc<Tasks>,
        queue: Arc<BeatQueue>,
        ctx: &IdempotencyContext,
        terms: GrantTerms,
        permit: Option<Permit>,
    ) -> Self {
        let GrantTerms { durations, max_hold, owner, grant, began, counted_from, seal } = terms;
        let hold_until = counted_from + max_hold;
        let beat = BeatState {
            until: counted_from + durations.lease,
            loss: None,
            stopped: false,
            retrying: false,
            in_flight: false,
            due: None,
        };
        let state = Arc::new(LeaseState {
            store: Arc::clone(store),
            tasks: Arc::clone(tasks),
            queue,
            identity: ctx.identity().clone(),
            owner,
            token: grant.token,
            shadow: grant.shadow,
            attempt: if grant.took_over { Attempt::Takeover } else { Attempt::First },
            duration: durations.lease,
            granted_at: counted_from,
            waited: counted_from.saturating_duration_since(began),
            hold_until,
            beat: Mutex::new(beat),
            changed: Notify::new(),
            hold_on_error: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            span: Mutex::new(span::current()),
        });
        if store.guards() {
            store.observers.tell(|o| o.acquired(state.event()));
        }
        if grant.took_over {
            tracing::info!(
                identity = %state.identity, token = %state.token,
                "a call took over a key, because the lease of the key's last holder had expired; \
                 the action runs again"
            );
            store.observers.tell(|o| o.taken_over(state.event()));
        }
        state.queue.add(&state, (counted_from + durations.lease / 2).min(hold_until));
        Self {
            lease: Lease(state),
            ttl: durations.ttl,
            fingerprint: match &seal {
                None => ctx.fingerprint().copied(),
                Some(seal) => seal.fingerprint,
            },
            seal,
            permit,
            consumed: false,
        }
    }

    /// Returns the lease's handle, which the caller can pass to the work.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Takes the `max-running` permit, so that the caller can keep it after the lease has ended.
    /// `shutdown` waits until the permit is dropped.
    #[must_use]
    pub fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
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
