// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an [`Observer`](super::Observer) receives with its events.

use std::time::Duration;

use crate::attempt::Attempt;
use crate::error::ErrorKind;
use crate::identity::Identity;
use crate::owner::FencingToken;

/// Why an execution ended without a completion, as reported by the terminal event
/// [`Observer::failed`](super::Observer::failed).
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

impl Phase {
    /// The `outcome` in the log of a call that ended in this phase (RUN-7): `executed` for
    /// [`Completion`](Self::Completion), because the action ran; `released` for
    /// [`Released`](Self::Released); otherwise `failed`.
    #[must_use]
    pub const fn outcome(self) -> &'static str {
        match self {
            Self::Completion => "executed",
            Self::Released => "released",
            _ => "failed",
        }
    }
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
    /// Whether the grant was the first since the key was free, or a takeover (ACQ-12).
    pub attempt: Attempt,
    /// The time from the start of the call to its request for this lease: zero unless the call
    /// waited for an earlier holder, or its first acquire was not answered.
    pub waited: Duration,
    /// How long the lease has been held.
    pub held_for: Duration,
}

/// A call that ended without a lease, as an observer sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CallEvent<'a> {
    /// The identity, which prints masked (ID-4).
    pub identity: &'a Identity,
    /// How long the call took from its start to its answer, including any wait for a holder.
    pub took: Duration,
}

/// How a duplicate's wait for a holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitEnd {
    /// The work was recorded. Whether its result can be replayed to this call is decided next.
    Complete,
    /// The key became free, or its lease ended, and this call now has the lease.
    Granted,
    /// The wait timed out.
    InFlight,
    /// The call failed.
    Refused,
    /// The call was dropped.
    Dropped,
}

impl WaitEnd {
    /// The name of this end, for a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Granted => "granted",
            Self::InFlight => "in_flight",
            Self::Refused => "refused",
            Self::Dropped => "dropped",
        }
    }
}

/// A call to the store, as an observer sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StoreCallEvent {
    /// The store's [name](crate::store::StoreProfile::name), such as `postgres`.
    pub store: &'static str,
    /// `acquire`, `peek`, `extend`, `complete`, `release` or `purge`.
    pub operation: &'static str,
    /// How long the call took.
    pub took: Duration,
    /// The kind of the call's error, if it failed; [`Unavailable`](ErrorKind::Unavailable) if the
    /// call was cut off unanswered.
    pub error: Option<ErrorKind>,
}

/// A purge round, as an observer sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PurgeEvent {
    /// How many records the round deleted.
    pub deleted: usize,
    /// How long the round took.
    pub took: Duration,
    /// Whether the round deleted all expired records in less than one `purge.interval`.
    pub kept_up: bool,
}
