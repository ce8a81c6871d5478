// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the methods of a store take and return.

use std::time::Duration;

use super::HolderNote;
use crate::blob::Blob;
use crate::fingerprint::Fingerprint;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::StoredResult;

/// What a caller requests with an acquire.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The caller's id, created before the call (ACQ-9).
    pub owner: OwnerId,
    /// The length of the lease, measured from the store's current time.
    pub lease: Duration,
    /// How long the completed record is kept. A purge also spares the unfinished record for this
    /// long after its acquire (STO-4).
    pub ttl: Duration,
    /// The fingerprint of what the caller sent. A grant replaces the stored fingerprint (FP-2).
    pub fingerprint: Option<Fingerprint>,
    /// The note about the caller. A grant replaces the stored note, or removes it if this field is
    /// `None` (REC-2).
    pub holder: Option<HolderNote>,
}

impl AcquireRequest {
    /// Creates a request without a fingerprint and without a note.
    #[must_use]
    pub fn new(owner: OwnerId, lease: Duration, ttl: Duration) -> Self {
        Self { owner, lease, ttl, fingerprint: None, holder: None }
    }

    /// Adds the note about the caller.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<HolderNote>) -> Self {
        self.holder = holder;
        self
    }

    /// Adds the caller's fingerprint.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: Option<Fingerprint>) -> Self {
        self.fingerprint = fingerprint;
        self
    }
}

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The token, greater than every earlier token of this identity (ACQ-10).
    pub token: FencingToken,
    /// The length of the lease by the store's clock, as requested.
    pub remaining: Duration,
    /// Whether the grant took over another owner's expired lease (ACQ-12). A grant after a release,
    /// or for a record past its ttl, is not a takeover. If the same owner repeats its acquire
    /// because the first answer was lost, this field keeps the value of the first grant (ACQ-9).
    pub took_over: bool,
}

impl Grant {
    /// Creates a grant for a store to return.
    #[must_use]
    pub fn new(token: FencingToken, remaining: Duration, took_over: bool) -> Self {
        Self { token, remaining, took_over }
    }
}

/// The answer to an acquire.
#[derive(Debug, Clone)]
#[must_use]
pub enum Acquired {
    /// The caller has the lease.
    Granted(Grant),
    /// The work is done, with this result.
    Complete(StoredResult),
    /// Another owner holds the lease.
    Busy(LiveLease),
}

/// A lease that another owner holds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveLease {
    /// The time left on the lease by the store's clock. In the answer to an acquire, zero means
    /// that the lease is over, but a lock in the database prevents the takeover for now.
    pub remaining: Duration,
    /// The holder's token.
    pub token: FencingToken,
    /// The note about the holder, if the store has read one (REC-2).
    pub holder: Option<HolderNote>,
}

impl LiveLease {
    /// Creates an answer without a note about the holder.
    #[must_use]
    pub fn new(remaining: Duration, token: FencingToken) -> Self {
        Self { remaining, token, holder: None }
    }

    /// Adds the note about the holder.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<HolderNote>) -> Self {
        self.holder = holder;
        self
    }
}

/// The answer to a peek.
#[derive(Debug, Clone)]
#[must_use]
pub enum Peeked {
    /// There is no record, or the record is past its lease or ttl.
    Absent,
    /// A holder is working.
    Busy(LiveLease),
    /// The work is done, with this result.
    Complete(StoredResult),
}

/// The content of a completion.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// The value's envelope ([`Payload::envelope`](crate::Payload::envelope)), stored unchanged.
    pub value: Blob,
    /// How long the record is kept, measured from the store's current time (CMP-6).
    pub ttl: Duration,
    /// The holder's fingerprint, kept with the value.
    pub fingerprint: Option<Fingerprint>,
}

impl Completion {
    /// Creates a completion with this content.
    #[must_use]
    pub fn new(value: Blob, ttl: Duration, fingerprint: Option<Fingerprint>) -> Self {
        Self { value, ttl, fingerprint }
    }
}

/// The answer to a write that is fenced by owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum FencedWrite {
    /// The write took effect.
    Applied,
    /// The same owner has already made this write, or there was nothing to release.
    AlreadyApplied,
    /// The record no longer belongs to the caller. Nothing changed.
    NotOwner,
}
