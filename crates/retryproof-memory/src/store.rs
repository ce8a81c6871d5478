// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStore`]: implements the store contract on top of the shards.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use retryproof_core::clock::{Clock, Instant};
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, IdempotencyStore, Peeked,
    StoreProfile,
};
use retryproof_core::{
    Error, ErrorKind, FencingToken, Identity, IdentitySecret, OwnerId, Result, SharedStore,
    StoredResult,
};

use crate::budget::Budget;
use crate::record::{Done, Replay};
use crate::shard::{Leftover, Shard};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Now, StoreTime, after, nanos};

/// The maximum number of slots that a grant checks for expired records before it returns.
const SWEEP_LIMIT: usize = 32;

/// Keeps records in the memory of this process. The records are lost when the process ends.
///
/// # When to use
/// Use the memory store for tests, for demonstrations, and for a service that runs as a single
/// instance and can afford to lose its results on a restart. Several instances need a store that
/// they share.
///
/// ```
/// use retryproof_core::{IdempotencyConfig, IdempotencyEngine};
/// use retryproof_memory::MemoryStore;
///
/// let store = MemoryStore::builder().max_records(10_000).max_bytes(64 << 20).build();
/// let engine = IdempotencyEngine::new(store);
/// ```
///
/// # Bounds
/// The store keeps at most [`max_records`](crate::MemoryStoreBuilder::max_records) records (default
/// 1,000,000) in [`max_bytes`](crate::MemoryStoreBuilder::max_bytes) bytes (default 1 GiB). If
/// there is no space for a new key even after expired records are reclaimed, the acquire fails with
/// [`ErrorKind::Full`]. A live record is never evicted (STO-1).
///
/// A full store still serves existing keys, and **never refuses a completion for lack of space**.
/// The results of leases that were already granted can therefore exceed `max_bytes`; no new key
/// then gets a lease until enough records have expired or been deleted. A single value larger than
/// the whole bound fails with [`ErrorKind::TooLarge`].
///
/// # Expiry
/// Each access compares a record's expiry with the monotonic clock, to the nanosecond (ACQ-7,
/// CMP-6). Later grants reclaim expired records a few at a time. A grant that finds the store full
/// reclaims expired records until there is space. [`Purge`](retryproof_core::store::Purge) reclaims
/// all expired records, up to its limit. The index never shrinks. It takes 36 bytes for each record
/// that the store held at its peak, and up to twice as much if operators delete records before
/// their ttl is over.
///
/// # Tokens
/// Each shard takes tokens from a counter that starts at the wall-clock time in microseconds.
/// Tokens keep growing across releases, takeovers and purges, and across a restart unless the wall
/// clock was set back (ACQ-10).
///
/// # Holders
/// The store keeps a note about the holder (REC-2) only if the request has a note. The engine sends
/// a note only for calls with a trace, because every holder is in this process anyway. While a
/// record is in progress, the store also reports the time since the grant.
///
/// # Waiting
/// A completion, release or takeover wakes the waiters immediately (ACQ-4).
/// [`wait_for_change`](IdempotencyStore::wait_for_change) sleeps on tokio's timer and needs a
/// runtime with time enabled. No other call needs a runtime.
pub struct MemoryStore {
    pub(crate) shards: Box<[PaddedShard]>,
    /// The number of shards minus one. The number of shards is a power of two.
    pub(crate) mask: usize,
    pub(crate) time: StoreTime,
    pub(crate) budget: Budget,
    pub(crate) max_records: usize,
    pub(crate) max_bytes: u64,
    pub(crate) identity_secret: Option<IdentitySecret>,
}

/// A shard is aligned to two cache lines, because processors prefetch lines in pairs. Threads on
/// different shards therefore do not slow each other down.
#[repr(align(128))]
pub(crate) struct PaddedShard(pub(crate) Mutex<Shard>);

