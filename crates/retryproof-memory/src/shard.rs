// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Shard`] holds the records whose hashes select the same shard. All transitions of these records
//! run under the shard's lock. No method waits, wakes a waiter or drops a result: each returns the
//! notification to fire and the values to drop after the lock is released.
//!
//! This file is over 400 lines long because the lookups and the transitions are inlined into each
//! other, and their instruction counts are published.

use std::sync::Arc;

use retryproof_core::clock::Instant;
use retryproof_core::store::{AcquireRequest, FencedWrite, LiveLease};
use retryproof_core::{Identity, OwnerId};

use crate::budget::{Budget, Credit};
use crate::busy::{Busy, BusySlab, Extra, Left, needs_extra};
use crate::index::UNFILED;
use crate::record::{Done, Replay};
use crate::scopes::Scopes;
use crate::table::{Body, SLOT_BYTES, Table};
use crate::time::{Ahead, StoreTime};
use crate::wait::Ended;
use crate::wheel::Wheel;

pub(crate) struct Shard {
    pub(crate) table: Table,
    pub(crate) busy: BusySlab,
    pub(crate) scopes: Scopes,
    pub(crate) wheel: Wheel,
    pub(crate) credit: Credit,
    pub(crate) ahead: Ahead,
    /// The last token that this shard granted. Deleting records does not reset it, so no smaller
    /// token can follow a release or a purge (ACQ-10).
    pub(crate) last_token: u64,
    /// Bytes in use.
    bytes: u64,
    /// No IN_PROGRESS record can be purged before this time; `None` if there are no such records.
    pub(crate) busy_due: Option<Instant>,
}

/// The notification to fire and the record to drop after the lock is released.
#[derive(Default)]
pub(crate) struct Leftover {
    busy: Left,
    done: Option<Done>,
}

impl Leftover {
    /// Wakes the waiters of the ended grant. Call this after the lock is released, and then drop
    /// the `Leftover`, which frees the record.
    #[inline]
    pub(crate) fn settle(&self) {
        if let Some(ended) = &self.busy.ended {
            ended.fire();
        }
    }
}

/// The reclaimed records, to be dropped outside the lock.
pub(crate) type Reclaimed = Vec<Leftover>;

/// Returns the half of the hash that finds a record within its shard.
#[expect(clippy::cast_possible_truncation, reason = "the dropped upper half selects the shard")]
pub(crate) fn bucket_hash(id: &Identity) -> u32 {
    id.keyed_hash() as u32
}

/// Sets `bound` to `due` if `due` is earlier, or if there is no bound yet. The end of a record's
/// lease is a valid `due`, because a purge never deletes the record before the lease ends.
#[inline]
pub(crate) fn note(bound: &mut Option<Instant>, due: Instant) {
    if bound.is_none_or(|bound| due < bound) {
        *bound = Some(due);
    }
}

impl Shard {
    pub(crate) fn new(first_token: u64, capacity: u32, ahead: Ahead) -> Self {
        Self {
            table: Table::with_capacity(capacity),
            busy: BusySlab::new(),
            scopes: Scopes::new(),
            wheel: Wheel::new(),
            credit: Credit::default(),
            ahead,
            last_token: first_token,
            bytes: 0,
            busy_due: None,
        }
    }

    /// Returns the number of records, the number of IN_PROGRESS records, and the bytes of all
    /// records.
    pub(crate) fn counts(&self) -> (u32, u32, u64) {
        (self.table.len(), self.busy.len(), self.bytes)
    }

    /// Finds the slot of this identity's record, whatever the record's state.
    #[inline]
    pub(crate) fn find(&self, id: &Identity, hash: u32) -> Option<u32> {
        let key = id.key().expose();
        let mut at = self.table.chain(hash);
        while let Some(slot) = self.table.slots.get(at) {
            if slot.hash == hash {
                let same = match &slot.body {
                    Body::Done(done) => {
                        done.view().is_some_and(|view| view.has_key(key.as_bytes()))
                    }
                    Body::Busy(place) => self.busy[*place].has_key(key),
                };
                if same && self.scopes.is(slot.scope, id.scope()) {
                    return Some(at);
                }
            }
            at = slot.chain;
        }
        None
    }

    /// Returns this identity's record if it is COMPLETE and within its ttl (CMP-6). Otherwise, the
    /// `Err` contains the record's slot, or `None` if the identity has no record.
    #[inline]
    pub(crate) fn replay(
        &mut self,
        id: &Identity,
        hash: u32,
        now: Instant,
        time: &StoreTime,
    ) -> Result<Replay, Option<u32>> {
        match self.replay_at_once(id, hash, now) {
            Err(Some(at)) => self.replay_from(at, now, time).ok_or(Some(at)),
            other => other,
        }
    }

