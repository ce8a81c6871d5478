// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store contract: what every backend promises, and the data that crosses it.
//!
//! A store keeps one record per [`Identity`]. The record is absent, IN_PROGRESS (owner, token,
//! lease end, fingerprint, ttl) or COMPLETE (owner, value, fingerprint, retention end); there is no
//! failed state (CMP-5). Every transition is **one atomic step, judged by the store's own clock in
//! the statement that acts** (ACQ-7), and fenced by owner, never by time (CMP-2): a late completion
//! by the owner still recorded is accepted, so an IN_PROGRESS record must outlive its lease
//! (STO-4).
//!
//! # Contract for implementors
//! - Compare scopes and keys byte for byte (ID-2).
//! - An expired record counts as absent for the caller, purged or not (CMP-6): a COMPLETE one past
//!   its ttl is replaced by a fresh grant, an IN_PROGRESS one past its lease is taken over.
//! - A replay, a look and a busy answer write nothing (ACQ-8).
//! - "Lost" and "busy" are answers, not errors. An `Err` means that the store could not answer
//!   ([`Unavailable`](crate::ErrorKind::Unavailable), the only class that is repeated) or holds
//!   what it cannot read.
//! - Each method is one round trip when uncontended (ACQ-8), and may be dropped at any await point;
//!   its docs say what that leaves behind.
//! - Judge yourself with the conformance kit of `retryproof-testkit` (STO-2).
//!
//! # Contract for wrappers
//! Forward all methods; none has a default, so that none can be skipped in silence.
#![doc = include_str!("store/toy.md")]

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use crate::blob::Blob;
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::StoredResult;

mod capability;
pub(crate) mod caught;
mod join;
mod known;
mod memory;
mod pulse;
mod shared;

pub use capability::{Inspect, Purge, RecordState, RecordSummary, StoreStats};
pub use join::{Dialect, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource};
pub use known::Known;
pub use memory::{MemoryStore, MemoryStoreBuilder};
pub use pulse::Pulse;
pub(crate) use shared::{DynJoin, StoreCall};
pub use shared::{DynStore, SharedStore, SharedStoreBuilder};

/// What an acquire asks for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The caller's id, made before the call (ACQ-9).
    pub owner: OwnerId,
    /// How long the lease runs from the store's now.
    pub lease: Duration,
    /// How long a completed record will be kept; here it tells purge when an unfinished one may go
    /// (STO-4).
    pub ttl: Duration,
    /// What the caller sent. A grant replaces the stored one (FP-2).
    pub fingerprint: Option<Fingerprint>,
}

impl AcquireRequest {
    /// A request without a fingerprint.
    #[must_use]
    pub fn new(owner: OwnerId, lease: Duration, ttl: Duration) -> Self {
        Self { owner, lease, ttl, fingerprint: None }
    }

    /// Adds the caller's fingerprint.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: Option<Fingerprint>) -> Self {
        self.fingerprint = fingerprint;
        self
    }
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Greater than every earlier token of this identity (ACQ-10).
    pub token: FencingToken,
    /// What is left of the lease by the store's clock: the requested length.
    pub remaining: Duration,
    /// Whether the lease was granted by taking over the expired one of another owner (ACQ-12). Not
    /// so after a release, or for a record past its ttl. An owner that asks again is told what its
    /// grant was: the first answer may have been lost (ACQ-9).
    pub took_over: bool,
}

impl Grant {
    /// A grant as a store made it.
    #[must_use]
    pub fn new(token: FencingToken, remaining: Duration, took_over: bool) -> Self {
        Self { token, remaining, took_over }
    }
}

/// The answer to an acquire.
#[derive(Debug, Clone)]
#[must_use]
pub enum Acquired {
    /// The lease is the caller's.
    Granted(Grant),
    /// The work is done; here is its result, unopened.
    Complete(StoredResult),
    /// Another owner holds the lease.
    Busy {
        /// What is left of its lease by the store's clock; zero when a takeover is held back by a
        /// lock.
        remaining: Duration,
        /// The holder's token.
        token: FencingToken,
    },
}

/// The answer to a look.
#[derive(Debug, Clone)]
#[must_use]
pub enum Peeked {
    /// No record, or one past its lease or ttl.
    Absent,
    /// A holder is at work.
    Busy {
        /// What is left of its lease by the store's clock.
        remaining: Duration,
        /// The holder's token.
        token: FencingToken,
    },
    /// The work is done.
    Complete(StoredResult),
}

/// What a completion writes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// The value's envelope ([`Payload::envelope`](crate::Payload::envelope)), stored as it is.
    pub value: Blob,
    /// How long the record is kept, from now by the store's clock (CMP-6).
    pub ttl: Duration,
    /// The fingerprint to keep with the value: the holder's.
    pub fingerprint: Option<Fingerprint>,
}

impl Completion {
    /// A completion.
    #[must_use]
    pub fn new(value: Blob, ttl: Duration, fingerprint: Option<Fingerprint>) -> Self {
        Self { value, ttl, fingerprint }
    }
}

/// The answer to a call that is fenced by owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum FencedWrite {
    /// It took effect now.
    Applied,
    /// The same owner did it before, or (release) there is nothing to release.
    AlreadyApplied,
    /// The record is not the caller's any more, and nothing was changed.
    NotOwner,
}

