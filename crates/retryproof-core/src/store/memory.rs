// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryStore`]: records in this process, spread over shards, bounded in number and bytes.
//!
//! A record's shard follows from a keyed hash of scope and key, and every transition is one short section under that
//! shard's lock (`shard.rs`). Look-ups borrow the identity and allocate nothing; a replay hands out a window of the
//! record's one allocation (`record.rs`). The table grows without a stall (`table.rs`), a wheel finds what has expired
//! (`wheel.rs`), and the bounds are kept without a counter that all cores share (`budget.rs`).

use std::fmt;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::clock::{Clock, Instant, SystemClock, wall_clock_micros};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::Identity;
use crate::owner::{FencingToken, OwnerId};
use crate::store::{
    AcquireRequest, Acquired, Completion, Fenced, Grant, IdempotencyStore, Inspect, Purge, RecordState,
    RecordSummary, Standing, StoreProfile, StoreStats,
};

mod budget;
mod chunked;
mod record;
mod scopes;
mod shard;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait;
mod wheel;

use budget::Budget;
use record::Done;
use shard::{Found, Granted, Leftover, Reclaimed, Shard};
use sync::Mutex;

/// No place: the end of a list.
const NONE: u32 = u32::MAX;
/// In no list of the wheel.
const UNFILED: u32 = u32::MAX - 1;
/// Most records that are looked at or taken out under one hold of a shard's lock.
const BATCH: usize = 256;
/// Most slots that a grant looks at for expired records on its way out.
const TIDY: usize = 4;

const DEFAULT_RECORDS: usize = 1_000_000;
const DEFAULT_BYTES: u64 = 1 << 30;

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
/// by later grants, a few at a time, by [`Purge::purge`], and when the store is full. Memory that was used once is kept
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

/// The store's clock, in nanoseconds since some time before the store was made. The host's own is asked directly.
struct Time {
    epoch: Instant,
    injected: Option<Arc<dyn Clock>>,
}

impl Time {
    fn new(injected: Option<Arc<dyn Clock>>) -> Self {
        let now = injected.as_ref().map_or_else(|| SystemClock.now(), |clock| clock.now());
        // Some slack for a clock that a test has stopped before this moment.
        let epoch = now.checked_sub(Duration::from_secs(3_600)).unwrap_or(now);
        Self { epoch, injected }
    }

    #[inline]
    fn now(&self) -> u64 {
        let now = match &self.injected {
            None => SystemClock.now(),
            Some(clock) => clock.now(),
        };
        nanos(now.saturating_duration_since(self.epoch))
    }
}

#[inline]
fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

fn until(expires: u64, now: u64) -> Duration {
    Duration::from_nanos(expires.saturating_sub(now))
}

/// Makes a [`MemoryStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_records: usize,
    max_bytes: u64,
    capacity: usize,
    clock: Option<Arc<dyn Clock>>,
}

impl MemoryStoreBuilder {
    /// Most records, expired ones that are not reclaimed yet included. Default 1,000,000.
    pub fn max_records(mut self, records: usize) -> Self {
        self.max_records = records;
        self
    }

    /// Most bytes of all records with their keys, values and index entries, without the allocator's own overhead.
    /// Default 1 GiB. See the [store](MemoryStore#bounds) for what may exceed it.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Makes the index for so many records at once. It grows without stalls anyway; default 0.
    pub fn capacity(mut self, records: usize) -> Self {
        self.capacity = records;
        self
    }

    /// Judges expiry by this clock instead of the host's monotonic one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// An empty store. See the [store](MemoryStore#panics) for when this panics.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the operating system gives random bytes");
        let [seed, shared] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&random[at..at + 8]);
            u64::from_le_bytes(word)
        });
        let shards = shards();
        let capacity =
            u32::try_from(self.capacity.min(self.max_records).div_ceil(shards)).unwrap_or(NONE / 2);
        let first_token = wall_clock_micros();
        MemoryStore {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(first_token, capacity)))).collect(),
            mask: shards - 1,
            seed,
            shared_seed: SharedSeed::from_u64(shared),
            time: Time::new(self.clock),
            budget: Budget::new(self.max_records, self.max_bytes, shards),
            max_records: self.max_records,
            max_bytes: self.max_bytes,
        }
    }
}