    /// Returns the record in this slot; `None` if the record is not COMPLETE, or its ttl is over.
    #[inline(always)]
    pub(crate) fn replay_from(
        &mut self,
        at: u32,
        now: Instant,
        time: &StoreTime,
    ) -> Option<Replay> {
        let Body::Done(done) = &self.table.slots[at].body else { return None };
        let view = done.view()?;
        self.ahead.is_live_exactly(view.expires(), now, time).then(|| done.share(view))
    }

    /// Like [`replay`](Self::replay), but without an exact comparison of times. If the record might
    /// have expired, returns its slot as `Err`, and the caller has to call
    /// [`replay_from`](Self::replay_from). The loop searches like [`find`](Self::find), but is
    /// optimised for a COMPLETE record within its ttl.
    #[inline(always)]
    pub(crate) fn replay_at_once(
        &self,
        id: &Identity,
        hash: u32,
        now: Instant,
    ) -> Result<Replay, Option<u32>> {
        let key = id.key().expose();
        let mut at = self.table.chain(hash);
        while let Some(slot) = self.table.slots.get(at) {
            if slot.hash == hash {
                match &slot.body {
                    Body::Done(done) => {
                        if let Some(view) = done.view()
                            && view.has_key(key.as_bytes())
                            && self.scopes.is(slot.scope, id.scope())
                        {
                            let live = self.ahead.is_surely_live(view.expires(), now);
                            return if live { Ok(done.share(view)) } else { Err(Some(at)) };
                        }
                    }
                    Body::Busy(place) => {
                        if self.is_busy_with(*place, slot.scope, id) {
                            return Err(Some(at));
                        }
                    }
                }
            }
            at = slot.chain;
        }
        Err(None)
    }

    /// Whether the IN_PROGRESS record at `place` has this identity. This is a separate function
    /// because the caller's loop would otherwise reserve registers for the comparison.
    #[inline(never)]
    fn is_busy_with(&self, place: u32, scope: u32, id: &Identity) -> bool {
        self.busy[place].has_key(id.key().expose()) && self.scopes.is(scope, id.scope())
    }

    /// Returns the lease of the record in this slot; `None` if the record is not IN_PROGRESS, or
    /// its lease has ended.
    pub(crate) fn live(&self, at: u32, now: Instant) -> Option<LiveLease> {
        match self.table.slots[at].body {
            Body::Busy(place) => self.busy[place].live(now),
            Body::Done(_) => None,
        }
    }

    /// Grants a lease for an identity that has no record. Returns the token, or the record's size
    /// if the record does not fit.
    #[inline]
    pub(crate) fn first(
        &mut self,
        id: &Identity,
        req: &AcquireRequest,
        now: Instant,
        budget: &Budget,
    ) -> Result<u64, u64> {
        let bytes = SLOT_BYTES + Busy::size_with(id.key());
        // Refuse the grant if the store is full, or if this shard has four billion records.
        if self.table.is_full() || !budget.admit(&mut self.credit, bytes) {
            return Err(bytes);
        }
        self.bytes += bytes;
        self.last_token += 1;
        let scope = self.scopes.enter(id.scope());
        let (place, busy) = self.busy.add(now);
        let at = self.table.insert(bucket_hash(id), scope, Body::Busy(place));
        busy.start(id.key(), at, self.last_token, req, now);
        note(&mut self.busy_due, busy.expires);
        if needs_extra(req) {
            self.amend(place, req, false, budget);
        }
        Ok(self.last_token)
    }

    /// Writes the note of a grant, and counts the grant if it is a takeover. Returns whether the
    /// key has been taken over since it was last free.
    #[cold]
    fn amend(
        &mut self,
        place: u32,
        req: &AcquireRequest,
        takes_over: bool,
        budget: &Budget,
    ) -> bool {
        let (before, after) = self.busy[place].amend(req, takes_over);
        self.resized(before, after, u64::MAX, budget);
        self.busy[place].takeovers() > 0
    }

    /// Returns the live lease of the record in this slot, unless the sender of `req` holds the lease.
    #[inline(always)]
    pub(crate) fn live_for_another(
        &self,
        at: u32,
        req: &AcquireRequest,
        now: Instant,
    ) -> Option<LiveLease> {
        match self.table.slots[at].body {
            Body::Busy(place) if self.busy[place].owner != req.owner => {
                let busy = &self.busy[place];
                let mismatch = req.differs_from(busy.fingerprint());
                busy.live(now).map(|lease| lease.with_mismatch(mismatch))
            }
            _ => None,
        }
    }

