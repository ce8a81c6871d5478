// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DynStore`], the contract with boxed futures, and [`SharedStore`], an engine's store with its
//! capabilities.
//!
//! This file is over 400 lines long because it contains each call of the contract twice: boxed and
//! forwarded.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::audit::DynAudit;
use super::hashed::Hashed;
use super::{
    AcquireRequest, Acquired, Audit, Completion, Dialect, FencedWrite, Force, ForceAction,
    ForceRequest, Forced, IdempotencyStore, Inspect, Join, JoinStatement, Peeked, Purge,
    RecordFilter, RecordSummary, ScanCursor, ScanPage, ScopeStats, StoreProfile, StoreStats,
};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{Identity, IdentitySecret};
use crate::owner::{FencingToken, OwnerId};
use crate::panics::{caught, caught_now};
use crate::payload::StoredResult;
use crate::seal::{Sealer, Sealing};

/// A call that owns its arguments, so that it can outlive its caller (ACQ-11).
pub(crate) type StoreCall<T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'static>>;

/// The contract with boxed futures, for use as a `dyn` type. Every [`IdempotencyStore`] implements
/// this trait. The prefix `dyn_` distinguishes the methods of the two traits. Each call owns its
/// arguments, so that the call can outlive its caller (ACQ-11). If the store panics during a call,
/// the call fails with `Unavailable` (STO-5).
pub trait DynStore: fmt::Debug + Send + Sync + 'static {
    /// Same as [`IdempotencyStore::acquire`].
    fn dyn_acquire(self: Arc<Self>, id: Identity, req: AcquireRequest) -> StoreCall<Acquired>;
    /// Polls [`IdempotencyStore::acquire`] once, in place, for a store that is
    /// [immediate](StoreProfile::immediate). Returns `None` if the answer was not ready.
    fn dyn_acquire_in_place(&self, id: &Identity, req: &AcquireRequest)
    -> Option<Result<Acquired>>;
    /// Same as [`IdempotencyStore::peek`].
    fn dyn_peek(self: Arc<Self>, id: Identity) -> StoreCall<Peeked>;
    /// Same as [`IdempotencyStore::wait_for_change`].
    fn dyn_wait_for_change(
        self: Arc<Self>,
        id: Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> StoreCall<()>;
    /// Same as [`IdempotencyStore::extend`].
    fn dyn_extend(
        self: Arc<Self>,
        id: Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> StoreCall<FencedWrite>;
    /// Same as [`IdempotencyStore::complete`].
    fn dyn_complete(
        self: Arc<Self>,
        id: Identity,
        owner: OwnerId,
        done: Completion,
    ) -> StoreCall<FencedWrite>;
    /// Polls [`IdempotencyStore::complete`] once, in place, for a store that is
    /// [immediate](StoreProfile::immediate). Returns `None` if the answer was not ready.
    fn dyn_complete_in_place(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Option<Result<FencedWrite>>;
    /// Same as [`IdempotencyStore::release`].
    fn dyn_release(self: Arc<Self>, id: Identity, owner: OwnerId) -> StoreCall<FencedWrite>;
    /// Same as [`IdempotencyStore::profile`].
    fn dyn_profile(&self) -> StoreProfile;
}

impl<S: IdempotencyStore> DynStore for S {
    fn dyn_acquire(self: Arc<Self>, id: Identity, req: AcquireRequest) -> StoreCall<Acquired> {
        Box::pin(async move { caught(pin!(async { self.acquire(&id, &req).await })).await })
    }

    fn dyn_acquire_in_place(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> Option<Result<Acquired>> {
        polled_once(|cx| pin!(self.acquire(id, req)).poll(cx))
    }

    fn dyn_peek(self: Arc<Self>, id: Identity) -> StoreCall<Peeked> {
        Box::pin(async move { caught(pin!(async { self.peek(&id).await })).await })
    }

    fn dyn_wait_for_change(
        self: Arc<Self>,
        id: Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> StoreCall<()> {
        Box::pin(async move {
            caught(pin!(async { self.wait_for_change(&id, seen, at_most).await })).await
        })
    }

    fn dyn_extend(
        self: Arc<Self>,
        id: Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> StoreCall<FencedWrite> {
        Box::pin(async move { caught(pin!(async { self.extend(&id, owner, lease).await })).await })
    }

    fn dyn_complete(
        self: Arc<Self>,
        id: Identity,
        owner: OwnerId,
        done: Completion,
    ) -> StoreCall<FencedWrite> {
        Box::pin(
            async move { caught(pin!(async { self.complete(&id, owner, &done).await })).await },
        )
    }

    fn dyn_complete_in_place(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Option<Result<FencedWrite>> {
        polled_once(|cx| pin!(self.complete(id, owner, done)).poll(cx))
    }

    fn dyn_release(self: Arc<Self>, id: Identity, owner: OwnerId) -> StoreCall<FencedWrite> {
        Box::pin(async move { caught(pin!(async { self.release(&id, owner).await })).await })
    }

    fn dyn_profile(&self) -> StoreProfile {
        self.profile()
    }
}

fn polled_once<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<Result<T>>) -> Option<Result<T>> {
    match caught_now(|| poll(&mut Context::from_waker(Waker::noop()))) {
        Ok(Poll::Ready(answer)) => Some(answer),
        Ok(Poll::Pending) => None,
        Err(panicked) => Some(Err(panicked)),
    }
}

/// The object-safe form of [`Purge`].
trait DynPurge: Send + Sync {
    fn dyn_purge(self: Arc<Self>, limit: usize) -> StoreCall<usize>;
    fn dyn_claim_purge(self: Arc<Self>, at_most: Duration) -> StoreCall<bool>;
}

impl<S: Purge> DynPurge for S {
    fn dyn_purge(self: Arc<Self>, limit: usize) -> StoreCall<usize> {
        Box::pin(async move { caught(pin!(async { self.purge(limit).await })).await })
    }

    fn dyn_claim_purge(self: Arc<Self>, at_most: Duration) -> StoreCall<bool> {
        Box::pin(async move { caught(pin!(async { self.claim_purge(at_most).await })).await })
    }
}

/// The object-safe form of [`Inspect`].
pub(super) trait DynInspect: Send + Sync {
    fn dyn_get(self: Arc<Self>, id: Identity) -> StoreCall<Option<RecordSummary>>;
    fn dyn_stats(self: Arc<Self>) -> StoreCall<StoreStats>;
    fn dyn_scan(self: Arc<Self>, after: Option<ScanCursor>, limit: usize) -> StoreCall<ScanPage>;
}

impl<S: Inspect> DynInspect for S {
    fn dyn_get(self: Arc<Self>, id: Identity) -> StoreCall<Option<RecordSummary>> {
        Box::pin(async move { caught(pin!(async { self.get(&id).await })).await })
    }

    fn dyn_stats(self: Arc<Self>) -> StoreCall<StoreStats> {
        Box::pin(async move { caught(pin!(async { self.stats().await })).await })
    }

    fn dyn_scan(self: Arc<Self>, after: Option<ScanCursor>, limit: usize) -> StoreCall<ScanPage> {
        Box::pin(
            async move { caught(pin!(async { self.scan(after.as_ref(), limit).await })).await },
        )
    }
}

/// The object-safe form of [`Force`].
pub(super) trait DynForce: Send + Sync {
    fn dyn_force(self: Arc<Self>, id: Identity, req: ForceRequest) -> StoreCall<Forced>;
}

impl<S: Force> DynForce for S {
    fn dyn_force(self: Arc<Self>, id: Identity, req: ForceRequest) -> StoreCall<Forced> {
        Box::pin(async move { caught(pin!(async { self.force(&id, &req).await })).await })
    }
}

/// The object-safe form of [`Join`].
pub(crate) trait DynJoin: Send + Sync {
    fn dyn_dialect(&self) -> (TypeId, &'static str);
    fn dyn_completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a>;
    fn dyn_committed(&self, id: &Identity);
}

impl<S: Join> DynJoin for S {
    fn dyn_dialect(&self) -> (TypeId, &'static str) {
        (TypeId::of::<S::Dialect>(), S::Dialect::NAME)
    }

    fn dyn_completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        self.completion(id, owner, done)
    }

    fn dyn_committed(&self, id: &Identity) {
        if let Err(error) = caught_now(|| self.committed(id)) {
            tracing::error!(
                identity = %id, %error,
                "duplicates that wait for a result were not woken, because the store's code \
                 panicked; they will find the result a little later, by polling"
            );
        }
    }
}

/// A type-erased store with its capabilities. Cheap to clone. Build a shared store from your own
/// store:
///
/// ```
/// # use {retryproof_core::SharedStore, retryproof_memory::MemoryStore};
/// let store =
///     SharedStore::builder(MemoryStore::new()).with_purge().with_inspect().with_force().build();
/// ```
#[derive(Clone)]
pub struct SharedStore {
    store: Arc<dyn DynStore>,
    purge: Option<Arc<dyn DynPurge>>,
    inspect: Option<Arc<dyn DynInspect>>,
    force: Option<Arc<dyn DynForce>>,
    join: Option<Arc<dyn DynJoin>>,
    pub(super) audit: Option<Arc<dyn DynAudit>>,
    secret: Option<IdentitySecret>,
    sealing: Option<Sealing>,
}

impl SharedStore {
    /// Creates a shared store without further capabilities.
    #[must_use]
    pub fn new(store: impl IdempotencyStore) -> Self {
        Self::builder(store).build()
    }

    /// Starts to build a shared store from a store of a concrete type. The builder can add that
    /// type's capabilities.
    #[must_use]
    pub fn builder<S: IdempotencyStore>(store: S) -> SharedStoreBuilder<S> {
        SharedStoreBuilder {
            store: Arc::new(store),
            purge: None,
            inspect: None,
            force: None,
            join: None,
            audit: None,
        }
    }

    /// Deletes up to `limit` expired records and returns how many it deleted, or `None` if the
    /// store cannot purge (STO-4).
    ///
    /// # Errors
    /// The store's errors.
    pub async fn purge(&self, limit: usize) -> Result<Option<usize>> {
        match &self.purge {
            Some(purge) => Arc::clone(purge).dyn_purge(limit).await.map(Some),
            None => Ok(None),
        }
    }

    /// Claims the purge for `at_most`, as [`Purge::claim_purge`] does (STO-6). Returns whether the
    /// caller has the claim, or `None` if the store cannot purge.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn claim_purge(&self, at_most: Duration) -> Result<Option<bool>> {
        match &self.purge {
            Some(purge) => Arc::clone(purge).dyn_claim_purge(at_most).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether the store can [`purge`](Self::purge).
    #[must_use]
    pub fn can_purge(&self) -> bool {
        self.purge.is_some()
    }

    /// Counts the records, or returns `None` if the store cannot count them.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn stats(&self) -> Result<Option<StoreStats>> {
        match &self.inspect {
            Some(inspect) => Arc::clone(inspect).dyn_stats().await.map(Some),
            None => Ok(None),
        }
    }

    /// Describes one record without its value. Returns `Ok(None)` if there is no record, and also
    /// if the store cannot inspect records.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        match &self.inspect {
            Some(inspect) => Arc::clone(inspect).dyn_get(id.clone()).await,
            None => Ok(None),
        }
    }

    /// Whether the store can describe records with [`get`](Self::get), [`stats`](Self::stats) and
    /// [`scan`](Self::scan).
    #[must_use]
    pub fn can_inspect(&self) -> bool {
        self.inspect.is_some()
    }

    /// Returns one page of all records, as [`Inspect::scan`] does, or `None` if the store cannot
    /// inspect records (OPS-1).
    ///
    /// # Errors
    /// `Invalid` for a cursor that the store cannot read; otherwise the store's errors.
    pub async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<Option<ScanPage>> {
        match &self.inspect {
            Some(inspect) => Arc::clone(inspect).dyn_scan(after.cloned(), limit).await.map(Some),
            None => Ok(None),
        }
    }

    /// Like [`scan`](Self::scan), but returns only the records that `filter` selects (OPS-2).
    /// `limit` still counts the records that the store examines, so a page can be empty even if
    /// more pages follow.
    ///
    /// # Errors
    /// Same as for [`scan`](Self::scan).
    pub async fn scan_filtered(
        &self,
        filter: &RecordFilter,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<Option<ScanPage>> {
        let mut page = self.scan(after, limit).await?;
        if let Some(page) = &mut page {
            page.records.retain(|record| filter.selects(record));
        }
        Ok(page)
    }

    /// Counts the records of each scope, or returns `None` if the store cannot inspect records. The
    /// call reads all records. To show progress or to stop early, add the pages of a
    /// [`scan`](Self::scan) to a [`ScopeStats`] instead.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn stats_by_scope(&self) -> Result<Option<ScopeStats>> {
        const PAGE: usize = 1_000;

        let (mut stats, mut after) = (ScopeStats::new(), None);
        loop {
            let Some(page) = self.scan(after.as_ref(), PAGE).await? else { return Ok(None) };
            stats.add(&page);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(Some(stats)),
            }
        }
    }

    /// Whether operators can change records with [`force`](Self::force).
    #[must_use]
    pub fn can_force(&self) -> bool {
        self.force.is_some()
    }

    /// Changes a record on behalf of an operator, as [`Force::force`] does (OPS-3).
    ///
    /// # Errors
    /// `Unsupported` if the store was built without the force capability; otherwise the store's
    /// errors.
    pub async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let Some(force) = &self.force else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "operators cannot change records of this store; build the store with the force \
                 capability (`into_shared` or `with_force`)",
            )
            .during("force")
            .with("store", self.store.dyn_profile().name));
        };
        let mut req = req.clone();
        if let ForceAction::Resolve { by, done } = &mut req.action
            && let Some(sealing) = &self.sealing
        {
            let subject = req.subject.as_ref().map(|subject| &*subject.0);
            *done = self.seal(id, subject, done.clone()).await?;
            *by = sealing.hidden_owner(*by);
        }
        Arc::clone(force).dyn_force(id.clone(), req).await
    }

    /// Seals the results that engines on this store record, and opens them for replays (SEAL-1).
    /// Call this method on the outermost store: engines seal, not the store itself. Records that
    /// were stored before, without a sealer, can still be read.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) if the store has plain identities. The names of subjects, and
    /// the fingerprints, are hidden under the store's identity secret (ID-5).
    pub fn sealed_by(mut self, sealer: Arc<dyn Sealer>) -> Result<Self> {
        let Some(secret) = &self.secret else {
            return Err(Error::new(
                ErrorKind::Config,
                "results cannot be sealed, because the store was set up without an identity \
                 secret; set `identity-secret`, and migrate a new store with that secret",
            ));
        };
        self.sealing = Some(Sealing::new(sealer, secret.clone()));
        Ok(self)
    }

    /// Whether engines on this store seal results (SEAL-1).
    #[must_use]
    pub fn seals(&self) -> bool {
        self.sealing.is_some()
    }

    pub(crate) fn sealing(&self) -> Option<&Sealing> {
        self.sealing.as_ref()
    }

    /// Opens a stored result that was read with [`peek`](IdempotencyStore::peek), and reveals its
    /// fingerprint. The engine does this itself. A result that is not sealed, or that was read from
    /// a store without a sealer, is returned unchanged.
    ///
    /// # Errors
    /// The errors of [`Sealer::open`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn open_sealed(&self, id: &Identity, stored: StoredResult) -> Result<StoredResult> {
        match &self.sealing {
            Some(sealing) => sealing.opened(id, stored, |_| false).await,
            None => Ok(stored),
        }
    }

    /// Seals a completion that comes not from an engine but, for example, from an import. Seals it
    /// under `subject` or, without one, under the subject that the calls of the scope share.
    /// Returns the completion unchanged if it is already sealed, or if the store has no sealer.
    ///
    /// # Errors
    /// The errors of [`Sealer::key_for`], and `Codec` if the subject's key was destroyed.
    ///
    /// # Cancel safety
    /// Same as for [`Sealer::key_for`].
    pub async fn seal(
        &self,
        id: &Identity,
        subject: Option<&str>,
        done: Completion,
    ) -> Result<Completion> {
        let Some(sealing) = &self.sealing else { return Ok(done) };
        if crate::payload::is_sealed(&done.value) {
            return Ok(done);
        }
        let call = sealing.of_call(id, subject, done.fingerprint.as_ref()).await?;
        Ok(Completion { value: call.seal(done.value)?, fingerprint: call.fingerprint, ..done })
    }

    /// Returns the identity in the form that the logs of this store print. If the store has hashed
    /// identities (ID-5), the returned identity contains the key's digest. Later calls with this
    /// identity do not compute the digest again.
    #[must_use]
    pub fn identify(&self, id: Identity) -> Identity {
        match &self.secret {
            Some(secret) => id.hashed(secret),
            None => id,
        }
    }

    /// Whether the store keeps digests instead of keys (ID-5).
    #[must_use]
    #[inline]
    pub fn hashes_identities(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the identity under which the store keeps the record. A joined completion needs this
    /// identity, because its statement bypasses this type.
    pub(crate) fn stored(&self, id: &Identity) -> Identity {
        match &self.secret {
            Some(secret) => id.clone().stored(secret),
            None => id.clone(),
        }
    }

    /// Whether a completion can join the caller's transaction (CMP-7).
    #[must_use]
    pub fn can_join(&self) -> bool {
        self.join.is_some()
    }

    /// Returns the capability to join transactions of the dialect `D`.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot join transactions, or joins only those of another dialect.
    pub(crate) fn joiner<D: Dialect>(&self) -> Result<&Arc<dyn DynJoin>> {
        let refused =
            |message: &'static str| Error::new(ErrorKind::Unsupported, message).during("join");
        let name = self.store.dyn_profile().name;
        let Some(join) = &self.join else {
            return Err(refused(
                "this store cannot join a transaction; use a store in the same database as the \
                 business writes, built with the join capability (`into_shared` or `with_join`)",
            )
            .with("store", name));
        };
        let (dialect, spoken) = join.dyn_dialect();
        if dialect != TypeId::of::<D>() {
            return Err(refused(
                "the transaction and the store belong to different kinds of database; use a \
                 transaction on the store's database",
            )
            .with("store", name)
            .with("store_dialect", spoken)
            .with("transaction_dialect", D::NAME));
        }
        Ok(join)
    }

    /// Returns the type-erased store without its capabilities. If this store hashes identities, the
    /// returned store hashes them too (ID-5).
    #[must_use]
    pub fn as_dyn(&self) -> Arc<dyn DynStore> {
        Arc::clone(&self.store)
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore")
            .field("store", &self.store)
            .field("purge", &self.purge.is_some())
            .field("inspect", &self.inspect.is_some())
            .field("force", &self.force.is_some())
            .field("join", &self.join.is_some())
            .field("audit", &self.audit.is_some())
            .field("seals", &self.seals())
            .finish()
    }
}

