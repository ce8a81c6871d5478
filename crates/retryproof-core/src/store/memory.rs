// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStore`]: records in this process, spread over shards, bounded in number and bytes.
//!
//! A record's shard follows from a keyed hash of scope and key, and every transition is one short section under that
//! shard's lock (`shard.rs`). Look-ups borrow the identity and allocate nothing; a replay hands out a window of the
//! record's one allocation (`record.rs`). The table grows without a stall (`table.rs`), a wheel finds what has expired
//! (`wheel.rs`), and the bounds are kept without a counter that all cores share (`budget.rs`).

use std::fmt;
use std::future::poll_fn;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};
use crate::payload::StoredResult;
use crate::store::{
    AcquireRequest, Acquired, Completion, Fenced, Grant, IdempotencyStore, Standing, StoreProfile,
};

mod budget;
mod builder;
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
use shard::{Granted, Shard, Wanted};
use sync::{Mutex, MutexGuard};
use time::{Time, nanos, until};

/// No place: the end of a list.
const NONE: u32 = u32::MAX;
/// In no list of the wheel.
const UNFILED: u32 = u32::MAX - 1;
/// Most slots that a grant looks at for expired records on its way out.
const TIDY: usize = 4;

/// Keeps records in this process; they go with it.
///
/// # Bounds
/// At most [`max_records`](MemoryStoreBuilder::max_records) records (1,000,000) in
/// [`max_bytes`](MemoryStoreBuilder::max_bytes) bytes (1 GiB). A new key that finds no room even after expired records
/// are reclaimed is refused with [`ErrorKind::Full`]; a live record is never evicted (STO-1). Known keys are served all
/// the same, and so is whoever holds a lease: **a completion is never refused for room**, so the bytes may exceed their
/// bound by the results of the leases that were running, and until records expire no new key is granted. A single value
/// larger than the whole bound is [`ErrorKind::TooLarge`].
///
/// # Expiry
/// Judged to the nanosecond by the monotonic clock when a record is met (ACQ-7, CMP-6). Expired records are reclaimed
/// by later grants, a few at a time, by [`Purge`](crate::store::Purge), and when the store is full. Memory that was used once is kept
/// for later records: the index stays as large as the store has been full, 36 bytes a record.
///
/// # Tokens
/// Drawn from a counter that each shard seeds with the wall clock in microseconds when the store is made: they grow over
/// release, takeover, purge, and over a restart unless the wall clock steps back across it (ACQ-10).
///
/// # Waiting
/// Pushed: completion, release and takeover wake the waiters (ACQ-4). [`changed`](IdempotencyStore::changed) sleeps on
/// tokio's timer, so it wants a runtime with time enabled; nothing else here does.
///
/// # Panics
/// Making one panics when the operating system has no random bytes to give, which key the hash against aimed keys.
pub struct MemoryStore {
    shards: Box<[Padded]>,
    /// Shards minus one; their number is a power of two.
    mask: usize,
    seed: u64,
    shared_seed: SharedSeed,
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

