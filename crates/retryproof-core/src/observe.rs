// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Observer`]: receives an event for each step of a call, of a lease and of the store (RUN-8).
//! [`Counters`] counts these events.

use std::sync::Arc;
use std::time::Duration;

use crate::error::ErrorKind;
use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::panics::catch_panic;
use crate::store::HolderNote;

mod counters;
mod events;
pub mod telemetry;

pub use counters::{Counters, Counts};
pub use events::{
    CallEvent, LeaseEvent, Loss, Phase, PurgeEvent, ShadowVerdict, StoreCallEvent, WaitEnd,
};

/// Receives the engine's events. Every method has an empty default implementation.
///
/// Each call that gets an answer has exactly one terminal event. The call's log line names that
/// event in the field `outcome` (RUN-7):
///
/// | terminal event | `outcome` | the call |
/// |---|---|---|
/// | [`completed`](Self::completed) | `executed` | ran its action, and the result is recorded |
/// | [`failed`](Self::failed) | [`Phase::outcome`] | had the lease, but recorded nothing |
/// | [`lost`](Self::lost) | `lost` | ran its action, but another owner had taken over |
/// | [`unguarded`](Self::unguarded) | `unguarded` | ran its action without a guard, because its scope is switched off |
/// | [`shadowed`](Self::shadowed) | `shadow` | ran its action whatever the guard would have done, because its scope is in shadow mode |
/// | [`replayed`](Self::replayed) | `replayed` | got the stored result |
/// | [`mismatch`](Self::mismatch) | `mismatch` | used a key that belongs to a different request |
/// | [`not_replayable`](Self::not_replayable) | `not_replayable` | found that the work is done, but its result was not kept |
/// | [`in_flight`](Self::in_flight) | `in_flight` | found a holder that did not finish within the wait |
/// | [`refused`](Self::refused) | `refused` | failed before anything ran |
///
/// The engine calls an observer inline, so each method should return quickly. The engine catches
/// and logs a panic in an observer, and the call continues. Without observers, the engine builds no
/// events.
///
/// # When to use
/// Implement an observer to feed your own metrics, or to raise an alert when leases are lost. If
/// you only need totals, use [`Counters`]. Logs need no observer: the engine emits `tracing`
/// events.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use retryproof_core::observe::{LeaseEvent, Observer};
/// use retryproof_core::IdempotencyEngine;
/// use retryproof_memory::MemoryStore;
///
/// #[derive(Default)]
/// struct Takeovers(AtomicU64);
///
/// impl Observer for Takeovers {
///     fn taken_over(&self, event: LeaseEvent<'_>) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         println!("took over {}", event.identity); // prints masked
///     }
/// }
///
/// let engine = IdempotencyEngine::builder(MemoryStore::new())
///     .observer(Takeovers::default())
///     .build()?;
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an observer",
    label = "expected an observer",
    note = "implement `Observer` for a type that is `Send`, `Sync` and `'static`; every method is \
            optional"
)]
pub trait Observer: Send + Sync + 'static {
    /// A lease was granted. If the grant took over an expired lease,
    /// [`taken_over`](Self::taken_over) is called next.
    fn acquired(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// The grant took over an expired lease, whose owner died or seems to have died (ACQ-12).
    fn taken_over(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// The lease was lost while the action ran (RUN-2). This event is not terminal: the completion
    /// may still be accepted.
    fn loss_noticed(&self, event: LeaseEvent<'_>, loss: Loss) {
        let _ = (event, loss);
    }

    /// A heartbeat failed, or timed out before the store answered. The engine retries the heartbeat
    /// while the lease can still be saved. If the lease is lost,
    /// [`loss_noticed`](Self::loss_noticed) follows.
    fn beat_failed(&self, event: LeaseEvent<'_>, kind: ErrorKind) {
        let _ = (event, kind);
    }

    /// Terminal: the work is recorded, as a value or as a tombstone.
    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        let _ = (event, recorded);
    }

    /// Terminal: the lease ended without a completion.
    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        let _ = (event, phase);
    }

    /// Terminal: the completion was refused because another owner had taken over, or because the
    /// record was gone (CMP-2).
    fn lost(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// Terminal: the call ended, successfully or not. It ran without a guard, because its scope is
    /// configured with `enabled = false` (CTX-5). The only other event of such a call is
    /// [`loss_noticed`](Self::loss_noticed), after `max-hold`.
    fn unguarded(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// Terminal: the call ended, successfully or not. It ran without a guard, because its scope is
    /// in shadow mode. `verdict` says what the guard would have done (CTX-6).
    fn shadowed(&self, event: LeaseEvent<'_>, verdict: ShadowVerdict) {
        let _ = (event, verdict);
    }

    /// A duplicate started to wait for the holder (ACQ-1).
    fn waiting(&self, identity: &Identity) {
        let _ = identity;
    }

    /// A duplicate stopped waiting after `waited`. Each [`waiting`](Self::waiting) event is
    /// followed by exactly one `waited` event, even if the call is dropped.
    fn waited(&self, identity: &Identity, waited: Duration, end: WaitEnd) {
        let _ = (identity, waited, end);
    }

    /// Terminal: a duplicate received the stored result. `holder` is the note of the execution that
    /// produced the result, if the store has the note (REC-2). The note's
    /// [`trace`](HolderNote::trace) identifies the trace of that execution.
    fn replayed(&self, event: CallEvent<'_>, holder: Option<&HolderNote>) {
        let _ = (event, holder);
    }

    /// Terminal: the key was used before with a different fingerprint (FP-1).
    fn mismatch(&self, event: CallEvent<'_>) {
        let _ = event;
    }

    /// Terminal: the work is done, but its result cannot be replayed (HTTP-13).
    fn not_replayable(&self, event: CallEvent<'_>) {
        let _ = event;
    }

    /// Terminal: another caller still held the key at the end of the wait; `remaining` is the time
    /// left on that caller's lease.
    fn in_flight(&self, event: CallEvent<'_>, remaining: Duration) {
        let _ = (event, remaining);
    }

    /// Terminal: the call failed before anything ran, for example because the store failed, a limit
    /// was reached, or the record cannot be read.
    fn refused(&self, event: CallEvent<'_>, kind: ErrorKind) {
        let _ = (event, kind);
    }

    /// A call to the store ended, with or without an error. Three kinds of calls are not reported:
    /// a wait for a holder inside the store, a call that was dropped before its answer, and a
    /// heartbeat that was under way when its lease ended.
    fn store_called(&self, event: StoreCallEvent) {
        let _ = event;
    }

    /// The store has failed several times in a row. Until the store answers again, one call at a
    /// time tries the store, and all other new calls fail immediately (STO-5).
    ///
    /// The circuit opens and closes in turn, but two threads can report an opening and a closing in
    /// the wrong order. To track the state, add one here and subtract one in
    /// [`circuit_closed`](Self::circuit_closed).
    fn circuit_opened(&self) {}

    /// The store has answered again.
    fn circuit_closed(&self) {}

    /// A purge round ended (STO-4).
    fn purged(&self, event: PurgeEvent) {
        let _ = event;
    }
}

/// An engine's observers. A panic in one observer does not affect the other observers or the
/// caller.
#[derive(Clone, Default)]
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
    /// Whether there are no observers, in which case the engine builds no events.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn tell(&self, event: impl Fn(&dyn Observer)) {
        for observer in &self.0 {
            if catch_panic(|| event(&**observer)).is_err() {
                tracing::error!("an observer panicked; it will be called again at the next event");
            }
        }
    }
}