impl IdempotencyStore for SharedStore {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.as_dyn().dyn_acquire(id.clone(), req.clone()).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.as_dyn().dyn_peek(id.clone()).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.as_dyn().dyn_wait_for_change(id.clone(), seen, at_most).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.as_dyn().dyn_extend(id.clone(), owner, lease).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.as_dyn().dyn_complete(id.clone(), owner, done.clone()).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.as_dyn().dyn_release(id.clone(), owner).await
    }

    fn profile(&self) -> StoreProfile {
        let profile = self.store.dyn_profile();
        StoreProfile { sealing: self.sealing.clone(), ..profile }
    }
}

/// Builds a `SharedStore`, and adds capabilities while the store's concrete type is known.
pub struct SharedStoreBuilder<S> {
    store: Arc<S>,
    purge: Option<Arc<dyn DynPurge>>,
    inspect: Option<Arc<dyn DynInspect>>,
    force: Option<Arc<dyn DynForce>>,
    join: Option<Arc<dyn DynJoin>>,
    audit: Option<Arc<dyn DynAudit>>,
}

impl<S: IdempotencyStore> SharedStoreBuilder<S> {
    /// Allows the engine to purge expired records (STO-4).
    #[must_use]
    pub fn with_purge(mut self) -> Self
    where
        S: Purge,
    {
        self.purge = Some(Arc::clone(&self.store) as _);
        self
    }