    /// Acquires the record in this slot, which must be neither a COMPLETE record within its ttl nor
    /// [live for another](Self::live_for_another). Returns the token, and whether the grant is a
    /// takeover. Writes the `Leftover` into `left`, because returning it would copy it.
    #[inline]
    pub(crate) fn contend(
        &mut self,
        at: u32,
        id: &Identity,
        req: &AcquireRequest,
        now: Instant,
        budget: &Budget,
        left: &mut Leftover,
    ) -> (u64, bool) {
        let slot = &mut self.table.slots[at];
        let Body::Busy(place) = slot.body else {
            // A COMPLETE record past its ttl counts as absent (CMP-6). A grant that replaces such a
            // record is therefore not a takeover.
            self.last_token += 1;
            let (place, busy) = self.busy.add(now);
            busy.start(id.key(), at, self.last_token, req, now);
            note(&mut self.busy_due, busy.expires);
            if let Body::Done(done) = std::mem::replace(&mut slot.body, Body::Busy(place)) {
                self.resized(done.size(), Busy::size_with(id.key()), u64::MAX, budget);
                left.done = Some(done);
            }
            if needs_extra(req) {
                self.amend(place, req, false, budget);
            }
            return (self.last_token, false);
        };
        let busy = &mut self.busy[place];
        // If the answer to an acquire was lost, the owner repeats the acquire and gets the lease
        // again (ACQ-9).
        let takes_over = busy.owner != req.owner;
        if takes_over {
            self.last_token += 1;
            busy.token = self.last_token;
            left.busy.ended = busy.ended.take();
            busy.grant(req, now);
        } else {
            busy.renew(req, now);
        }
        note(&mut self.busy_due, busy.expires);
        let token = busy.token;
        let amended = takes_over || needs_extra(req) || busy.extra.is_some();
        // The answer to a repeated acquire reports a takeover again (ACQ-12).
        let took_over = amended && self.amend(place, req, takes_over, budget);
        (token, took_over)
    }

    /// Subscribes to the end of the grant with the token `seen`. Returns the lease's end and the
    /// notification; `None` if that grant is already over.
    pub(crate) fn subscribe(
        &mut self,
        id: &Identity,
        hash: u32,
        now: Instant,
        seen: u64,
    ) -> Option<(Instant, Arc<Ended>)> {
        let at = self.find(id, hash)?;
        let Body::Busy(place) = self.table.slots[at].body else { return None };
        let busy = &mut self.busy[place];
        if busy.token != seen || busy.expires <= now {
            return None;
        }
        let ended = busy.ended.get_or_insert_with(|| Arc::new(Ended::new()));
        Some((busy.expires, Arc::clone(ended)))
    }

    /// Moves the end of `owner`'s lease to `expires`, or returns `false` if `owner` no longer holds
    /// the record.
    pub(crate) fn extend(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        expires: Instant,
    ) -> bool {
        let Some(at) = self.find(id, hash) else { return false };
        let Body::Busy(place) = self.table.slots[at].body else { return false };
        let busy = &mut self.busy[place];
        if busy.owner != owner {
            return false;
        }
        busy.expires = expires;
        // If the lease now ends earlier than `busy_due`, lower `busy_due` to the lease's end.
        note(&mut self.busy_due, expires);
        true
    }

