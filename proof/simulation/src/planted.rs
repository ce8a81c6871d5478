// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Planted`]: the store of a run, with a defect if one is planted.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, Inspect, LiveLease, Peeked, Purge,
    RecordSummary, ScanCursor, ScanPage, StoreProfile, StoreStats,
};
use retryproof::{
    Error, ErrorKind, FencingToken, IdempotencyStore, Identity, Opened, OwnerId, Payload, Result,
    SharedStore, StoredResult,
};

use crate::numbered::Tokens;

/// What can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// A completion is accepted from any sender.
    NoOwnerCheck,
    /// A lease is taken over when half of it is left.
    EarlyTakeover,
    /// No heartbeat reaches the store, but each is answered as if it had.
    NoHeartbeat,
    /// A waiter sleeps until the lease is over, whatever happens before.
    NoWakeUp,
    /// A replay has one byte more than what was stored.
    AlteredReplay,
    /// All grants of an identity get the same token.
    RepeatedToken,
    /// A completion after the end of the lease is refused to the owner who is still recorded.
    TimeFenced,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NoOwnerCheck,
        Self::EarlyTakeover,
        Self::NoHeartbeat,
        Self::NoWakeUp,
        Self::AlteredReplay,
        Self::RepeatedToken,
        Self::TimeFenced,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoOwnerCheck => "no-owner-check",
            Self::EarlyTakeover => "early-takeover",
            Self::NoHeartbeat => "no-heartbeat",
            Self::NoWakeUp => "no-wake-up",
            Self::AlteredReplay => "altered-replay",
            Self::RepeatedToken => "repeated-token",
            Self::TimeFenced => "time-fenced",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }
}

/// The store that all processes share.
pub(crate) struct Planted {
    inner: SharedStore,
    plant: Option<Plant>,
    tokens: Tokens,
    owners: Mutex<HashMap<Identity, OwnerId>>,
}

impl Planted {
    pub(crate) fn new(inner: SharedStore, plant: Option<Plant>) -> Self {
        Self { inner, plant, tokens: Tokens::default(), owners: Mutex::default() }
    }

    fn has(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    fn granted(&self, id: &Identity, owner: OwnerId, grant: Grant, took_over: bool) -> Acquired {
        self.owners.lock().insert(id.clone(), owner);
        let token = match self.tokens.number(id, grant.token) {
            _ if self.has(Plant::RepeatedToken) => FencingToken::new(1),
            token => token,
        };
        Acquired::Granted(Grant::new(token, grant.remaining, took_over))
    }

    fn busy(&self, id: &Identity, lease: LiveLease) -> LiveLease {
        let token = self.tokens.number(id, lease.token);
        LiveLease::new(lease.remaining, token)
            .with_holder(lease.holder)
            .with_mismatch(lease.mismatch)
    }

    fn replay(&self, stored: StoredResult) -> StoredResult {
        match stored.open(None) {
            Ok(Opened::Value(payload)) if self.has(Plant::AlteredReplay) => {
                let body = [payload.body(), b" "].concat();
                let altered = Payload::new(payload.codec(), payload.schema(), &body);
                StoredResult::new(altered.into_envelope(), stored.fingerprint().copied())
            }
            _ => stored,
        }
    }

    /// Who may send a call: whoever does, or the owner recorded, if nobody checks.
    fn sender(&self, id: &Identity, owner: OwnerId) -> OwnerId {
        let recorded = self.owners.lock().get(id).copied();
        recorded.filter(|_| self.has(Plant::NoOwnerCheck)).unwrap_or(owner)
    }
}

impl fmt::Debug for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planted").field("plant", &self.plant).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Planted {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        match self.inner.acquire(id, req).await? {
            Acquired::Granted(grant) => Ok(self.granted(id, req.owner, grant, grant.took_over)),
            Acquired::Complete(stored) => Ok(Acquired::Complete(self.replay(stored))),
            Acquired::Busy(lease) => {
                let holder = self.owners.lock().get(id).copied();
                let early = self.has(Plant::EarlyTakeover) && lease.remaining < req.lease / 2;
                let Some(holder) = holder.filter(|_| early) else {
                    return Ok(Acquired::Busy(self.busy(id, lease)));
                };
                let _: FencedWrite = self.inner.release(id, holder).await?;
                match self.inner.acquire(id, req).await? {
                    Acquired::Granted(grant) => Ok(self.granted(id, req.owner, grant, true)),
                    other => Ok(other),
                }
            }
        }
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        Ok(match self.inner.peek(id).await? {
            Peeked::Absent => Peeked::Absent,
            Peeked::Busy(lease) => Peeked::Busy(self.busy(id, lease)),
            Peeked::Complete(stored) => Peeked::Complete(self.replay(stored)),
        })
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        if self.has(Plant::NoWakeUp) {
            tokio::time::sleep(at_most).await;
            return Ok(());
        }
        self.inner.wait_for_change(id, self.tokens.token(id, seen), at_most).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.inner.extend(id, owner, lease).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        if self.has(Plant::TimeFenced)
            && self.inner.get(id).await?.is_some_and(|found| found.remaining.is_none())
        {
            return Ok(FencedWrite::NotOwner);
        }
        self.inner.complete(id, self.sender(id, owner), done).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.inner.release(id, owner).await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile()
    }
}

impl Purge for Planted {
    async fn purge(&self, limit: usize) -> Result<usize> {
        Ok(self.inner.purge(limit).await?.unwrap_or(0))
    }
}

impl Inspect for Planted {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let found = self.inner.get(id).await?;
        Ok(found.map(|mut found| {
            found.token = self.tokens.number(id, found.token);
            found
        }))
    }

    async fn stats(&self) -> Result<StoreStats> {
        Err(Error::new(ErrorKind::Unsupported, "a run counts nothing"))
    }

    async fn scan(&self, _: Option<&ScanCursor>, _: usize) -> Result<ScanPage> {
        Err(Error::new(ErrorKind::Unsupported, "a run scans nothing"))
    }
}

/// A process's store, whose heartbeats can get lost before they are sent.
#[derive(Debug)]
pub(crate) struct Heart<S> {
    pub(crate) inner: S,
    pub(crate) still: bool,
}

#[deny(clippy::missing_trait_methods)]
impl<S: IdempotencyStore> IdempotencyStore for Heart<S> {
    retryproof_testkit::forward! {
        inner: acquire, peek, wait_for_change, complete, release, profile
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        if self.still {
            Ok(FencedWrite::Applied)
        } else {
            self.inner.extend(id, owner, lease).await
        }
    }
}
