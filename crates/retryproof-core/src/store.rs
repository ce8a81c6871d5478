// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store contract: what every store promises, and the types that its methods exchange.
//!
//! A store keeps one record per [`Identity`]. The record is absent, IN_PROGRESS (with owner, token,
//! lease end, fingerprint and ttl) or COMPLETE (with owner, token, value, fingerprint and ttl end).
//! There is no failed state (CMP-5). Every transition is **one atomic step. The statement that
//! changes the record also compares times, using the store's own clock** (ACQ-7). The holder's
//! writes are fenced by owner, never by time (CMP-2). A store accepts a late completion by the
//! recorded owner, so an IN_PROGRESS record must outlive its lease (STO-4).
//!
//! # When to write a store
//! Write a store if your records have to live in a database that has no store yet. To observe,
//! delay or fail the calls to an existing store, wrap that store instead.
//!
//! # Contract for implementors
//! - Compare scopes and keys byte for byte (ID-2).
//! - Treat an expired record as absent, even before a purge deletes it (CMP-6). A fresh grant
//!   replaces a COMPLETE record past its ttl, and takes over an IN_PROGRESS record past its lease.
//! - Write nothing for a replay, a peek or a busy answer (ACQ-8).
//! - Return [`NotOwner`](FencedWrite::NotOwner) and [`Busy`](Acquired::Busy) as answers, not as
//!   errors. An `Err` means that the store could not answer, cannot read the record, or has reached
//!   a limit. The engine retries [`Unavailable`](crate::ErrorKind::Unavailable), and repeats a
//!   heartbeat, a completion or a release after [`Full`](crate::ErrorKind::Full), too.
//! - A store may offer hashed identities (ID-5). Its [profile](StoreProfile::identity_secret) then
//!   has the secret, and [`SharedStore`] replaces the key in each call by a digest. The store
//!   records the secret's [mark](crate::IdentitySecret::mark) when it is set up, and calls
//!   [`IdentitySecret::check`](crate::IdentitySecret::check) when it is opened.
//! - Use one round trip for each uncontended call (ACQ-8). The engine may drop a call at any await
//!   point; each method documents what a dropped call can leave behind.
//! - Test the store with the conformance kit of `retryproof-testkit` (STO-2).
//!
//! # Contract for wrappers
//! Forward all methods. No method has a default, so the compiler reports a method that a wrapper
//! forgets.
#![doc = include_str!("store/toy.md")]

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use crate::error::Result;
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};

mod audit;
mod capability;
mod exchange;
mod finding;
mod force;
mod hashed;
mod holder;
mod join;
mod profile;
mod scan;
mod shared;

pub use audit::{Audit, AuditEntry, AuditPage};
pub use capability::{Inspect, Purge, RecordState, RecordSummary, StoreStats};
pub use exchange::{AcquireRequest, Acquired, Completion, FencedWrite, Grant, LiveLease, Peeked};
pub use finding::{Severity, StoreFinding};
pub use force::{Force, ForceAction, ForceRequest, Forced};
pub use holder::{HolderNote, TraceContext};
pub use join::{Dialect, Join, JoinStatement, OwnedTx, Param, TxPort, TxSource};
pub use profile::{ExpiryClock, StoreProfile};
pub use scan::{RecordFilter, ScanCursor, ScanPage, ScannedRecord, ScopeCounts, ScopeStats};
pub(crate) use shared::{DynJoin, StoreCall};
pub use shared::{DynStore, SharedStore, SharedStoreBuilder};

