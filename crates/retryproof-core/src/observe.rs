// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Observer`]: receives an event for each step in a lease's life; [`Counters`] counts them.

use std::sync::Arc;
use std::time::Duration;

use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::owner::FencingToken;
use crate::panics::catch_panic;

mod counters;

pub use counters::{Counters, Counts};

/// Why an execution ended without a completion, as reported by the terminal event
/// [`Observer::failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The action returned an error; the lease was released (RUN-4).
    Action,
    /// The action panicked; the lease was released (RUN-4).
    Panic,
    /// The action failed and its effect is unknown, so the lease is held until it runs out. The next
    /// grant is a takeover (RUN-4, HTTP-7).
    Held,
    /// The lease was released without a failure: by
    /// [`HeldLease::release`](crate::HeldLease::release), by a response marked `Release`, or
    /// because the execution was dropped, either before the action began or under
    /// [`OnDrop::Release`](crate::OnDrop::Release).
    Released,
    /// The execution was dropped; the lease runs out (RUN-5).
    Dropped,
    /// The completion could not be recorded before the lease ended (CMP-3, CMP-4).
    Completion,
    /// A joined transaction was rolled back although the action did not fail, for example because
    /// the call was dropped. The lease was released (CMP-7).
    RolledBack,
}

/// Why a lease was lost (RUN-2, RUN-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// A heartbeat found another owner, or no record.
    TakenOver,
    /// No heartbeat succeeded before the lease ended.
    Expired,
    /// The action ran longer than `max-hold`.
    MaxHold,
}

/// One lease, as an observer sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LeaseEvent<'a> {
    /// The identity, which prints masked (ID-4).
    pub identity: &'a Identity,
    /// The lease's fencing token.
    pub token: FencingToken,
    /// How long the lease has been held.
    pub held_for: Duration,
}

/// Receives the engine's events. Every method has an empty default.
///
/// Each granted lease has exactly one terminal event: [`completed`](Self::completed),
/// [`failed`](Self::failed) or [`lost`](Self::lost). The engine calls an observer inline, so each
/// method should return quickly. A panic in an observer is caught and logged, and does not affect
/// the call.
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

    /// Terminal: the work is recorded, as a value or as a tombstone.
    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        let _ = (event, recorded);
    }

    /// Terminal: the lease ended without a completion.
    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        let _ = (event, phase);
    }

    /// Terminal: the completion was refused because another owner had taken over (CMP-2).
    fn lost(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// A duplicate started to wait for the holder (ACQ-1).
    fn waiting(&self, identity: &Identity) {
        let _ = identity;
    }

    /// A duplicate received the stored result.
    fn replayed(&self, identity: &Identity) {
        let _ = identity;
    }

    /// A duplicate ended with the outcome `InFlight`; `remaining` is the time left on the holder's
    /// lease.
    fn in_flight(&self, identity: &Identity, remaining: Duration) {
        let _ = (identity, remaining);
    }
}

/// An engine's observers. A panic in one observer does not affect the other observers or the
/// caller.
#[derive(Clone, Default)]
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
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

    fn completed(&self, event: LeaseEvent<'_>, recorded: Recorded) {
        (**self).completed(event, recorded);
    }

    fn failed(&self, event: LeaseEvent<'_>, phase: Phase) {
        (**self).failed(event, phase);
    }

    fn lost(&self, event: LeaseEvent<'_>) {
        (**self).lost(event);
    }

    fn waiting(&self, identity: &Identity) {
        (**self).waiting(identity);
    }

    fn replayed(&self, identity: &Identity) {
        (**self).replayed(identity);
    }

    fn in_flight(&self, identity: &Identity, remaining: Duration) {
        (**self).in_flight(identity, remaining);
    }
}
