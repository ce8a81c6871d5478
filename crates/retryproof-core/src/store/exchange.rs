// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types that a store's methods take and return.

use std::time::Duration;

use super::HolderNote;
use crate::blob::Blob;
use crate::fingerprint::{Comparable, Fingerprint, have_one_algorithm};
use crate::observe::ShadowVerdict;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::StoredResult;
use crate::seal::{CallSeal, FingerprintMask};

/// What a caller requests with an acquire.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The caller's id, created before the call (ACQ-9).
    pub owner: OwnerId,
    /// The length of the lease, measured from the store's current time.
    pub lease: Duration,
    /// How long the completed record is kept. A purge also keeps an unfinished record for at least
    /// this time after its acquire (STO-4).
    pub ttl: Duration,
    /// The fingerprint of the caller's request. A grant replaces the stored fingerprint (FP-2).
    pub fingerprint: Option<Fingerprint>,
    /// The note about the caller. A grant replaces the stored note. If this field is `None`, the
    /// grant removes the note (REC-2).
    pub holder: Option<HolderNote>,
    /// The function that decides whether two fingerprints can be compared; `None` if fingerprints
    /// are not compared while the holder runs (FP-6).
    pub(crate) comparable: Option<Comparable>,
    /// The mask that hides the fingerprint, if the store has sealed results (SEAL-6).
    mask: Option<FingerprintMask>,
}

impl AcquireRequest {
    /// Creates a request without a fingerprint and without a note.
    #[must_use]
    pub fn new(owner: OwnerId, lease: Duration, ttl: Duration) -> Self {
        Self { owner, lease, ttl, fingerprint: None, holder: None, comparable: None, mask: None }
    }

    /// Requests a comparison of fingerprints while the first call still runs, if both have the same
    /// algorithm (FP-6).
    #[must_use]
    pub fn comparing_in_flight(self) -> Self {
        self.comparable_by(Some(have_one_algorithm))
    }

    pub(crate) fn comparable_by(mut self, comparable: Option<Comparable>) -> Self {
        self.comparable = comparable;
        self
    }

    /// Whether fingerprints are compared while the first call still runs. If not, a store need not
    /// [compare](Self::differs_from) them or keep this fingerprint for other callers.
    #[must_use]
    pub fn compares_in_flight(&self) -> bool {
        self.comparable.is_some()
    }

    /// Whether this request certainly differs from the request of a live holder with the
    /// fingerprint `held`. If an acquire finds another holder, the store passes the returned value
    /// to [`LiveLease::with_mismatch`]. The value is `false` if this request [compares
    /// nothing](Self::compares_in_flight), if a fingerprint is missing, or if the two fingerprints
    /// cannot be compared (FP-6).
    #[must_use]
    pub fn differs_from(&self, held: Option<&Fingerprint>) -> bool {
        let (Some(comparable), Some(own), Some(held)) = (self.comparable, &self.fingerprint, held)
        else {
            return false;
        };
        match &self.mask {
            None => comparable(own, held) && own != held,
            Some(mask) => {
                let (own, held) = (mask.reveal(*own), mask.reveal(*held));
                comparable(&own, &held) && own != held
            }
        }
    }

    /// Hides the fingerprint, for a store with sealed results (SEAL-6).
    pub(crate) fn hidden_by(mut self, seal: &CallSeal) -> Self {
        self.fingerprint = seal.fingerprint;
        self.mask = Some(seal.mask.clone());
        self
    }

    /// Returns the caller's fingerprint as the caller computed it.
    pub(crate) fn revealed_fingerprint(&self) -> Option<Fingerprint> {
        match &self.mask {
            None => self.fingerprint,
            Some(mask) => self.fingerprint.map(|hidden| mask.reveal(hidden)),
        }
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
    /// The time left on the lease by the store's clock. It equals the requested length.
    pub remaining: Duration,
    /// Whether the grant took over another owner's expired lease (ACQ-12). A grant after a release,
    /// or for a COMPLETE record past its ttl, is not a takeover. If the same owner repeats its
    /// acquire because the first answer was lost, this field keeps the value of the first grant
    /// (ACQ-9).
    pub took_over: bool,
    /// What the guard would have done, if the scope is in shadow mode (CTX-6).
    pub(crate) shadow: Option<ShadowVerdict>,
}

impl Grant {
    /// Creates a grant for a store to return.
    #[must_use]
    pub fn new(token: FencingToken, remaining: Duration, took_over: bool) -> Self {
        Self { token, remaining, took_over, shadow: None }
    }

    pub(crate) fn in_shadow(self, verdict: ShadowVerdict) -> Self {
        Self { shadow: Some(verdict), ..self }
    }
}

/// The answer to an acquire.
#[derive(Debug, Clone)]
#[must_use]
pub enum Acquired {
    /// The caller has the lease.
    Granted(Grant),
    /// The work is done, and this is its result.
    Complete(StoredResult),
    /// Another owner holds the lease.
    Busy(LiveLease),
}

/// A lease that another owner holds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveLease {
    /// The time left on the lease by the store's clock. The time is zero if the lease is over but a
    /// lock in the database still prevents the takeover.
    pub remaining: Duration,
    /// The holder's token.
    pub token: FencingToken,
    /// The note about the holder, if the store has read one (REC-2).
    pub holder: Option<HolderNote>,
    /// Whether the caller's request certainly [differs](AcquireRequest::differs_from) from the
    /// holder's. Always `false` in an answer to a peek, because a peek has no request (FP-6).
    pub mismatch: bool,
}

impl LiveLease {
    /// Creates an answer without a note about the holder and without a mismatch.
    #[must_use]
    pub fn new(remaining: Duration, token: FencingToken) -> Self {
        Self { remaining, token, holder: None, mismatch: false }
    }

    /// Sets whether the caller's request differs from the holder's.
    #[must_use]
    pub fn with_mismatch(mut self, mismatch: bool) -> Self {
        self.mismatch = mismatch;
        self
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
    /// The work is done, and this is its result.
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

/// The answer to a write that only the record's owner may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum FencedWrite {
    /// The write took effect.
    Applied,
    /// The same owner has already made this write, or the record to release is already absent.
    AlreadyApplied,
    /// The record no longer belongs to the caller. Nothing changed.
    NotOwner,
}