impl MemoryStore {
    /// Creates an empty store that has the default bounds and uses the host's monotonic clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Creates an empty store that has the default bounds and uses the given clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::builder().clock(clock).build()
    }

    /// Returns the identity's shard, and the half of the identity's hash that finds the record in
    /// the shard's table. The hash is keyed, so a client cannot aim keys at one shard or one chain.
    #[inline(always)]
    pub(crate) fn locate(&self, id: &Identity) -> (&Mutex<Shard>, u32) {
        let hash = id.keyed_hash();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "one half selects the shard, and the other half selects the bucket"
        )]
        let (high, low) = ((hash >> 32) as usize, hash as u32);
        (&self.shards[high & self.mask].0, low)
    }

    /// Returns a replay directly, and leaves all other cases to [`grant`](Self::grant).
    #[inline(always)]
    fn acquire_now(&self, id: &Identity, req: &AcquireRequest) -> Poll<Result<Acquired>> {
        let (shard, hash) = self.locate(id);
        let now = self.time.read();
        let locked = shard.lock();
        match locked.replay_at_once(id, hash, now) {
            Ok(replay) => {
                drop(locked);
                match replay.into_value() {
                    Ok(value) => {
                        Poll::Ready(Ok(Acquired::Complete(StoredResult::new(value, None))))
                    }
                    Err(replay) => with_fingerprint(replay),
                }
            }
            Err(found) => self.grant(id, req, locked, found, now),
        }
    }

    #[inline(never)]
    fn grant<'a>(
        &'a self,
        id: &Identity,
        req: &AcquireRequest,
        mut locked: MutexGuard<'a, Shard>,
        mut found: Option<u32>,
        now: Instant,
    ) -> Poll<Result<Acquired>> {
        let granted = |token, took_over| {
            Acquired::Granted(Grant::new(FencingToken::new(token), req.lease, took_over))
        };
        if let Some(replay) = found.and_then(|at| locked.replay_from(at, now, &self.time)) {
            drop(locked);
            return with_fingerprint(replay);
        }
        let mut searched = false;
        loop {
            let bytes = match found {
                Some(at) => {
                    if let Some(lease) = locked.live_for_another(at, req, now) {
                        drop(locked);
                        return Poll::Ready(Ok(Acquired::Busy(lease)));
                    }
                    let mut left = Leftover::default();
                    let (token, took_over) =
                        locked.contend(at, id, req, now, &self.budget, &mut left);
                    drop(locked);
                    left.settle();
                    return Poll::Ready(Ok(granted(token, took_over)));
                }
                None => match locked.first(id, req, now, &self.budget) {
                    Ok(token) => {
                        if locked.is_sweep_due(now, &self.time) {
                            self.sweep_some(locked, now);
                        }
                        return Poll::Ready(Ok(granted(token, false)));
                    }
                    Err(bytes) => bytes,
                },
            };
            drop(locked);
            let room =
                !searched && self.make_room(Now { at: now, nanos: self.time.nanos(now) }, bytes);
            searched = true;
            let (shard, hash) = self.locate(id);
            locked = shard.lock();
            // Search again, because another caller might have inserted the same key while the lock
            // was released.
            match locked.replay(id, hash, now, &self.time) {
                Ok(replay) => {
                    drop(locked);
                    return with_fingerprint(replay);
                }
                Err(None) if !room => {
                    drop(locked);
                    return Poll::Ready(Err(self.full(id)));
                }
                Err(slot) => found = slot,
            }
        }
    }

    fn peek_now(&self, id: &Identity) -> Poll<Result<Peeked>> {
        let (shard, hash) = self.locate(id);
        let now = self.time.read();
        let mut locked = shard.lock();
        let found = match locked.replay(id, hash, now, &self.time) {
            Ok(replay) => {
                drop(locked);
                return Poll::Ready(Ok(Peeked::Complete(match replay.into_value() {
                    Ok(value) => StoredResult::new(value, None),
                    Err(replay) => replay.into_result(),
                })));
            }
            Err(found) => found,
        };
        let live = found.and_then(|at| locked.live(at, now));
        Poll::Ready(Ok(live.map_or(Peeked::Absent, Peeked::Busy)))
    }

    /// Reclaims a few expired records, and frees them after the lock is released.
    #[cold]
    fn sweep_some(&self, mut locked: MutexGuard<'_, Shard>, now: Instant) {
        let reclaimed = locked.sweep_some(self.time.nanos(now), SWEEP_LIMIT, &self.budget);
        drop(locked);
        drop(reclaimed);
    }

    #[cold]
    fn full(&self, id: &Identity) -> Error {
        Error::new(ErrorKind::Full, "no new key can run, because the memory store is full")
            .during("acquire")
            .for_identity(id)
            .with("max_records", self.max_records)
            .with("max_bytes", self.max_bytes)
    }

    fn complete_now(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Poll<Result<FencedWrite>> {
        if done.value.len() as u64 > self.max_bytes {
            return Poll::Ready(Err(self.too_large("complete", id, done.value.len())));
        }
        let (shard, hash) = self.locate(id);
        let now = self.time.nanos(self.time.read());
        // Build the record before taking the lock. If the record is not used, it is dropped after
        // the lock is released.
        let expires = now + nanos(done.ttl);
        let mut record = Some(Done::build(owner, expires, id.key(), done));
        let (fenced, left) =
            shard.lock().complete(id, hash, owner, (&mut record, expires), &self.budget);
        if let Some(ended) = left.ended {
            ended.fire();
        }
        Poll::Ready(Ok(match fenced {
            Some(fenced) => fenced,
            None => self.complete_with_extra(id, owner, done, expires),
        }))
    }

    /// Completes a record that carries a note or a takeover count. The COMPLETE record keeps both.
    #[cold]
    fn complete_with_extra(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
        expires: u64,
    ) -> FencedWrite {
        let (shard, hash) = self.locate(id);
        loop {
            let extra = shard.lock().extra(id, hash, owner).cloned();
            let built = Done::build_with(owner, expires, id.key(), done, extra.as_ref());
            let mut record = Some(built);
            let mut locked = shard.lock();
            // The owner might have repeated its acquire with a different note after `extra` was
            // read.
            if locked.extra(id, hash, owner) != extra.as_ref() {
                continue;
            }
            let _extra = locked.take_extra(id, hash, owner, &self.budget);
            let (fenced, left) =
                locked.complete(id, hash, owner, (&mut record, expires), &self.budget);
            drop(locked);
            if let Some(ended) = left.ended {
                ended.fire();
            }
            if let Some(fenced) = fenced {
                return fenced;
            }
        }
    }

    #[cold]
    pub(crate) fn too_large(&self, operation: &'static str, id: &Identity, bytes: usize) -> Error {
        Error::new(ErrorKind::TooLarge, "the value is larger than the memory store's byte limit")
            .during(operation)
            .for_identity(id)
            .with("bytes", bytes)
            .with("limit", self.max_bytes)
    }
}