/// What a store is, for checks and messages.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StoreProfile {
    /// A short name: `"memory"`, `"sqlite"`.
    pub name: &'static str,
    /// The largest value that [`complete`](IdempotencyStore::complete) accepts, in bytes.
    pub max_value: usize,
    /// The longest lease or ttl that the store can keep.
    pub max_duration: Duration,
    /// Whether expired records go away without [`Purge`] (STO-4).
    pub reclaims: bool,
    /// Whether an acquire is always ready at its first poll and no other process shares the
    /// records: a store in the memory of this process. The engine then polls it in place instead of
    /// on the heap, and makes owner ids without the operating system (ACQ-9), which would repeat in
    /// the store of a forked process. A wrapper that waits for something says
    /// [`without_immediate`](Self::without_immediate); where it does not, its acquires are made twice by the same
    /// owner, which ACQ-9 makes harmless.
    pub immediate: bool,
}

impl StoreProfile {
    /// A profile without limits of its own that reclaims nothing by itself.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            max_value: usize::MAX,
            max_duration: Duration::from_secs(3_650 * 86_400),
            reclaims: false,
            immediate: false,
        }
    }

    /// States the largest value, in bytes.
    #[must_use]
    pub const fn with_max_value(mut self, bytes: usize) -> Self {
        self.max_value = bytes;
        self
    }

    /// States that expired records are reclaimed natively.
    #[must_use]
    pub const fn with_reclaim(mut self) -> Self {
        self.reclaims = true;
        self
    }

    /// States that an acquire never waits for anything, and that no other process shares the
    /// records.
    #[must_use]
    pub const fn with_immediate(mut self) -> Self {
        self.immediate = true;
        self
    }

    /// The profile of a wrapper that may wait before or after a call.
    #[must_use]
    pub const fn without_immediate(mut self) -> Self {
        self.immediate = false;
        self
    }
}

/// The pluggable storage contract (STO-1). The [module's page](self) says what holds for all
/// methods.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "a store of records is wanted here",
    note = "give a store by value, such as `MemoryStore`, or a `SharedStore` as \
            `retryproof::connect` makes it"
)]
pub trait IdempotencyStore: Debug + Send + Sync + 'static {
    /// Grants a lease, or says why not.
    ///
    /// # Behaviour
    /// Absent (or a COMPLETE record past its ttl): IN_PROGRESS for `req.owner` with a new token.
    /// IN_PROGRESS past its lease: the same, as a takeover (ACQ-2). IN_PROGRESS by `req.owner`
    /// itself: the lease renewed, the same token and the same `took_over` as when it was granted
    /// (ACQ-9). IN_PROGRESS otherwise: [`Acquired::Busy`]. COMPLETE: [`Acquired::Complete`]. It
    /// never waits.
    ///
    /// # Errors
    /// `Unavailable` when the outcome is unknown or the store is away; `Full` when a new key finds
    /// no room (STO-1); `Corrupt` when the record cannot be read (CMP-8).
    ///
    /// # Atomicity
    /// One step; of N callers at the instant of expiry one is granted. The token is drawn inside
    /// that step (ACQ-10). A drop leaves at most one lease of the requested length (ACQ-11).
    fn acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + Send;

    /// Reads where the record stands; grants and writes nothing (ACQ-8).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but never `Full`.
    fn peek(&self, id: &Identity) -> impl Future<Output = Result<Peeked>> + Send;

    /// Sleeps until the record may no longer be in progress under the token `seen`, or `at_most`
    /// has passed.
    ///
    /// # Behaviour
    /// Subscribes, *then* looks, and returns at once unless the holder with token `seen` is still
    /// in progress: no wake-up is lost between a look and the sleep (ACQ-4). Spurious returns are
    /// allowed, so a look and a bounded sleep of at most 50 ms are a correct implementation. It
    /// holds no connection while it sleeps (ACQ-5).
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    ///
    /// # Atomicity
    /// A drop leaves nothing behind.
    fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Makes the lease end `lease` from the store's now (RUN-1).
    ///
    /// # Behaviour
    /// IN_PROGRESS by `owner`, expired or not: `Done`. Anything else: `Lost`; it revives nothing
    /// (RUN-3).
    ///
    /// # Errors
    /// `Unavailable` when the outcome is unknown.
    ///
    /// # Atomicity
    /// One step; a drop leaves it done or not done.
    fn extend(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> impl Future<Output = Result<FencedWrite>> + Send;

    /// Stores the result (CMP-1).
    ///
    /// # Behaviour
    /// IN_PROGRESS by `owner`, expired or not: COMPLETE with `done.value`, kept for `done.ttl`;
    /// `Done`. COMPLETE by `owner`: `AlreadyDone`, nothing changes (CMP-3). Absent or another
    /// owner: `Lost`, nothing changes (CMP-2).
    ///
    /// # Errors
    /// `Unavailable` when the outcome is unknown; `TooLarge` when the value exceeds the store's
    /// limit (CMP-9).
    ///
    /// # Atomicity
    /// One step; a drop leaves it done or not done, and it may be repeated.
    fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> impl Future<Output = Result<FencedWrite>> + Send;

    /// Deletes the record of an action that failed (RUN-4).
    ///
    /// # Behaviour
    /// IN_PROGRESS by `owner`: the record is gone; `Done`. Absent: `AlreadyDone`. Another owner, or
    /// COMPLETE: `Lost`, nothing changes.
    ///
    /// # Errors
    /// `Unavailable` when the outcome is unknown.
    ///
    /// # Atomicity
    /// One step; a drop leaves it done or not done, and it may be repeated.
    fn release(
        &self,
        id: &Identity,
        owner: OwnerId,
    ) -> impl Future<Output = Result<FencedWrite>> + Send;

    /// States the store's name and limits; costs nothing.
    fn profile(&self) -> StoreProfile;
}
