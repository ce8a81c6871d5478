// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Hashed`]: forwards calls to a store with hashed identities, and replaces the key in each call
//! by its digest (ID-5).

use std::sync::Arc;
use std::time::Duration;

use super::audit::{AuditEntry, AuditPage, DynAudit};
use super::shared::{DynForce, DynInspect, DynStore, StoreCall};
use super::{
    AcquireRequest, Acquired, Completion, FencedWrite, ForceRequest, Forced, Peeked, RecordSummary,
    ScanCursor, ScanPage, StoreProfile, StoreStats,
};
use crate::error::Result;
use crate::identity::{Identity, IdentitySecret};
use crate::owner::{FencingToken, OwnerId};

/// Wraps a store, or one of its capabilities, and replaces keys by digests under the store's
/// secret.
#[derive(Debug)]
pub(super) struct Hashed<T: ?Sized> {
    inner: Arc<T>,
    secret: IdentitySecret,
}

impl<T: ?Sized> Hashed<T> {
    pub(super) fn new(inner: Arc<T>, secret: &IdentitySecret) -> Arc<Self> {
        Arc::new(Self { inner, secret: secret.clone() })
    }

    fn stored(&self, id: Identity) -> Identity {
        id.stored(&self.secret)
    }
}

impl DynStore for Hashed<dyn DynStore> {
    fn dyn_acquire(self: Arc<Self>, id: Identity, req: AcquireRequest) -> StoreCall<Acquired> {
        Arc::clone(&self.inner).dyn_acquire(self.stored(id), req)
    }

    fn dyn_acquire_in_place(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> Option<Result<Acquired>> {
        self.inner.dyn_acquire_in_place(&self.stored(id.clone()), req)
    }

    fn dyn_peek(self: Arc<Self>, id: Identity) -> StoreCall<Peeked> {
        Arc::clone(&self.inner).dyn_peek(self.stored(id))
    }

    fn dyn_wait_for_change(
        self: Arc<Self>,
        id: Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> StoreCall<()> {
        Arc::clone(&self.inner).dyn_wait_for_change(self.stored(id), seen, at_most)
    }

    fn dyn_extend(
        self: Arc<Self>,
        id: Identity,
        owner: OwnerId,
        lease: Duration,
    ) -> StoreCall<FencedWrite> {
        Arc::clone(&self.inner).dyn_extend(self.stored(id), owner, lease)
    }

    fn dyn_complete(
        self: Arc<Self>,
        id: Identity,
        owner: OwnerId,
        done: Completion,
    ) -> StoreCall<FencedWrite> {
        Arc::clone(&self.inner).dyn_complete(self.stored(id), owner, done)
    }

    fn dyn_complete_in_place(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Option<Result<FencedWrite>> {
        self.inner.dyn_complete_in_place(&self.stored(id.clone()), owner, done)
    }

    fn dyn_release(self: Arc<Self>, id: Identity, owner: OwnerId) -> StoreCall<FencedWrite> {
        Arc::clone(&self.inner).dyn_release(self.stored(id), owner)
    }

    fn dyn_profile(&self) -> StoreProfile {
        self.inner.dyn_profile()
    }
}

impl DynInspect for Hashed<dyn DynInspect> {
    fn dyn_get(self: Arc<Self>, id: Identity) -> StoreCall<Option<RecordSummary>> {
        Arc::clone(&self.inner).dyn_get(self.stored(id))
    }

    fn dyn_stats(self: Arc<Self>) -> StoreCall<StoreStats> {
        Arc::clone(&self.inner).dyn_stats()
    }

    /// Returns records with their stored identities. Later calls with these identities do not hash
    /// them again.
    fn dyn_scan(self: Arc<Self>, after: Option<ScanCursor>, limit: usize) -> StoreCall<ScanPage> {
        let call = Arc::clone(&self.inner).dyn_scan(after, limit);
        Box::pin(async move {
            let mut page = call.await?;
            for record in &mut page.records {
                record.id = record.id.clone().read_back(&self.secret);
            }
            Ok(page)
        })
    }
}

impl DynForce for Hashed<dyn DynForce> {
    fn dyn_force(self: Arc<Self>, id: Identity, req: ForceRequest) -> StoreCall<Forced> {
        Arc::clone(&self.inner).dyn_force(self.stored(id), req)
    }
}

impl DynAudit for Hashed<dyn DynAudit> {
    fn dyn_append(self: Arc<Self>, mut entry: AuditEntry) -> StoreCall<()> {
        entry.record = entry.record.map(|(id, token)| (self.stored(id), token));
        Arc::clone(&self.inner).dyn_append(entry)
    }

    fn dyn_entries(
        self: Arc<Self>,
        after: Option<ScanCursor>,
        limit: usize,
    ) -> StoreCall<AuditPage> {
        let call = Arc::clone(&self.inner).dyn_entries(after, limit);
        Box::pin(async move {
            let mut page = call.await?;
            for (id, _) in page.entries.iter_mut().filter_map(|entry| entry.record.as_mut()) {
                *id = id.clone().read_back(&self.secret);
            }
            Ok(page)
        })
    }
}