/// Returns a replay that can have a fingerprint.
#[inline(never)]
fn with_fingerprint(replay: Replay) -> Poll<Result<Acquired>> {
    Poll::Ready(Ok(Acquired::Complete(replay.into_result())))
}

/// The conversion keeps all capabilities of the store.
impl From<MemoryStore> for SharedStore {
    fn from(store: MemoryStore) -> Self {
        Self::builder(store).with_purge().with_inspect().with_force().build()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records: u64 =
            self.shards.iter().map(|shard| u64::from(shard.0.lock().counts().0)).sum();
        f.debug_struct("MemoryStore")
            .field("records", &records)
            .field("max_records", &self.max_records)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for MemoryStore {
    fn acquire(
        &self,
        id: &Identity,
        req: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + Send {
        // This function is not an `async fn`, because an `async fn` would move the answer.
        // `poll_fn` writes the answer directly to the caller's destination.
        poll_fn(move |_| self.acquire_now(id, req))
    }

    fn peek(&self, id: &Identity) -> impl Future<Output = Result<Peeked>> + Send {
        poll_fn(move |_| self.peek_now(id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        limit: Duration,
    ) -> Result<()> {
        let (shard, hash) = self.locate(id);
        let now = self.time.read();
        // Check the record and subscribe in one step under the lock. A change then either happens
        // before that step or wakes this call.
        let subscribed = shard.lock().subscribe(id, hash, now, seen.get());
        if let Some((expires, ended)) = subscribed {
            ended.wait(limit.min(expires.saturating_duration_since(now))).await;
        }
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let (shard, hash) = self.locate(id);
        let expires = after(self.time.read(), lease);
        let own = shard.lock().extend(id, hash, owner, expires);
        Ok(if own { FencedWrite::Applied } else { FencedWrite::NotOwner })
    }

    fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> impl Future<Output = Result<FencedWrite>> + Send {
        poll_fn(move |_| self.complete_now(id, owner, done))
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let (shard, hash) = self.locate(id);
        let (fenced, left) = shard.lock().release(id, hash, owner, &self.budget);
        left.settle();
        Ok(fenced)
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("memory")
            .with_immediate()
            .with_reclaim()
            .with_durations(Duration::from_nanos(1), Duration::from_nanos(1))
            .with_max_value(usize::try_from(self.max_bytes).unwrap_or(usize::MAX))
            .with_identity_secret(self.identity_secret.clone())
    }
}