    /// Replaces the record that `owner` holds with `done`. If `done` is still `Some` afterwards,
    /// drop it after the lock is released. If the record has an [`Extra`], returns `None` and
    /// changes nothing: the caller first has to build the `Extra` into `done` and
    /// [take](Self::take_extra) it.
    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        (done, expires): (&mut Option<Done>, u64),
        budget: &Budget,
    ) -> (Option<FencedWrite>, Left) {
        let key = id.key().expose();
        let mut at = self.table.chain(hash);
        while let Some(slot) = self.table.slots.get_mut(at) {
            if slot.hash == hash && self.scopes.is(slot.scope, id.scope()) {
                match &slot.body {
                    Body::Busy(place) => {
                        let (busy, freeing) = self.busy.get_mut(*place);
                        if busy.has_key(key) {
                            if busy.owner != owner {
                                break;
                            }
                            if busy.extra.is_some() {
                                return (None, Left::default());
                            }
                            let Some(mut done) = done.take() else { break };
                            done.set_token(busy.token);
                            let (before, after) = (Busy::size_with(id.key()), done.size());
                            slot.body = Body::Done(done);
                            // Do not file a slot that is still in the wheel. The slot's earlier
                            // record expired before the current grant, so a sweep will soon take
                            // the slot out and file it again.
                            if slot.timer == UNFILED {
                                self.wheel.file(slot, at, expires);
                            }
                            let left = freeing.free(busy);
                            self.resized(before, after, expires, budget);
                            return (Some(FencedWrite::Applied), left);
                        }
                    }
                    Body::Done(kept) => {
                        if kept.view().is_some_and(|view| view.has_key(key.as_bytes())) {
                            if kept.owner() == owner {
                                return (Some(FencedWrite::AlreadyApplied), Left::default());
                            }
                            break;
                        }
                    }
                }
            }
            at = slot.chain;
        }
        (Some(FencedWrite::NotOwner), Left::default())
    }

    /// Returns the [`Extra`] of the record that `owner` holds.
    pub(crate) fn extra(&self, id: &Identity, hash: u32, owner: OwnerId) -> Option<&Extra> {
        let Body::Busy(place) = self.table.slots[self.find(id, hash)?].body else { return None };
        self.busy[place].extra.as_deref().filter(|_| self.busy[place].owner == owner)
    }

    /// Takes the [`Extra`] of the record that `owner` holds. Drop the `Extra` after the lock is
    /// released.
    pub(crate) fn take_extra(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        budget: &Budget,
    ) -> Option<Box<Extra>> {
        let Body::Busy(place) = self.table.slots[self.find(id, hash)?].body else { return None };
        let busy = &mut self.busy[place];
        let extra = busy.extra.take_if(|_| busy.owner == owner)?;
        self.resized(Extra::SIZE, 0, u64::MAX, budget);
        Some(extra)
    }

    /// Deletes the record that `owner` holds.
    pub(crate) fn release(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        budget: &Budget,
    ) -> (FencedWrite, Leftover) {
        let Some(at) = self.find(id, hash) else {
            return (FencedWrite::AlreadyApplied, Leftover::default());
        };
        match self.table.slots[at].body {
            Body::Busy(place) if self.busy[place].owner == owner => {
                (FencedWrite::Applied, self.delete(at, budget))
            }
            _ => (FencedWrite::NotOwner, Leftover::default()),
        }
    }

    /// Deletes the record in this slot, whatever its state.
    pub(crate) fn delete(&mut self, at: u32, budget: &Budget) -> Leftover {
        let mut left = Leftover::default();
        self.scopes.leave(self.table.slots[at].scope);
        let mut bytes = SLOT_BYTES;
        match self.table.remove(at) {
            Body::Done(done) => {
                bytes += done.size();
                left.done = Some(done);
            }
            Body::Busy(place) => {
                bytes += self.busy[place].size();
                left.busy = self.busy.remove(place);
            }
        }
        self.bytes -= bytes;
        budget.free(&mut self.credit, bytes);
        self.collect_parked();
        left
    }

    #[inline(always)]
    fn resized(&mut self, before: u64, after: u64, expires: u64, budget: &Budget) {
        self.bytes = self.bytes + after - before;
        budget.resize(&mut self.credit, before, after, expires);
    }

    /// Replaces the record in this slot with the COMPLETE record `done`, and gives `done` the old
    /// record's token (OPS-4).
    pub(crate) fn replace(&mut self, at: u32, mut done: Done, budget: &Budget) -> Leftover {
        let mut left = Leftover::default();
        let (expires, after) = (done.expires(), done.size());
        let slot = &mut self.table.slots[at];
        let (before, token) = match &slot.body {
            Body::Done(kept) => (kept.size(), kept.token()),
            Body::Busy(place) => (self.busy[*place].size(), self.busy[*place].token),
        };
        done.set_token(token);
        match std::mem::replace(&mut slot.body, Body::Done(done)) {
            Body::Done(kept) => left.done = Some(kept),
            Body::Busy(place) => left.busy = self.busy.remove(place),
        }
        // As in `complete`, if the slot is still in the wheel, a sweep files it again.
        if slot.timer == UNFILED {
            self.wheel.file(slot, at, expires);
        }
        self.resized(before, after, expires, budget);
        left
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use retryproof_core::clock::ManualClock;
    use retryproof_core::store::Completion;
    use retryproof_core::{Blob, Identity};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_shard_forgets_a_scope_with_its_last_record() {
        let (time, budget) = (StoreTime::new(None), Budget::new(100, 100_000, 1));
        let mut shard = Shard::new(1, 0, time.ahead());
        let now = time.read();
        for n in 0..50 {
            let id =
                Identity::of(retryproof_core::Scope::new(format!("scope {n}")).unwrap(), "key")
                    .unwrap();
            let owner = OwnerId::new();
            let req = AcquireRequest::new(owner, Duration::from_secs(1), Duration::from_secs(1));
            assert!(shard.first(&id, &req, now, &budget).is_ok());
            assert_eq!(
                shard.release(&id, bucket_hash(&id), owner, &budget).0,
                FencedWrite::Applied
            );
        }
        assert_eq!((shard.scopes.len(), shard.counts()), (0, (0, 0, 0)));
    }

    /// Creates a shard with two records, one in progress and one complete. Returns the shard and
    /// the owners of the records.
    fn two(time: &StoreTime, budget: &Budget, ids: &[Identity; 2]) -> (Shard, [OwnerId; 2]) {
        let mut shard = Shard::new(1, 0, time.ahead());
        let owners = [OwnerId::new(), OwnerId::new()];
        for (id, owner) in ids.iter().zip(owners) {
            let req = AcquireRequest::new(owner, SECOND, SECOND);
            assert!(shard.first(id, &req, time.read(), budget).is_ok());
        }
        let expires = time.nanos(time.read()) + 1_000_000_000;
        let done = Completion::new(Blob::from(vec![7; 9]), SECOND, None);
        let mut built = Some(Done::build(owners[1], expires, ids[1].key(), &done));
        let hash = bucket_hash(&ids[1]);
        let ended = shard.complete(&ids[1], hash, owners[1], (&mut built, expires), budget);
        assert_eq!(ended.0, Some(FencedWrite::Applied));
        (shard, owners)
    }

    #[test]
    fn id_1_identities_with_one_hash_stay_apart() {
        let (time, budget) = (StoreTime::new(None), Budget::new(100, 100_000, 1));
        let id = |scope: &str, key: &str| {
            Identity::of(retryproof_core::Scope::new(scope.to_owned()).unwrap(), key).unwrap()
        };
        let ids = [id("scope", "busy"), id("scope", "done")];
        let (mut shard, owners) = two(&time, &budget, &ids);
        for (kept, owner) in ids.iter().zip(owners) {
            let key = kept.key().expose();
            let others = [
                id("scope", "ysub"),
                id("scope", &key[..3]),
                id("scope", &format!("{key}s")),
                id("other", key),
            ];
            let hash = bucket_hash(kept);
            assert!(shard.find(kept, hash).is_some());
            for other in &others {
                assert_eq!(shard.find(other, hash), None, "{key}");
                let replay = shard.replay_at_once(other, hash, time.read());
                assert!(matches!(replay, Err(None)), "{key}");
                let mut unused = None;
                let (ended, _) = shard.complete(other, hash, owner, (&mut unused, 0), &budget);
                assert_eq!(ended, Some(FencedWrite::NotOwner), "{key}");
            }
        }
    }

    #[test]
    fn sto_1_a_record_counts_its_slot_its_parts_and_two_reference_counts() {
        let (time, budget) = (StoreTime::new(None), Budget::new(100, 100_000, 1));
        let ids = ["busy", "done"].map(|key| Identity::of("scope", key).unwrap());
        let (mut shard, owners) = two(&time, &budget, &ids);
        let counts = 2 * size_of::<usize>() as u64;
        let (key, value) = (4, 9);
        let header = 16 + 8 + 8 + 2 + 1; // owner, token, expiry, lengths of key and fingerprint
        let done = SLOT_BYTES + header + key + value + counts;
        let busy = SLOT_BYTES + size_of::<Busy>() as u64 + key + counts;
        assert_eq!(shard.counts(), (2, 1, busy + done));
        let (released, _) = shard.release(&ids[0], bucket_hash(&ids[0]), owners[0], &budget);
        assert_eq!(released, FencedWrite::Applied);
        assert_eq!(shard.counts(), (1, 0, done));
    }

    #[test]
    fn sto_4_a_sweep_is_due_after_a_record_has_expired_and_not_before() {
        let clock = ManualClock::new();
        let time = StoreTime::new(Some(Arc::new(clock.clone())));
        let budget = Budget::new(100, 100_000, 1);
        let ids = ["busy", "done"].map(|key| Identity::of("scope", key).unwrap());
        let (mut shard, _) = two(&time, &budget, &ids);
        let due = shard.due(&time);
        let now = time.nanos(time.read());
        assert!(now < due && due <= now + 1_000_000_000, "{due} at {now}");
        shard.last_token = 8;
        assert!(!shard.is_sweep_due(time.read(), &time));
        clock.advance(10 * SECOND);
        assert!(shard.is_sweep_due(time.read(), &time));
        shard.last_token = 9;
        assert!(!shard.is_sweep_due(time.read(), &time), "only every eighth grant sweeps");
    }
}
