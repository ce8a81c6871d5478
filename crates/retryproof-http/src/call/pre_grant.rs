// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PreGrant`]: what extractors can get before the lease is granted (ANN-6).

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, OnceLock};

use retryproof_core::Lease;

use super::{CallMark, CallTransaction};
use crate::protocol::key::ClientKey;

/// The key, and handles for the lease and the transaction, which extractors of an annotated
/// endpoint can get before the lease is granted (ANN-6). The handles work only after the grant.
pub struct PreGrant {
    key: ClientKey,
    /// The handle to the lease, created by the first lease extractor.
    lease: Cell<Option<LeaseCell>>,
    /// The transaction, created by the first transaction extractor.
    tx: Cell<Option<Arc<dyn CallTransaction>>>,
}

impl PreGrant {
    pub(super) fn new(key: ClientKey) -> Self {
        Self { key, lease: Cell::new(None), tx: Cell::new(None) }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn client_key(&self) -> &ClientKey {
        &self.key
    }

    /// The client's key, decoded.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Returns a handle to the lease. The handle is empty until the grant.
    #[must_use]
    pub fn lease(&self) -> LeaseCell {
        let lease = self.lease.take().unwrap_or_default();
        self.lease.set(Some(lease.clone()));
        lease
    }

    /// Returns the call's transaction, and creates it with `make` if it does not exist yet.
    pub(crate) fn tx(
        &self,
        make: impl FnOnce() -> Arc<dyn CallTransaction>,
    ) -> Arc<dyn CallTransaction> {
        let tx = self.tx.take().unwrap_or_else(make);
        self.tx.set(Some(Arc::clone(&tx)));
        tx
    }

    /// Takes the handles that the grant will fill; `None` if extractors took no handle. The handles
    /// are boxed, so that a call without handles needs little space.
    pub(crate) fn take_handles(&self) -> Option<Box<GrantHandles>> {
        match (self.lease.take(), self.tx.take()) {
            (None, None) => None,
            (lease, tx) => Some(Box::new(GrantHandles { lease, tx })),
        }
    }
}

impl fmt::Debug for PreGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreGrant").finish_non_exhaustive()
    }
}

/// A handle to the lease of a call. The handle is empty before the grant.
#[derive(Clone, Debug, Default)]
pub struct LeaseCell(Arc<OnceLock<Lease>>);

impl LeaseCell {
    /// Returns the lease; `None` before the grant.
    #[must_use]
    pub fn get(&self) -> Option<&Lease> {
        self.0.get()
    }
}

impl From<&CallMark> for LeaseCell {
    fn from(mark: &CallMark) -> Self {
        Self(Arc::new(mark.lease().clone().into()))
    }
}

/// The handles that extractors took before the grant.
pub(crate) struct GrantHandles {
    lease: Option<LeaseCell>,
    tx: Option<Arc<dyn CallTransaction>>,
}

impl GrantHandles {
    /// Fills the lease handle, allows the transaction to be opened, and returns the transaction.
    pub(super) fn fill(self, lease: &Lease) -> Option<Arc<dyn CallTransaction>> {
        if let Some(cell) = self.lease {
            let _ = cell.0.set(lease.clone());
        }
        self.tx.inspect(|tx| tx.grant())
    }
}