/// The contract of every store (STO-1). The [module's page](self) has the rules for all methods,
/// and a complete store as an example.
///
/// Applications do not call these methods: they pass a store to
/// [`IdempotencyEngine::new`](crate::IdempotencyEngine::new). Tests of a store call them directly:
///
/// ```
/// use std::time::Duration;
/// use retryproof_core::store::{AcquireRequest, Acquired, Completion, FencedWrite};
/// use retryproof_core::{CodecId, IdempotencyStore, Identity, OwnerId, Payload};
/// use retryproof_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (lease, ttl) = (Duration::from_secs(30), Duration::from_secs(3_600));
/// let (store, id) = (MemoryStore::new(), Identity::of("payments", "order-17")?);
///
/// let first = AcquireRequest::new(OwnerId::new(), lease, ttl);
/// assert!(matches!(store.acquire(&id, &first).await?, Acquired::Granted(_)));
///
/// let second = AcquireRequest::new(OwnerId::new(), lease, ttl);
/// assert!(matches!(store.acquire(&id, &second).await?, Acquired::Busy(_)));
///
/// let value = Payload::new(CodecId::BYTES, 0, b"receipt 1").into_envelope();
/// let done = Completion::new(value, ttl, None);
/// assert_eq!(store.complete(&id, second.owner, &done).await?, FencedWrite::NotOwner);
/// assert_eq!(store.complete(&id, first.owner, &done).await?, FencedWrite::Applied);
/// assert!(matches!(store.acquire(&id, &second).await?, Acquired::Complete(_)));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "expected a record store",
    note = "pass a store by value, such as a `MemoryStore`, or the `SharedStore` that \
            `retryproof::connect` returns"
)]
pub trait IdempotencyStore: Debug + Send + Sync + 'static {
    /// Grants a lease if the key is free or its lease is over. An acquire never waits for a holder.
    ///
    /// # Behaviour
    /// | the record is | the answer is |
    /// |---|---|
    /// | absent, or COMPLETE past its ttl | [`Granted`](Acquired::Granted): the record is now IN_PROGRESS for `req.owner` with a new token |
    /// | IN_PROGRESS past its lease | `Granted` with `took_over` and a new token (ACQ-2) |
    /// | IN_PROGRESS for `req.owner` itself | `Granted`: the lease is renewed, with the token and `took_over` of the first grant (ACQ-9) |
    /// | IN_PROGRESS otherwise | [`Busy`](Acquired::Busy) |
    /// | COMPLETE | [`Complete`](Acquired::Complete) |
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached or the outcome is unknown; `Full` if there is
    /// no space for a new key (STO-1); `Corrupt` if the record cannot be read (CMP-8).
    ///
    /// # Atomicity
    /// The grant is one step. If N callers acquire at the instant of expiry, exactly one gets the
    /// lease. The token is assigned within that step (ACQ-10). A dropped call leaves at most one
    /// lease behind, of the requested length (ACQ-11).
    fn acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + Send;

    /// Reads the state of the record without granting or writing anything (ACQ-8).
    ///
    /// # Errors
    /// Same as [`acquire`](Self::acquire), except `Full`.
    fn peek(&self, id: &Identity) -> impl Future<Output = Result<Peeked>> + Send;

    /// Sleeps until the record is no longer in progress under the token `seen`, or until `limit`
    /// has passed.
    ///
    /// # Behaviour
    /// Subscribes first, *then* checks the record, so that a change between the check and the sleep
    /// still wakes the call (ACQ-4). Returns immediately unless the record is still in progress
    /// under the token `seen`. The call is allowed to return early without a change, so a check
    /// followed by a sleep of at most 50 ms is a correct implementation. The call holds no
    /// connection while it sleeps (ACQ-5).
    ///
    /// # Errors
    /// Same as [`peek`](Self::peek).
    ///
    /// # Atomicity
    /// A dropped call leaves nothing behind.
    fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        limit: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Sets the end of the lease to the store's current time plus `lease` (RUN-1).
    ///
    /// # Behaviour
    /// Returns `Applied` if the record is IN_PROGRESS for `owner`, even after the lease has ended.
    /// Otherwise returns `NotOwner`, and nothing changes (RUN-3).
    ///
    /// # Errors
    /// `Unavailable` if the outcome is unknown.
    ///
    /// # Atomicity
    /// The change is one step: a dropped call took effect either completely or not at all.
    fn extend(
        &self,
        id: &Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> impl Future<Output = Result<FencedWrite>> + Send;

    /// Stores the result (CMP-1).
    ///
    /// # Behaviour
    /// If the record is IN_PROGRESS for `owner`, even after the lease has ended, it becomes
    /// COMPLETE with `done.value` and is kept for `done.ttl`. The answer is then `Applied`. If
    /// `owner` has already completed the record, the answer is `AlreadyApplied`, and nothing
    /// changes (CMP-3). If the record is absent or belongs to another owner, the answer is
    /// `NotOwner`, and nothing changes (CMP-2).
    ///
    /// # Errors
    /// `Unavailable` if the outcome is unknown; `Full` if there is no space at the moment, and
    /// nothing has changed; `TooLarge` if the value exceeds the store's limit (CMP-9).
    ///
    /// # Atomicity
    /// The change is one step: a dropped call took effect either completely or not at all, and
    /// can be repeated.
    fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> impl Future<Output = Result<FencedWrite>> + Send;

    /// Frees the key of a failed action: the record becomes absent (RUN-4).
    ///
    /// # Behaviour
    /// If the record is IN_PROGRESS for `owner`, it becomes absent, and the answer is `Applied`. If
    /// the record is absent, the answer is `AlreadyApplied`. If the record is COMPLETE or belongs
    /// to another owner, the answer is `NotOwner`, and nothing changes.
    ///
    /// # Errors
    /// `Unavailable` if the outcome is unknown.
    ///
    /// # Atomicity
    /// The change is one step: a dropped call took effect either completely or not at all, and
    /// can be repeated.
    fn release(
        &self,
        id: &Identity,
        owner: OwnerId,
    ) -> impl Future<Output = Result<FencedWrite>> + Send;

    /// Returns the store's name, limits and abilities, without any I/O.
    fn profile(&self) -> StoreProfile;
}
