// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiting`]: what an annotated endpoint's arguments may ask for before the lease is granted
//! (ANN-6).

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use crate::guard::{Awaited, Key, Slot};
use crate::joined::HandlerTx;

/// A request whose arguments are being extracted. Until the grant nothing of it is among the
/// request's extensions.
pub struct Waiting {
    pub(crate) key: Key,
    /// Made by the first extractor that wants the lease.
    slot: Cell<Option<Slot>>,
    /// Made by the first extractor that wants a transaction.
    tx: Cell<Option<Arc<dyn HandlerTx>>>,
}

impl Waiting {
    pub(crate) fn new(key: Key) -> Self {
        Self { key, slot: Cell::new(None), tx: Cell::new(None) }
    }

    pub(crate) fn slot(&self) -> Slot {
        let slot = self.slot.take().unwrap_or_default();
        self.slot.set(Some(Slot::clone(&slot)));
        slot
    }

    pub(crate) fn tx(&self, make: impl FnOnce() -> Arc<dyn HandlerTx>) -> Arc<dyn HandlerTx> {
        let tx = self.tx.take().unwrap_or_else(make);
        self.tx.set(Some(Arc::clone(&tx)));
        tx
    }

    /// What was asked for, to be told of the grant.
    pub(crate) fn awaited(&self) -> Option<Box<Awaited>> {
        match (self.slot.take(), self.tx.take()) {
            (None, None) => None,
            (lease, tx) => Some(Box::new(Awaited { lease, tx })),
        }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}
