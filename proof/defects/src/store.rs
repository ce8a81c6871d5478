// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Defective`]: a store with a defect. It consists of calls to a correct store.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, HolderNote, Inspect, LiveLease,
    Peeked, Purge, RecordSummary, ScanCursor, ScanPage, StoreProfile, StoreStats,
};
use retryproof::{
    Error, ErrorKind, FencingToken, IdempotencyStore, Identity, Opened, OwnerId, Payload, Result,
    SharedStore, StoredResult,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Defect;

/// How long a waiter that is not woken pauses between two reads: the longest pause that ACQ-4
/// allows.
const POLL: Duration = Duration::from_millis(50);
/// How long an unfinished record lasts if purges remove it too early, with [`Defect::EarlyPurge`].
const BRIEF: Duration = Duration::from_millis(1);
/// The time between reading that a key is free and taking the key, with [`Defect::GetThenSet`].
const BETWEEN: Duration = Duration::from_millis(2);
/// The token of every grant, with [`Defect::RepeatedToken`].
const TOKEN: FencingToken = FencingToken::new(1);

/// A store that breaks one promise, or none. Clones share what they have seen. A store that is
/// opened separately has seen only its own calls, like one in another process.
#[derive(Clone)]
pub struct Defective {
    inner: SharedStore,
    defect: Option<Defect>,
    seen: Arc<Seen>,
}

/// What the store has seen of the calls.
#[derive(Default)]
struct Seen {
    granted: Mutex<HashMap<(Identity, OwnerId), Instant>>,
    waited_for: Mutex<HashSet<Identity>>,
    changed: Mutex<HashMap<Identity, Arc<Notify>>>,
}

impl Seen {
    /// Returns what the changes of this identity in this process notify.
    fn changes(&self, id: &Identity) -> Arc<Notify> {
        Arc::clone(self.changed.lock().entry(id.clone()).or_default())
    }
}

impl Defective {
    /// Plants a defect in a store.
    #[must_use]
    pub fn new(inner: SharedStore, defect: Option<Defect>) -> Self {
        Self { inner, defect, seen: Arc::default() }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Returns the request as it is sent to the wrapped store.
    fn asked(&self, req: &AcquireRequest) -> AcquireRequest {
        let mut req = req.clone();
        match self.defect {
            Some(Defect::EarlyPurge) => req.ttl = BRIEF,
            Some(Defect::EarlyTakeover) => req.lease /= 2,
            // Write the owner into the note, so that every reader of the record can find the owner.
            Some(Defect::NoOwnerCheck | Defect::GetThenSet) => {
                req.holder = Some(HolderNote::new(req.owner, req.lease, None, &hex(req.owner)));
            }
            _ => {}
        }
        req
    }

    fn granted(&self, id: &Identity, req: &AcquireRequest, grant: Grant) -> Acquired {
        if self.has(Defect::TtlFromAcquire) {
            self.seen.granted.lock().insert((id.clone(), req.owner), Instant::now());
        }
        self.seen.changes(id).notify_waiters();
        let token = if self.has(Defect::RepeatedToken) { TOKEN } else { grant.token };
        let early = self.has(Defect::EarlyTakeover);
        let remaining = if early { req.lease } else { grant.remaining };
        Acquired::Granted(Grant::new(token, remaining, grant.took_over))
    }

    fn busy(&self, id: &Identity, mut lease: LiveLease) -> LiveLease {
        if self.has(Defect::FingerprintDropped) {
            self.seen.waited_for.lock().insert(id.clone());
        }
        if self.has(Defect::RepeatedToken) {
            lease.token = TOKEN;
        }
        lease
    }

    fn replay(&self, id: &Identity, stored: StoredResult) -> StoredResult {
        let drops =
            self.has(Defect::FingerprintDropped) && self.seen.waited_for.lock().contains(id);
        match stored.open(None) {
            Ok(Opened::Value(payload)) if self.has(Defect::AlteredReplay) => {
                let body = [payload.body(), b" "].concat();
                let altered = Payload::new(payload.codec(), payload.schema(), &body);
                StoredResult::new(altered.into_envelope(), stored.fingerprint().copied())
            }
            Ok(Opened::Value(payload)) if drops => StoredResult::new(payload.into_envelope(), None),
            _ => stored,
        }
    }

    /// Acquires a key; with [`Defect::GetThenSet`], even from an owner that took it after the read.
    async fn take(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        if self.has(Defect::GetThenSet) && matches!(self.inner.peek(id).await?, Peeked::Absent) {
            sleep(BETWEEN).await;
            if let Acquired::Busy(lease) = self.inner.acquire(id, req).await?
                && let Some(holder) = owner(&lease)
            {
                let _: FencedWrite = self.inner.release(id, holder).await?;
            }
        }
        self.inner.acquire(id, req).await
    }

    /// Returns the recorded owner, in whose name a refused call is repeated if owners are not
    /// checked.
    async fn recorded(&self, id: &Identity, refused: FencedWrite) -> Result<Option<OwnerId>> {
        if !self.has(Defect::NoOwnerCheck) || refused != FencedWrite::NotOwner {
            return Ok(None);
        }
        let found = self.inner.peek(id).await?;
        Ok(if let Peeked::Busy(lease) = found { owner(&lease) } else { None })
    }

    async fn is_over(&self, id: &Identity, seen: FencingToken) -> Result<bool> {
        let found = self.inner.peek(id).await?;
        Ok(!matches!(found, Peeked::Busy(lease) if lease.token == seen))
    }

    /// Waits, and reads the record at intervals of `poll`.
    async fn wait(
        &self,
        (id, seen): (&Identity, FencingToken),
        until: Instant,
        poll: Option<Duration>,
    ) -> Result<()> {
        let changed = if poll.is_some() { Arc::default() } else { self.seen.changes(id) };
        loop {
            let woken = changed.notified();
            if self.is_over(id, seen).await? || Instant::now() >= until {
                return Ok(());
            }
            let next = poll.map_or(until, |poll| until.min(Instant::now() + poll));
            let _ = timeout_at(next, woken).await;
        }
    }
}

fn hex(owner: OwnerId) -> String {
    owner.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the owner that holds the lease, from its note.
fn owner(lease: &LiveLease) -> Option<OwnerId> {
    let owner = u128::from_str_radix(lease.holder.as_ref()?.label()?, 16).ok()?;
    Some(OwnerId::from_bytes(owner.to_be_bytes()))
}

impl fmt::Debug for Defective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Defective").field("defect", &self.defect).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Defective {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        Ok(match self.take(id, &self.asked(req)).await? {
            Acquired::Granted(grant) => self.granted(id, req, grant),
            Acquired::Complete(stored) => Acquired::Complete(self.replay(id, stored)),
            Acquired::Busy(lease) => Acquired::Busy(self.busy(id, lease)),
        })
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        Ok(match self.inner.peek(id).await? {
            Peeked::Absent => Peeked::Absent,
            Peeked::Busy(lease) => Peeked::Busy(self.busy(id, lease)),
            Peeked::Complete(stored) => Peeked::Complete(self.replay(id, stored)),
        })
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        let until = Instant::now() + at_most;
        match self.defect {
            Some(Defect::NoWakeUp) => self.wait((id, seen), until, Some(POLL)).await,
            Some(Defect::NoPoll) => self.wait((id, seen), until, None).await,
            Some(Defect::Deaf) => {
                sleep(at_most).await;
                Ok(())
            }
            Some(Defect::RepeatedToken) => match self.inner.peek(id).await? {
                Peeked::Busy(lease) => self.inner.wait_for_change(id, lease.token, at_most).await,
                _ => Ok(()),
            },
            _ => self.inner.wait_for_change(id, seen, at_most).await,
        }
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        match self.defect {
            Some(Defect::NoHeartbeat) => return Ok(FencedWrite::Applied),
            Some(Defect::LateHeartbeat) => {
                let (inner, id) = (self.inner.clone(), id.clone());
                // The heartbeat is sent when half of the lease is over. After this pause, the lease
                // has ended.
                tokio::spawn(async move {
                    sleep(lease * 3 / 5).await;
                    let _: Result<FencedWrite> = inner.extend(&id, owner, lease).await;
                });
                return Ok(FencedWrite::Applied);
            }
            _ => {}
        }
        let lease = if self.has(Defect::EarlyTakeover) { lease / 2 } else { lease };
        let answer = self.inner.extend(id, owner, lease).await?;
        match self.recorded(id, answer).await? {
            Some(recorded) => self.inner.extend(id, recorded, lease).await,
            None => Ok(answer),
        }
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let mut done = done.clone();
        match self.defect {
            Some(Defect::TimeFenced) if matches!(self.inner.peek(id).await?, Peeked::Absent) => {
                return Ok(FencedWrite::NotOwner);
            }
            Some(Defect::TtlFromAcquire) => {
                let granted = self.seen.granted.lock().get(&(id.clone(), owner)).copied();
                let used = granted.map_or(Duration::ZERO, |granted| granted.elapsed());
                done.ttl = done.ttl.saturating_sub(used).max(BRIEF);
            }
            _ => {}
        }
        let answer = match self.inner.complete(id, owner, &done).await {
            Err(error)
                if self.has(Defect::LostReplyRefused) && error.kind() == ErrorKind::Unavailable =>
            {
                return Ok(FencedWrite::NotOwner);
            }
            answer => answer?,
        };
        let answer = match self.recorded(id, answer).await? {
            Some(recorded) => self.inner.complete(id, recorded, &done).await?,
            None => answer,
        };
        self.seen.changes(id).notify_waiters();
        Ok(answer)
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let answer = self.inner.release(id, owner).await?;
        let answer = match self.recorded(id, answer).await? {
            Some(recorded) => self.inner.release(id, recorded).await?,
            None => answer,
        };
        self.seen.changes(id).notify_waiters();
        Ok(answer)
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile().without_immediate()
    }
}

impl Purge for Defective {
    async fn purge(&self, limit: usize) -> Result<usize> {
        Ok(self.inner.purge(limit).await?.unwrap_or(0))
    }

    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        Ok(self.inner.claim_purge(at_most).await?.unwrap_or(false))
    }
}

impl Inspect for Defective {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        self.inner.get(id).await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.inner.stats().await?.ok_or_else(lacking)
    }

    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.inner.scan(after, limit).await?.ok_or_else(lacking)
    }
}

fn lacking() -> Error {
    Error::new(ErrorKind::Unsupported, "the wrapped store cannot be inspected")
}
