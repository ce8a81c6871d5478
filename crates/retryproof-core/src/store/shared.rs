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

use super::caught::{caught, caught_now};
use super::{
    AcquireRequest, Acquired, Completion, Dialect, FencedWrite, Force, ForceRequest, Forced,
    IdempotencyStore, Inspect, Join, JoinStatement, Peeked, Purge, RecordFilter, RecordSummary,
    ScanCursor, ScanPage, ScopeStats, StoreProfile, StoreStats,
};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};

/// A call that owns its arguments, so that it can outlive its caller (ACQ-11).
pub(crate) type StoreCall<T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'static>>;

/// The contract with boxed futures, for use as a `dyn` type. Every [`IdempotencyStore`] implements
/// this trait; the `dyn_` prefix distinguishes its methods from those of [`IdempotencyStore`]. A
/// call owns its arguments, so that a call in flight can outlive its caller (ACQ-11). If a store
/// panics when a call is made or polled, that call fails with `Unavailable` (STO-5).
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
}

impl<S: Purge> DynPurge for S {
    fn dyn_purge(self: Arc<Self>, limit: usize) -> StoreCall<usize> {
        Box::pin(async move { caught(pin!(async { self.purge(limit).await })).await })
    }
}

/// The object-safe form of [`Inspect`].
trait DynInspect: Send + Sync {
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

/// Object-safe [`Force`].
trait DynForce: Send + Sync {
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
                "waiters were not woken; they will find the result by polling"
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
}

impl SharedStore {
    /// Creates a shared store without further capabilities.
    #[must_use]
    pub fn new(store: impl IdempotencyStore) -> Self {
        Self::builder(store).build()
    }

    /// Starts building a shared store from a concrete store, whose capabilities can then be added.
    #[must_use]
    pub fn builder<S: IdempotencyStore>(store: S) -> SharedStoreBuilder<S> {
        SharedStoreBuilder {
            store: Arc::new(store),
            purge: None,
            inspect: None,
            force: None,
            join: None,
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

    /// Whether [`get`](Self::get), [`stats`](Self::stats) and [`scan`](Self::scan) can describe
    /// records.
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
    /// `limit` still counts the records that the store examines, so a page may be empty although
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
    /// call reads all records; to show progress, or to stop early, add the pages of a
    /// [`scan`](Self::scan) to a [`ScopeStats`].
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
    /// `Unsupported` if the store does not have the capability; otherwise the store's errors.
    pub async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let Some(force) = &self.force else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "operators cannot change records of this store; build it with the force capability \
                 (`into_shared` or `with_force`)",
            )
            .during("force")
            .with("store", self.store.dyn_profile().name));
        };
        Arc::clone(force).dyn_force(id.clone(), req.clone()).await
    }

    /// Whether a completion can join the caller's transaction (CMP-7).
    #[must_use]
    pub fn can_join(&self) -> bool {
        self.join.is_some()
    }

    /// Returns the capability to join transactions of the dialect `D`.
    ///
    /// # Errors
    /// `Unsupported` if the store does not have the capability, or has it for another database.
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
                "the transaction's database is of a different kind than the store's database",
            )
            .with("store", name)
            .with("store_speaks", spoken)
            .with("transaction_speaks", D::NAME));
        }
        Ok(join)
    }

    /// The type-erased store without its capabilities.
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
        self.store.dyn_profile()
    }
}

/// Adds capabilities to a store while its type is known.
pub struct SharedStoreBuilder<S> {
    store: Arc<S>,
    purge: Option<Arc<dyn DynPurge>>,
    inspect: Option<Arc<dyn DynInspect>>,
    force: Option<Arc<dyn DynForce>>,
    join: Option<Arc<dyn DynJoin>>,
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

    /// Builds the shared store.
    #[must_use]
    pub fn build(self) -> SharedStore {
        let Self { store, purge, inspect, force, join } = self;
        SharedStore { store, purge, inspect, force, join }
    }
}

impl<S: fmt::Debug> fmt::Debug for SharedStoreBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStoreBuilder").field("store", &self.store).finish_non_exhaustive()
    }
}
