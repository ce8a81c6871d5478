// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Planted`]: a store with a defect, made by writing to its records behind its back. The same run
//! that shows no violation on the store has to show one here.

use std::fmt;
use std::time::Duration;

use retryproof::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, ForceRequest, Forced, Grant,
};
use retryproof::{FencingToken, IdempotencyStore, Identity, OwnerId, Result, SharedStore};

mod door;
mod mariadb;
mod postgres;
mod redis;
mod sqlite;

use door::{Door, Seen};
pub(crate) use door::{broken, bytes};
pub(crate) use redis::key as redis_key;

/// What can be planted.
pub(crate) const NAMES: [&str; 4] =
    ["no-owner-check", "early-takeover", "get-then-set", UNFENCED_OPERATOR];

/// An intervention changes the record whatever the operator saw. The operators do it themselves
/// ([`unfenced`]); the store is as it is.
pub(crate) const UNFENCED_OPERATOR: &str = "unfenced-operator";

/// An intervention without its fencing: with the token that stands there now, and even if the lease
/// is live.
pub(crate) async fn unfenced(
    store: &SharedStore,
    id: &Identity,
    req: &ForceRequest,
) -> Result<Forced> {
    let mut req = req.clone().even_if_live();
    if let Some(found) = store.get(id).await? {
        req.token = found.token;
    }
    store.force(id, &req).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    /// A completion, an extension or a release is accepted from any sender.
    NoOwnerCheck,
    /// A lease is taken over when half of it is left.
    EarlyTakeover,
    /// An expired lease is read and then written, as if no other call could come in between.
    GetThenSet,
}

/// A store with a defect.
pub(crate) struct Planted {
    inner: SharedStore,
    defect: Defect,
    door: Door,
}

impl Planted {
    pub(crate) async fn new(inner: SharedStore, defect: &str, url: &str) -> Result<Self> {
        let defect = match defect {
            "no-owner-check" => Defect::NoOwnerCheck,
            "early-takeover" => Defect::EarlyTakeover,
            _ => Defect::GetThenSet,
        };
        Ok(Self { inner, defect, door: Door::open(url).await? })
    }

    /// Makes the caller the owner of whatever is in progress.
    async fn usurp(&self, id: &Identity, owner: OwnerId) -> Result<()> {
        match self.defect {
            Defect::NoOwnerCheck => self.door.usurp(id, owner).await,
            Defect::EarlyTakeover | Defect::GetThenSet => Ok(()),
        }
    }

    async fn overwrite(&self, id: &Identity, req: &AcquireRequest, seen: Seen) -> Result<Acquired> {
        let token = self.door.overwrite(id, req, seen).await?;
        let token = FencingToken::new(u64::try_from(token).unwrap_or(0));
        Ok(Acquired::Granted(Grant::new(token, req.lease, true)))
    }
}

impl fmt::Debug for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planted").field("defect", &self.defect).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Planted {
    retryproof_testkit::forward!(inner: peek, wait_for_change, profile);

    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        match self.defect {
            Defect::NoOwnerCheck => {}
            Defect::EarlyTakeover => self.door.hurry(id, req.owner, req.lease / 2).await?,
            Defect::GetThenSet => {
                if let Some(seen) = self.door.expired(id).await? {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    return self.overwrite(id, req, seen).await;
                }
            }
        }
        self.inner.acquire(id, req).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.usurp(id, owner).await?;
        self.inner.extend(id, owner, lease).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.usurp(id, owner).await?;
        self.inner.complete(id, owner, done).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.usurp(id, owner).await?;
        self.inner.release(id, owner).await
    }
}
