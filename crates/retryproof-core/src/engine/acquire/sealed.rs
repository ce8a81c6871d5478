// SPDX-License-Identifier: MIT OR Apache-2.0
//! An acquire in a store with sealed results: gets the key of the call's subject before the store
//! is called, and opens the result that the store returns (SEAL-1, SEAL-2).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{AcquireLoop, Acquisition};
use crate::context::{Guarding, IdempotencyContext};
use crate::engine::store_client::StoreClient;
use crate::error::{Error, Result};
use crate::owner::OwnerId;
use crate::payload::StoredResult;
use crate::seal::Sealing;

impl<'a> AcquireLoop<'a> {
    /// Returns the sealer of the engine's store. A scope that is switched off records nothing, so
    /// there is nothing to seal (CTX-5).
    #[inline]
    pub(super) fn sealing(&self) -> Option<&'a Sealing> {
        match self.durations.guarding {
            Guarding::Off => None,
            Guarding::On | Guarding::Shadow => self.engine.store.shared().sealing(),
        }
    }

    /// Like [`run`](Self::run), but first gets the subject's key. If this fails, nothing runs, and
    /// the store is not called.
    pub(super) async fn run_sealed(
        &mut self,
        sealing: &Sealing,
        owner: OwnerId,
    ) -> Result<Acquisition> {
        let (subject, fingerprint) = (self.ctx.subject(), self.ctx.fingerprint());
        let limit = match self.durations.guarding {
            // In shadow mode, getting the key may take at most half of the operation timeout. The
            // same limit applies to a call to the store (CTX-6).
            Guarding::Shadow => self.store.operation_timeout() / 2,
            Guarding::On | Guarding::Off => self.store.operation_timeout(),
        };
        let call = in_time(limit, sealing.of_call(self.identity(), subject, fingerprint)).await;
        let seal = match call {
            // In shadow mode, the call runs even if no key can be read, and a tombstone is recorded
            // (CTX-6).
            Err(error) if self.durations.guarding == Guarding::Shadow => {
                tracing::warn!(identity = %self.identity(), %error,
                    "the result of a call in shadow mode will not be stored, because the key that \
                     seals the result could not be loaded; the record will say only that the work \
                     is done");
                sealing.without_key(self.identity(), None)
            }
            call => call,
        };
        self.seal = Some(Arc::new(seal.map_err(|error| self.named(error))?));
        // Restart the clock, because the time that was needed to get the key counts neither as
        // waiting for a holder nor as part of the lease.
        self.began = self.store.now();
        self.deadline = self.began + self.durations.wait;
        match self.run(owner).await? {
            Acquisition::Complete(stored) => {
                let stored = opened(&self.engine.store, self.ctx, stored).await;
                stored.map(Acquisition::Complete).map_err(|error| self.named(error))
            }
            acquired => Ok(acquired),
        }
    }
}

/// Opens a stored result, if the store has sealed results. The fingerprints are compared first: a
/// result for another request stays sealed (FP-2).
pub(in crate::engine) async fn opened(
    store: &StoreClient,
    ctx: &IdempotencyContext,
    stored: StoredResult,
) -> Result<StoredResult> {
    let Some(sealing) = store.shared().sealing() else { return Ok(stored) };
    let opening = sealing.opened(ctx.identity(), stored, |theirs| {
        ctx.fingerprint().is_some_and(|own| (ctx.comparable())(own, theirs) && own != theirs)
    });
    in_time(store.operation_timeout(), opening).await
}

/// Awaits a call to the sealer for at most `limit`.
async fn in_time<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| {
        Err(Error::unavailable("the key that seals the result could not be loaded in time")
            .with("after", format_args!("{limit:?}")))
    })
}