    /// The identity's shard, and what is left of the hash for the table in it.
    #[inline(always)]
    fn locate(&self, id: &Identity) -> (&Mutex<Shard>, u32) {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared_seed);
        // The hash need not tell ("ab", "c") from ("a", "bc"), the comparison does (ID-2).
        hasher.write(id.scope().as_str().as_bytes());
        hasher.write(id.key().expose().as_bytes());
        let hash = hasher.finish();
        #[expect(clippy::cast_possible_truncation, reason = "one half picks the shard, the other the bucket")]
        let (high, low) = ((hash >> 32) as usize, hash as u32);
        (&self.shards[high & self.mask].0, low)
    }

    /// A replay is the whole of this; everything else goes on in [`grant`](Self::grant).
    #[inline(always)]
    fn acquire_now(&self, id: &Identity, req: &AcquireRequest) -> Poll<Result<Acquired>> {
        let (shard, hash) = self.locate(id);
        let now = self.time.read();
        let mut locked = shard.lock();
        match locked.replay(id, hash, now, &self.time) {
            Some(replay) => {
                drop(locked);
                match replay.into_value() {
                    Ok(value) => Poll::Ready(Ok(Acquired::Complete(StoredResult::new(value, None)))),
                    Err(replay) => with_fingerprint(replay),
                }
            }
            None => self.grant(id, req, (shard, hash), locked, now),
        }
    }

    #[inline(never)]
    fn grant<'a>(
        &'a self,
        id: &Identity,
        req: &AcquireRequest,
        (shard, hash): (&'a Mutex<Shard>, u32),
        mut locked: MutexGuard<'a, Shard>,
        read: Instant,
    ) -> Poll<Result<Acquired>> {
        let now = self.time.nanos(read);
        let mut searched = false;
        loop {
            let wanted = Wanted {
                owner: req.owner,
                expires: now.saturating_add(nanos(req.lease)),
                purge_after: now.saturating_add(nanos(req.ttl)),
                has_fingerprint: req.fingerprint.is_some(),
            };
            let (granted, left) = locked.grant(id, hash, now, wanted, &self.budget);
            let litter = locked.has_litter(now).then(|| locked.sweep_some(now, TIDY, &self.budget));
            drop(locked);
            left.settle();
            drop(litter);
            return Poll::Ready(Ok(match granted {
                Granted::Yes { token, took_over } => {
                    Acquired::Granted(Grant::new(FencingToken::new(token), req.lease, took_over))
                }
                Granted::Busy { expires, token } => {
                    Acquired::Busy { remaining: until(expires, now), token: FencingToken::new(token) }
                }
                Granted::Full { bytes } if !searched && self.make_room(now, bytes) => {
                    searched = true;
                    locked = shard.lock();
                    // Anything may have happened meanwhile.
                    if let Some(replay) = locked.replay(id, hash, read, &self.time) {
                        drop(locked);
                        return with_fingerprint(replay);
                    }
                    continue;
                }
                Granted::Full { .. } => return Poll::Ready(Err(self.full(id))),
            }));
        }
    }

    fn look_now(&self, id: &Identity) -> Poll<Result<Standing>> {
        let (shard, hash) = self.locate(id);
        let now = self.time.read();
        let mut locked = shard.lock();
        if let Some(replay) = locked.replay(id, hash, now, &self.time) {
            drop(locked);
            return match replay.into_value() {
                Ok(value) => Poll::Ready(Ok(Standing::Complete(StoredResult::new(value, None)))),
                Err(replay) => Poll::Ready(Ok(Standing::Complete(replay.into_result()))),
            };
        }
        let now = self.time.nanos(now);
        Poll::Ready(Ok(match locked.holder(id, hash) {
            Some((expires, token)) if expires > now => {
                Standing::Busy { remaining: until(expires, now), token: FencingToken::new(token) }
            }
            _ => Standing::Absent,
        }))
    }

    #[cold]
    fn full(&self, id: &Identity) -> Error {
        Error::new(ErrorKind::Full, "the memory store is full of live records and takes no new key")
            .during("acquire")
            .for_identity(id)
            .with("max records", self.max_records)
            .with("max bytes", self.max_bytes)
    }

    #[inline]
    fn complete_now(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        if done.value.len() as u64 > self.max_bytes {
            return Err(self.too_large(id, done.value.len()));
        }
        let (shard, hash) = self.locate(id);
        let now = self.time.nanos(self.time.read());
        // Laid out before the lock is taken; dropped, like all that goes, after it is released.
        let expires = now.saturating_add(nanos(done.ttl));
        let record = Done::build(owner, expires, id.key(), done.fingerprint.as_ref(), &done.value);
        let (fenced, left) = shard.lock().complete(id, hash, owner, record, &self.budget);
        left.settle();
        Ok(fenced)
    }

    #[cold]
    fn too_large(&self, id: &Identity, bytes: usize) -> Error {
        Error::new(ErrorKind::TooLarge, "the value alone is larger than the memory store may grow")
            .during("complete")
            .for_identity(id)
            .with("bytes", bytes)
            .with("max bytes", self.max_bytes)
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
        let records: u64 = self.shards.iter().map(|shard| u64::from(shard.0.lock().counts().0)).sum();
        f.debug_struct("MemoryStore")
            .field("records", &records)
            .field("max_records", &self.max_records)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for MemoryStore {
    fn acquire(&self, id: &Identity, req: &AcquireRequest) -> impl Future<Output = Result<Acquired>> + Send {
        // Not `async`: the answer is written once, where the caller wants it, instead of being moved there.
        poll_fn(move |_| self.acquire_now(id, req))
    }

    fn look(&self, id: &Identity) -> impl Future<Output = Result<Standing>> + Send {
        poll_fn(move |_| self.look_now(id))
    }

    async fn changed(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        let (shard, hash) = self.locate(id);
        let now = self.time.nanos(self.time.read());
        // Look and subscription are one step under the lock: a change comes before both or wakes us.
        let subscribed = shard.lock().subscribe(id, hash, now, seen.get());
        if let Some((expires, ended)) = subscribed {
            ended.wait(at_most.min(until(expires, now))).await;
        }
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<Fenced> {
        let (shard, hash) = self.locate(id);
        let expires = self.time.nanos(self.time.read()).saturating_add(nanos(lease));
        let own = shard.lock().extend(id, hash, owner, expires);
        Ok(if own { Fenced::Done } else { Fenced::Lost })
    }

    async fn complete(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        self.complete_now(id, owner, done)
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<Fenced> {
        let (shard, hash) = self.locate(id);
        let (fenced, left) = shard.lock().release(id, hash, owner, &self.budget);
        left.settle();
        Ok(fenced)
    }

    fn profile(&self) -> StoreProfile {
        let max_value = usize::try_from(self.max_bytes).unwrap_or(usize::MAX);
        StoreProfile::new("memory").with_reclaim().with_max_value(max_value)
    }
}
