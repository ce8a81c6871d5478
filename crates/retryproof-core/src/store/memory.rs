// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStore`]: records in this process, spread over shards, bounded in number and bytes.
//!
//! A record's shard follows from a keyed hash of scope and key, and every transition is one short
//! section under that shard's lock (`shard.rs`). Look-ups borrow the identity and allocate nothing;
//! a replay hands out a window of the record's one allocation (`record.rs`). The table grows
//! without a stall (`table.rs`), a wheel finds what has expired (`wheel.rs`), and the bounds are
//! kept without a counter that all cores share (`budget.rs`).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::StoredResult;
use crate::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Grant, IdempotencyStore, Peeked,
    StoreProfile,
};

mod budget;
mod builder;
mod busy;
mod chunked;
mod record;
mod scopes;
mod shard;
mod sweep;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod time;
mod upkeep;
mod wait;
mod wheel;

use budget::Budget;
pub use builder::MemoryStoreBuilder;
use record::{Done, Replay};
use shard::{Granted, Shard};
use sync::{Mutex, MutexGuard};
use time::{Now, Time, after, nanos};

/// No place: the end of a list.
const NONE: u32 = u32::MAX;
/// In no list of the wheel.
const UNFILED: u32 = u32::MAX - 1;
/// Most slots that every eighth grant looks at for expired records on its way out.
const TIDY: usize = 32;

/// Keeps records in this process; they go with it.
///
/// # Bounds
/// At most [`max_records`](MemoryStoreBuilder::max_records) records (1,000,000) in
/// [`max_bytes`](MemoryStoreBuilder::max_bytes) bytes (1 GiB). A new key that finds no room even
/// after expired records are reclaimed is refused with [`ErrorKind::Full`]; a live record is never
/// evicted (STO-1). Known keys are served all the same, and so is whoever holds a lease: **a
/// completion is never refused for room**, so the bytes may exceed their bound by the results of
/// the leases that were running, and until records expire no new key is granted. A single value
/// larger than the whole bound is [`ErrorKind::TooLarge`].
///
/// # Expiry
/// Judged to the nanosecond by the monotonic clock when a record is met (ACQ-7, CMP-6). Expired
/// records are reclaimed by later grants, a few at a time, by [`Purge`](crate::store::Purge), and
/// when the store is full. Memory that was used once is kept for later records: the index stays as
/// large as the store has been full, 36 bytes a record.
///
/// # Tokens
/// Drawn from a counter that each shard seeds with the wall clock in microseconds when the store is
/// made: they grow over release, takeover, purge, and over a restart unless the wall clock steps
/// back across it (ACQ-10).
///
/// # Waiting
/// Pushed: completion, release and takeover wake the waiters (ACQ-4).
/// [`wait_for_change`](IdempotencyStore::wait_for_change) sleeps on tokio's timer, so it wants a runtime with time
/// enabled; nothing else here does.
pub struct MemoryStore {
    shards: Box<[Padded]>,
    /// Shards minus one; their number is a power of two.
    mask: usize,
    time: Time,
    budget: Budget,
    max_records: usize,
    max_bytes: u64,
}

/// Two cache lines, which is what processors fetch at a time: shards do not slow each other down.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

impl MemoryStore {
    /// An empty store with the default bounds, on the host's monotonic clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// An empty store on an injected clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::builder().clock(clock).build()
    }

    /// Starts from the default bounds.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// The identity's shard, and what is left of its hash for the table in it. The hash is keyed,
    /// so a client cannot aim keys at one shard or one chain.
    #[inline(always)]
    fn locate(&self, id: &Identity) -> (&Mutex<Shard>, u32) {
        let hash = id.keyed_hash();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "one half picks the shard, the other the bucket"
        )]
        let (high, low) = ((hash >> 32) as usize, hash as u32);
        (&self.shards[high & self.mask].0, low)
    }

    /// A replay is the whole of this; everything else goes on in [`grant`](Self::grant).
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
                    let (answer, left) = locked.contend(at, id, req, now, &self.budget);
                    drop(locked);
                    left.settle();
                    return Poll::Ready(Ok(match answer {
                        Granted::Yes { token, took_over } => granted(token, took_over),
                        Granted::Busy { expires, token } => {
                            let remaining = expires.saturating_duration_since(now);
                            Acquired::Busy { remaining, token: FencingToken::new(token) }
                        }
                    }));
                }
                None => match locked.first(id, req, now, &self.budget) {
                    Ok(token) => {
                        if locked.has_litter(now, &self.time) {
                            self.tidy(locked, now);
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
            // Anything may have happened meanwhile: another caller may have brought this very key
            // in.
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

    fn look_now(&self, id: &Identity) -> Poll<Result<Peeked>> {
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
        Poll::Ready(Ok(match found.and_then(|at| locked.holder(at)) {
            Some((expires, token)) if expires > now => Peeked::Busy {
                remaining: expires.saturating_duration_since(now),
                token: FencingToken::new(token),
            },
            _ => Peeked::Absent,
        }))
    }

    /// Reclaims a little, and frees it after the lock.
    #[cold]
    fn tidy(&self, mut locked: MutexGuard<'_, Shard>, now: Instant) {
        let litter = locked.sweep_some(self.time.nanos(now), TIDY, &self.budget);
        drop(locked);
        drop(litter);
    }

    #[cold]
    fn full(&self, id: &Identity) -> Error {
        Error::new(ErrorKind::Full, "the memory store is full of live records and takes no new key")
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
            return Poll::Ready(Err(self.too_large(id, done.value.len())));
        }
        let (shard, hash) = self.locate(id);
        let now = self.time.nanos(self.time.read());
        // Laid out before the lock is taken; dropped, like all that goes, after it is released.
        let expires = now + nanos(done.ttl);
        let record = Done::build(owner, expires, id.key(), done.fingerprint.as_ref(), &done.value);
        let mut record = Some(record);
        let (fenced, left) =
            shard.lock().complete(id, hash, owner, (&mut record, expires), &self.budget);
        if let Some(ended) = left.ended {
            ended.fire();
        }
        Poll::Ready(Ok(fenced))
    }

    #[cold]
    fn too_large(&self, id: &Identity, bytes: usize) -> Error {
        Error::new(ErrorKind::TooLarge, "the value alone is larger than the memory store may grow")
            .during("complete")
            .for_identity(id)
            .with("bytes", bytes)
            .with("limit", self.max_bytes)
    }
}

/// A replay of a result with a fingerprint; right for one without, too.
#[inline(never)]
fn with_fingerprint(replay: Replay) -> Poll<Result<Acquired>> {
    Poll::Ready(Ok(Acquired::Complete(replay.into_result())))
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
        // Not `async`: the answer is written once, where the caller wants it, instead of being
        // moved there.
        poll_fn(move |_| self.acquire_now(id, req))
    }

    fn peek(&self, id: &Identity) -> impl Future<Output = Result<Peeked>> + Send {
        poll_fn(move |_| self.look_now(id))
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        let (shard, hash) = self.locate(id);
        let now = self.time.read();
        // Look and subscription are one step under the lock: a change comes before both or wakes
        // us.
        let subscribed = shard.lock().subscribe(id, hash, now, seen.get());
        if let Some((expires, ended)) = subscribed {
            ended.wait(at_most.min(expires.saturating_duration_since(now))).await;
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
        let max_value = usize::try_from(self.max_bytes).unwrap_or(usize::MAX);
        StoreProfile::new("memory").with_reclaim().with_max_value(max_value).with_immediate()
    }
}