/// Enough that two cores seldom want the same one. The model of the interleaving tests has to try all orders of locks,
/// so it gets one.
fn shards() -> usize {
    if cfg!(loom) {
        return 1;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (4 * cores).next_power_of_two().max(64)
}

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
        MemoryStoreBuilder {
            max_records: DEFAULT_RECORDS,
            max_bytes: DEFAULT_BYTES,
            capacity: 0,
            clock: None,
        }
    }

    /// The identity's shard, and what is left of the hash for the table in it.
    #[inline]
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

    #[inline]
    fn acquire_now(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        let mut searched = false;
        loop {
            let grant = shard::Grant {
                owner: req.owner,
                expires: now.saturating_add(nanos(req.lease)),
                purge_after: now.saturating_add(nanos(req.ttl)),
                has_fingerprint: req.fingerprint.is_some(),
            };
            let mut out = Leftover::default();
            let mut locked = shard.lock();
            let granted = locked.acquire(id, hash, now, grant, &self.budget, &mut out);
            let litter = matches!(granted, Granted::Yes { .. }) && locked.has_litter(now);
            let reclaimed =
                if litter { locked.sweep_some(now, TIDY, &self.budget) } else { Reclaimed::new() };
            drop(locked);
            out.settle();
            drop(reclaimed);
            return Ok(match granted {
                Granted::No(Found::Done(done)) => Acquired::Complete(done.into_result()),
                Granted::Yes { token, took_over } => {
                    Acquired::Granted(Grant::new(FencingToken::new(token), req.lease, took_over))
                }
                Granted::No(Found::Busy { expires, token }) => {
                    Acquired::Busy { remaining: until(expires, now), token: FencingToken::new(token) }
                }
                Granted::Full { bytes } if !searched && self.make_room(now, bytes) => {
                    searched = true;
                    continue;
                }
                // An acquire never finds absence: it grants.
                Granted::Full { .. } | Granted::No(Found::Absent) => return Err(self.full(id)),
            });
        }
    }

    #[cold]
    fn full(&self, id: &Identity) -> Error {
        Error::new(ErrorKind::Full, "the memory store is full of live records and takes no new key")
            .during("acquire")
            .for_identity(id)
            .with("max records", self.max_records)
            .with("max bytes", self.max_bytes)
    }

    /// Collects unused credit and reclaims expired records, shard by shard, until there is some room in the pool. Whether
    /// there is enough for a record of `bytes`.
    #[cold]
    fn make_room(&self, now: u64, bytes: u64) -> bool {
        // Ends early only with enough for some more, so that not every grant of a full store has to search.
        const SOME: u32 = 64;

        if !self.budget.worth_a_search(now) {
            return false;
        }
        let mut due = u64::MAX;
        for Padded(shard) in &self.shards {
            let mut locked = shard.lock();
            if locked.due() <= now {
                drop(locked);
                self.purge_shard(shard, now, BATCH);
                locked = shard.lock();
            }
            self.budget.collect(&mut locked.credit);
            due = due.min(locked.due());
            drop(locked);
            if self.budget.has_room(SOME, bytes) {
                return true;
            }
        }
        let room = self.budget.has_room(1, bytes);
        if !room {
            self.budget.found_none(now, due);
        }
        room
    }

    /// Reclaims up to `limit` expired records of one shard and says how many went.
    fn purge_shard(&self, shard: &Mutex<Shard>, now: u64, limit: usize) -> usize {
        let mut gone = 0;
        shard.lock().begin_sweep(now);
        loop {
            let mut out = Reclaimed::new();
            let more = shard.lock().sweep_ready(now, BATCH, limit - gone, &self.budget, &mut out);
            gone += settle(out);
            if gone >= limit {
                return gone;
            }
            if !more {
                break;
            }
        }
        let (mut at, mut due) = (0, u64::MAX);
        // Grants during the pass note when theirs are due; what the pass itself sees is added at its end.
        shard.lock().set_busy_due(u64::MAX);
        while at != NONE {
            let mut out = Reclaimed::new();
            let mut locked = shard.lock();
            let most = (BATCH, limit - gone);
            at = locked.sweep_busy(now, at, &mut due, most, &self.budget, &mut out);
            let full = gone + out.len() >= limit;
            if at == NONE || full {
                // A pass that was cut short knows nothing of the rest.
                let due = if at == NONE { due } else { 0 };
                let noted = locked.busy_due();
                locked.set_busy_due(due.min(noted));
            }
            drop(locked);
            gone += settle(out);
            if full {
                break;
            }
        }
        gone
    }

    #[inline]
    fn complete_now(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        if done.value.len() as u64 > self.max_bytes {
            return Err(self.too_large(id, done.value.len()));
        }
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        // Laid out before the lock is taken, dropped, like all that goes, after it is released.
        let expires = now.saturating_add(nanos(done.ttl));
        let record = Done::build(owner, expires, id.key(), done.fingerprint.as_ref(), &done.value);
        let mut out = Leftover::default();
        let fenced = shard.lock().complete(id, hash, record, &self.budget, &mut out);
        out.settle();
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

/// Wakes and drops what was reclaimed, outside the lock, and says how many there were.
fn settle(reclaimed: Reclaimed) -> usize {
    let count = reclaimed.len();
    reclaimed.into_iter().for_each(Leftover::settle);
    count
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
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.acquire_now(id, req)
    }

    async fn look(&self, id: &Identity) -> Result<Standing> {
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        let found = shard.lock().look(id, hash, now);
        Ok(match found {
            Found::Done(done) => Standing::Complete(done.into_result()),
            Found::Absent => Standing::Absent,
            Found::Busy { expires, token } => {
                Standing::Busy { remaining: until(expires, now), token: FencingToken::new(token) }
            }
        })
    }

    async fn changed(&self, id: &Identity, seen: FencingToken, at_most: Duration) -> Result<()> {
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        // Look and subscription are one step under the lock: a change comes before both or wakes us.
        let subscribed = shard.lock().subscribe(id, hash, now, seen.get());
        if let Some((expires, ended)) = subscribed {
            ended.wait(at_most.min(until(expires, now))).await;
        }
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<Fenced> {
        let (shard, hash) = self.locate(id);
        let expires = self.time.now().saturating_add(nanos(lease));
        let own = shard.lock().extend(id, hash, owner, expires);
        Ok(if own { Fenced::Done } else { Fenced::Lost })
    }

    async fn complete(&self, id: &Identity, owner: OwnerId, done: &Completion) -> Result<Fenced> {
        self.complete_now(id, owner, done)
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<Fenced> {
        let (shard, hash) = self.locate(id);
        let mut out = Leftover::default();
        let fenced = shard.lock().release(id, hash, owner, &self.budget, &mut out);
        out.settle();
        Ok(fenced)
    }

    fn profile(&self) -> StoreProfile {
        let max_value = usize::try_from(self.max_bytes).unwrap_or(usize::MAX);
        StoreProfile::new("memory").with_reclaim().with_max_value(max_value)
    }
}

impl Purge for MemoryStore {
    async fn purge(&self, limit: usize) -> Result<usize> {
        let now = self.time.now();
        let mut gone = 0;
        for Padded(shard) in &self.shards {
            if gone >= limit {
                break;
            }
            gone += self.purge_shard(shard, now, limit - gone);
        }
        Ok(gone)
    }
}

impl Inspect for MemoryStore {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let (shard, hash) = self.locate(id);
        let now = self.time.now();
        let remaining = |expires: u64| (expires > now).then(|| until(expires, now));
        Ok(shard.lock().inspect(
            id,
            hash,
            |done| {
                let token = FencingToken::new(done.token());
                let left = remaining(done.expires());
                RecordSummary::new(
                    RecordState::Complete,
                    token,
                    left,
                    done.value_len(),
                    done.has_fingerprint(),
                )
            },
            |busy| {
                let token = FencingToken::new(busy.token);
                let left = remaining(busy.expires);
                RecordSummary::new(RecordState::InProgress, token, left, 0, busy.has_fingerprint)
            },
        ))
    }

    async fn stats(&self) -> Result<StoreStats> {
        let mut stats = StoreStats::default();
        for Padded(shard) in &self.shards {
            let (records, in_progress, bytes) = shard.lock().counts();
            stats.records += u64::from(records);
            stats.in_progress += u64::from(in_progress);
            stats.bytes += bytes;
        }
        Ok(stats)
    }
}