impl<O: Observer> Observer for Arc<O> {
    fn acquired(&self, event: LeaseEvent<'_>) {
        (**self).acquired(event);
    }

    fn taken_over(&self, event: LeaseEvent<'_>) {
        (**self).taken_over(event);
    }

    fn loss_noticed(&self, event: LeaseEvent<'_>, loss: Loss) {
        (**self).loss_noticed(event, loss);
    }

    fn beat_failed(&self, event: LeaseEvent<'_>, kind: ErrorKind) {
        (**self).beat_failed(event, kind);
    }

    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        (**self).completed(event, recorded);
    }

    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        (**self).failed(event, phase);
    }

    fn lost(&self, event: LeaseEvent<'_>) {
        (**self).lost(event);
    }

    fn unguarded(&self, event: LeaseEvent<'_>) {
        (**self).unguarded(event);
    }

    fn shadowed(&self, event: LeaseEvent<'_>, verdict: ShadowVerdict) {
        (**self).shadowed(event, verdict);
    }

    fn waiting(&self, identity: &Identity) {
        (**self).waiting(identity);
    }

    fn waited(&self, identity: &Identity, waited: Duration, end: WaitEnd) {
        (**self).waited(identity, waited, end);
    }

    fn replayed(&self, event: CallEvent<'_>, holder: Option<&HolderNote>) {
        (**self).replayed(event, holder);
    }

    fn mismatch(&self, event: CallEvent<'_>) {
        (**self).mismatch(event);
    }

    fn not_replayable(&self, event: CallEvent<'_>) {
        (**self).not_replayable(event);
    }

    fn in_flight(&self, event: CallEvent<'_>, remaining: Duration) {
        (**self).in_flight(event, remaining);
    }

    fn refused(&self, event: CallEvent<'_>, kind: ErrorKind) {
        (**self).refused(event, kind);
    }

    fn store_called(&self, event: StoreCallEvent) {
        (**self).store_called(event);
    }

    fn circuit_opened(&self) {
        (**self).circuit_opened();
    }

    fn circuit_closed(&self) {
        (**self).circuit_closed();
    }

    fn purged(&self, event: PurgeEvent) {
        (**self).purged(event);
    }
}
