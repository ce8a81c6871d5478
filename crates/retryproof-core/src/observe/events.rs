// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that an [`Observer`](super::Observer) receives with its events.

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
    /// The action returned an error; the engine releases the lease (RUN-4).
    Action,
    /// The action panicked; the engine releases the lease (RUN-4).
    Panic,
    /// The action or its joined transaction failed, and the action's effect is unknown, so the key
    /// stays held until the lease runs out. The next grant is a takeover (RUN-4, HTTP-7).
    Held,
    /// The lease is released without a failure: by
    /// [`HeldLease::release`](crate::HeldLease::release), by a response marked `Release`, or
    /// because the execution was dropped before its action began or under
    /// [`OnDrop::Release`](crate::OnDrop::Release).
    Released,
    /// The execution was dropped; the lease runs out (RUN-5).
    Dropped,
    /// The store did not confirm the completion (CMP-3, CMP-4).
    Completion,
    /// A joined transaction was rolled back although the action did not fail, for example because
    /// the call was dropped. The engine releases the lease (CMP-7).
    RolledBack,
}

impl Phase {
    /// Returns the value of `outcome` in the log of a call that ended in this phase (RUN-7):
    /// `executed` for [`Completion`](Self::Completion), because the action ran; `released` for
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

/// What the guard would have done with a call in shadow mode (CTX-6). In this mode, the work of
/// every call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShadowVerdict {
    /// The guard would have run the work.
    Executed,
    /// The guard would have replayed the stored result.
    Replayed,
    /// The guard would have refused the key, which was used with a different fingerprint.
    Mismatch,
    /// The guard would have refused the call, because the result of the finished work cannot be
    /// replayed.
    NotReplayable,
    /// The guard would have waited for the running call, and then replayed its result or answered
    /// that the key is in flight.
    InFlight,
    /// The guard would have refused the call because of an error, for example in the store.
    Refused(ErrorKind),
}

impl ShadowVerdict {
    /// Returns the value of `would_be` in the log and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Mismatch => "mismatch",
            Self::NotReplayable => "not_replayable",
            Self::InFlight => "in_flight",
            Self::Refused(_) => "refused",
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
    /// The identity, which is printed masked (ID-4).
    pub identity: &'a Identity,
    /// The lease's fencing token.
    pub token: FencingToken,
    /// Whether the grant was for a free key, or took over an expired lease (ACQ-12).
    pub attempt: Attempt,
    /// The time from the start of the call to its request for this lease. The time is zero unless
    /// the call waited for an earlier holder or had to repeat its acquire.
    pub waited: Duration,
    /// How long the lease has been held.
    pub held_for: Duration,
    /// The size of the recorded result with its envelope, in bytes. `None` unless the event is
    /// [`Observer::completed`](super::Observer::completed).
    pub result_bytes: Option<usize>,
}

/// A call that ended without a lease, as an observer sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CallEvent<'a> {
    /// The identity, which is printed masked (ID-4).
    pub identity: &'a Identity,
    /// How long the call took from its start to its answer, including any wait for a holder.
    pub took: Duration,
}

/// How a duplicate's wait for a holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitEnd {
    /// The work was recorded. The call then checks whether it can replay the result.
    Complete,
    /// This call was granted the lease, because the key became free or the holder's lease ended.
    Granted,
    /// The wait timed out.
    InFlight,
    /// The call failed, or a new holder has another fingerprint (FP-6).
    Refused,
    /// The call was dropped.
    Dropped,
}

impl WaitEnd {
    /// Returns the name of this end, for use as a metric label.
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
    /// The name of the operation: `acquire`, `peek`, `extend`, `complete`, `release`, `purge` or
    /// `claim_purge`.
    pub operation: &'static str,
    /// How long the call took.
    pub took: Duration,
    /// The kind of the error if the call failed. A call that timed out before the store answered
    /// has the kind [`Unavailable`](ErrorKind::Unavailable).
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
    /// Whether the round deleted all expired records in less than one `purge.interval`. Also true
    /// if the round was left to another process.
    pub kept_up: bool,
    /// Whether the round deleted nothing because another process had claimed it (STO-6).
    pub left_to_another: bool,
}