    /// Allows operators to inspect records.
    #[must_use]
    pub fn with_inspect(mut self) -> Self
    where
        S: Inspect,
    {
        self.inspect = Some(Arc::clone(&self.store) as _);
        self
    }

    /// Allows operators to change records (OPS-3).
    #[must_use]
    pub fn with_force(mut self) -> Self
    where
        S: Force,
    {
        self.force = Some(Arc::clone(&self.store) as _);
        self
    }

    /// Allows completions to join the caller's transaction (CMP-7).
    #[must_use]
    pub fn with_join(mut self) -> Self
    where
        S: Join,
    {
        self.join = Some(Arc::clone(&self.store) as _);
        self
    }

    /// Adds the store's audit table, which keeps the requests of operators and their outcomes
    /// (OPS-10).
    #[must_use]
    pub fn with_audit(mut self) -> Self
    where
        S: Audit,
    {
        self.audit = Some(Arc::clone(&self.store) as _);
        self
    }

    /// Builds the shared store. If the store's profile has an identity secret, the key in each call
    /// is replaced by its digest (ID-5).
    #[must_use]
    pub fn build(self) -> SharedStore {
        let Self { store, purge, inspect, force, join, audit } = self;
        let StoreProfile { identity_secret: secret, sealing, .. } = store.profile();
        let store: Arc<dyn DynStore> = store;
        match &secret {
            None => SharedStore { store, purge, inspect, force, join, audit, secret, sealing },
            Some(by) => SharedStore {
                store: Hashed::new(store, by),
                purge,
                inspect: inspect.map(|inspect| Hashed::new(inspect, by) as _),
                force: force.map(|force| Hashed::new(force, by) as _),
                join,
                audit: audit.map(|audit| Hashed::new(audit, by) as _),
                secret,
                sealing,
            },
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for SharedStoreBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStoreBuilder").field("store", &self.store).finish_non_exhaustive()
    }
}
