// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Observer`]: hears what happens to leases; [`Counters`] counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::owner::FencingToken;
use crate::panics::catch_panic;

/// Where an execution failed: part of the terminal event [`Observer::failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The action returned an error; the lease was released (RUN-4).
    Action,
    /// The action panicked; the lease was released (RUN-4).
    Panic,
    /// The effect of the work is not known: an error, a panic or a response said so; the lease runs
    /// out, and the next grant is a takeover (RUN-4, HTTP-7).
    Held,
    /// The lease was released on purpose: by [`HeldLease::release`](crate::HeldLease::release), by a response
    /// marked for it, or by the drop of an execution that had not begun or was told to
    /// [release](crate::OnDrop::Release).
    Released,
    /// The execution was dropped; the lease runs out (RUN-5).
    Dropped,
    /// The completion could not be recorded before the lease was over (CMP-3, CMP-4).
    Completion,
    /// A joined transaction was rolled back for another reason than the action's own, such as a
    /// drop; the lease was released (CMP-7).
    RolledBack,
}

/// Why a lease is lost (RUN-2, RUN-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// A beat found another owner, or no record.
    TakenOver,
    /// No beat got through before the lease was over.
    Expired,
    /// The action ran for longer than `max-hold`.
    MaxHold,
}

/// One lease, as an observer sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LeaseEvent<'a> {
    /// The identity; it prints masked (ID-4).
    pub identity: &'a Identity,
    /// The lease's fencing token.
    pub token: FencingToken,
    /// How long the lease has been held.
    pub held_for: Duration,
}

/// Hears what happens. Every method does nothing unless it is written: this is the one trait where
/// defaults are right.
///
/// Each lease that was granted has exactly one terminal event: [`completed`](Self::completed),
/// [`failed`](Self::failed) or [`lost`](Self::lost). Calls are made in line, so return quickly; a
/// panic is caught and logged, and harms nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an observer",
    label = "an observer is wanted here",
    note = "implement `Observer`; it is `Send`, `Sync` and `'static`, and every method may be \
            left out"
)]
pub trait Observer: Send + Sync + 'static {
    /// A lease was granted; with `took_over`, [`taken_over`](Self::taken_over) follows.
    fn acquired(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// The grant took over the expired lease of an owner that died, or seems to have (ACQ-12).
    fn taken_over(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// While the action ran, its lease was found to be lost (RUN-2). Not terminal: its completion
    /// may still count.
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

    /// Terminal: the completion was refused, because another owner had taken over (CMP-2).
    fn lost(&self, event: LeaseEvent<'_>) {
        let _ = event;
    }

    /// A duplicate begins to wait for the holder (ACQ-1).
    fn waiting(&self, identity: &Identity) {
        let _ = identity;
    }

    /// A duplicate was handed the stored result.
    fn replayed(&self, identity: &Identity) {
        let _ = identity;
    }

    /// A duplicate was turned away; the holder's lease had this much left.
    fn in_flight(&self, identity: &Identity, remaining: Duration) {
        let _ = (identity, remaining);
    }
}

/// The observers of an engine; tells each, and survives each.
#[derive(Clone, Default)]
pub(crate) struct Observers(pub(crate) Vec<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn tell(&self, event: impl Fn(&dyn Observer)) {
        for observer in &self.0 {
            if catch_panic(|| event(&**observer)).is_err() {
                tracing::error!("an observer panicked; it is called again at the next event");
            }
        }
    }
}

/// Counts every event: a metric without a metrics library. Share it as an `Arc` and read it at
/// will.
#[derive(Debug, Default)]
pub struct Counters {
    acquired: AtomicU64,
    taken_over: AtomicU64,
    loss_noticed: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
    waiting: AtomicU64,
    duplicates: AtomicU64,
    in_flight: AtomicU64,
}

/// What [`Counters`] read at one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each field counts the observer method of its name")]
pub struct Counts {
    pub acquired: u64,
    pub taken_over: u64,
    pub loss_noticed: u64,
    pub completed: u64,
    pub failed: u64,
    pub lost: u64,
    pub waiting: u64,
    pub duplicates: u64,
    pub in_flight: u64,
}

impl Counters {
    /// Counters at zero, to be shared.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Reads all of them.
    #[must_use]
    pub fn read(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            acquired: get(&self.acquired),
            taken_over: get(&self.taken_over),
            loss_noticed: get(&self.loss_noticed),
            completed: get(&self.completed),
            failed: get(&self.failed),
            lost: get(&self.lost),
            waiting: get(&self.waiting),
            duplicates: get(&self.duplicates),
            in_flight: get(&self.in_flight),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Observer for Counters {
    fn acquired(&self, _: LeaseEvent<'_>) {
        count(&self.acquired);
    }

    fn taken_over(&self, _: LeaseEvent<'_>) {
        count(&self.taken_over);
    }

    fn loss_noticed(&self, _: LeaseEvent<'_>, _: Loss) {
        count(&self.loss_noticed);
    }

    fn completed(&self, _: LeaseEvent<'_>, _: Recorded) {
        count(&self.completed);
    }

    fn failed(&self, _: LeaseEvent<'_>, _: Phase) {
        count(&self.failed);
    }

    fn lost(&self, _: LeaseEvent<'_>) {
        count(&self.lost);
    }

    fn waiting(&self, _: &Identity) {
        count(&self.waiting);
    }

    fn replayed(&self, _: &Identity) {
        count(&self.duplicates);
    }

    fn in_flight(&self, _: &Identity, _: Duration) {
        count(&self.in_flight);
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
