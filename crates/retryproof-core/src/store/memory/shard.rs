// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Shard`]: the records whose hashes share their first bits, and every transition of one, each under the lock of its
//! shard. Nothing here waits, wakes, or frees a value: what must be woken or dropped is handed out.

use std::sync::Arc;

use super::budget::{Budget, Credit};
use super::record::{Busy, BusySlab, Done, Replay};
use super::scopes::Scopes;
use super::table::{Body, SLOT_BYTES, Table};
use super::time::{Ahead, Time};
use super::wait::Ended;
use super::wheel::Wheel;
use super::{NONE, UNFILED};
use crate::clock::Instant;
use crate::identity::{Identity, Key};
use crate::owner::OwnerId;
use crate::store::Fenced;

pub(super) struct Shard {
    pub(super) table: Table,
    pub(super) busy: BusySlab,
    scopes: Scopes,
    pub(super) wheel: Wheel,
    pub(super) credit: Credit,
    ahead: Ahead,
    /// The last token drawn here. It outlives every record, so no release or purge lets a smaller one follow (ACQ-10).
    last_token: u64,
    /// Bytes in use.
    bytes: u64,
    /// No IN_PROGRESS record may be purged before this.
    pub(super) busy_due: u64,
}

/// What a grant wants written.
pub(super) struct Wanted {
    pub(super) owner: OwnerId,
    pub(super) expires: u64,
    pub(super) purge_after: u64,
    pub(super) has_fingerprint: bool,
}

/// What became of it.
pub(super) enum Granted {
    Yes {
        token: u64,
        took_over: bool,
    },
    Busy {
        expires: u64,
        token: u64,
    },
    /// A new key finds no room for its record of so many bytes.
    Full {
        bytes: u64,
    },
}

/// What a call hands out of the lock: to be fired, to be dropped.
#[derive(Default)]
pub(super) struct Leftover {
    ended: Option<Arc<Ended>>,
    key: Option<Key>,
    done: Option<Done>,
}

impl Leftover {
    /// Wakes the waiters of the grant that is over, and frees. Call it after the lock is released.
    #[inline]
    pub(super) fn settle(self) {
        if let Some(ended) = self.ended {
            ended.fire();
        }
    }
}

/// What reclaiming hands out of the lock.
pub(super) type Reclaimed = Vec<Leftover>;

impl Shard {
    pub(super) fn new(first_token: u64, capacity: u32, ahead: Ahead) -> Self {
        Self {
            table: Table::with_capacity(capacity),
            busy: BusySlab::new(),
            scopes: Scopes::new(),
            wheel: Wheel::new(),
            credit: Credit::default(),
            ahead,
            last_token: first_token,
            bytes: 0,
            busy_due: u64::MAX,
        }
    }

    /// Records, of them IN_PROGRESS, and bytes.
    pub(super) fn counts(&self) -> (u32, u32, u64) {
        (self.table.len(), self.busy.len(), self.bytes)
    }

    /// The slot of this identity, whatever stands in it.
    #[inline]
    pub(super) fn find(&self, id: &Identity, hash: u32) -> Option<u32> {
        let key = id.key().expose();
        let mut at = self.table.chain(hash);
        while let Some(slot) = self.table.slots.get(at) {
            if slot.hash == hash {
                let same = match &slot.body {
                    Body::Done(done) => done.view().is_some_and(|view| view.has_key(key.as_bytes())),
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

    /// The COMPLETE record of this identity, if it is within its ttl (CMP-6). The same walk as [`find`](Self::find),
    /// which meets nothing else most of the time.
    #[inline(always)]
    pub(super) fn replay(&mut self, id: &Identity, hash: u32, now: Instant, time: &Time) -> Option<Replay> {
        let key = id.key().expose().as_bytes();
        let mut at = self.table.chain(hash);
        while let Some(slot) = self.table.slots.get(at) {
            if slot.hash == hash
                && let Body::Done(done) = &slot.body
                && let Some(view) = done.view()
                && view.has_key(key)
                && self.scopes.is(slot.scope, id.scope())
            {
                return self.ahead.is_live(view.expires(), now, time).then(|| done.share(view));
            }
            at = slot.chain;
        }
        None
    }

    /// The lease's end and the token of this identity's record, if it is IN_PROGRESS.
    pub(super) fn holder(&self, id: &Identity, hash: u32) -> Option<(u64, u64)> {
        match self.table.slots[self.find(id, hash)?].body {
            Body::Busy(place) => Some((self.busy[place].expires, self.busy[place].token)),
            Body::Done(_) => None,
        }
    }

    /// Grants, or says why not, where there is no COMPLETE record within its ttl.
    #[inline]
    pub(super) fn grant(
        &mut self,
        id: &Identity,
        hash: u32,
        now: u64,
        wanted: Wanted,
        budget: &Budget,
    ) -> (Granted, Leftover) {
        match self.find(id, hash) {
            None => (self.first(id, hash, wanted, budget), Leftover::default()),
            Some(at) => match self.table.slots[at].body {
                Body::Busy(place) => self.contend(place, now, wanted),
                Body::Done(_) => self.again(at, id, wanted, budget),
            },
        }
    }

    /// A grant for an identity without a record.
    #[inline]
    fn first(&mut self, id: &Identity, hash: u32, wanted: Wanted, budget: &Budget) -> Granted {
        let bytes = SLOT_BYTES + Busy::size_with(id.key());
        if !budget.admit(&mut self.credit, bytes) {
            return Granted::Full { bytes };
        }
        let scope = self.scopes.enter(id.scope());
        let Some(at) = self.table.insert(hash, scope, Body::Busy(NONE)) else {
            // Four billion records in one shard.
            self.scopes.leave(scope);
            budget.free(&mut self.credit, bytes);
            return Granted::Full { bytes };
        };
        self.start(at, id, wanted);
        self.bytes += bytes;
        Granted::Yes { token: self.last_token, took_over: false }
    }

    /// A grant in the place of a COMPLETE record past its ttl: it counts as absent (CMP-6).
    fn again(&mut self, at: u32, id: &Identity, wanted: Wanted, budget: &Budget) -> (Granted, Leftover) {
        let mut left = Leftover::default();
        let before = std::mem::replace(&mut self.table.slots[at].body, Body::Busy(NONE));
        self.start(at, id, wanted);
        if let Body::Done(done) = before {
            self.resized(done.size(), Busy::size_with(id.key()), budget);
            left.done = Some(done);
        }
        (Granted::Yes { token: self.last_token, took_over: false }, left)
    }

    /// Puts an IN_PROGRESS record with a new token into a slot.
    #[inline]
    fn start(&mut self, at: u32, id: &Identity, wanted: Wanted) {
        self.last_token += 1;
        let busy = Busy {
            key: Some(id.key().clone()),
            owner: wanted.owner,
            token: self.last_token,
            expires: wanted.expires,
            purge_after: wanted.purge_after,
            slot: at,
            has_fingerprint: wanted.has_fingerprint,
            ended: None,
        };
        self.busy_due = self.busy_due.min(busy.due());
        self.table.slots[at].body = Body::Busy(self.busy.insert(busy));
    }

    /// An acquire that meets an IN_PROGRESS record.
    fn contend(&mut self, place: u32, now: u64, wanted: Wanted) -> (Granted, Leftover) {
        let mut left = Leftover::default();
        let busy = &mut self.busy[place];
        // The answer to its first acquire was lost (ACQ-9).
        let own = busy.owner == wanted.owner;
        if !own {
            if busy.expires > now {
                return (Granted::Busy { expires: busy.expires, token: busy.token }, left);
            }
            self.last_token += 1;
            busy.token = self.last_token;
            busy.owner = wanted.owner;
            left.ended = busy.ended.take();
        }
        busy.expires = wanted.expires;
        busy.purge_after = wanted.purge_after;
        busy.has_fingerprint = wanted.has_fingerprint;
        self.busy_due = self.busy_due.min(busy.due());
        (Granted::Yes { token: busy.token, took_over: !own }, left)
    }

    /// The IN_PROGRESS record of this identity, for one who waits for the holder with token `seen`: its lease's end and
    /// what will tell.
    pub(super) fn subscribe(
        &mut self,
        id: &Identity,
        hash: u32,
        now: u64,
        seen: u64,
    ) -> Option<(u64, Arc<Ended>)> {
        let at = self.find(id, hash)?;
        let Body::Busy(place) = self.table.slots[at].body else { return None };
        let busy = &mut self.busy[place];
        if busy.token != seen || busy.expires <= now {
            return None;
        }
        let ended = busy.ended.get_or_insert_with(|| Arc::new(Ended::new()));
        Some((busy.expires, Arc::clone(ended)))
    }

    /// Moves the lease's end of `owner`'s record; `false` when it is not its any more.
    pub(super) fn extend(&mut self, id: &Identity, hash: u32, owner: OwnerId, expires: u64) -> bool {
        let Some(at) = self.find(id, hash) else { return false };
        let Body::Busy(place) = self.table.slots[at].body else { return false };
        let busy = &mut self.busy[place];
        if busy.owner != owner {
            return false;
        }
        busy.expires = expires;
        // A shorter lease than before may bring it forward.
        self.busy_due = self.busy_due.min(busy.due());
        true
    }

    /// Puts `done` in the place of the record that its owner holds.
    #[inline]
    pub(super) fn complete(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        mut done: Done,
        budget: &Budget,
    ) -> (Fenced, Leftover) {
        let mut left = Leftover::default();
        let place = match self.find(id, hash).map(|at| (at, &self.table.slots[at].body)) {
            Some((_, Body::Busy(place))) if self.busy[*place].owner == owner => *place,
            other => {
                let own = matches!(other, Some((_, Body::Done(kept))) if kept.owner() == owner);
                left.done = Some(done);
                return (if own { Fenced::AlreadyDone } else { Fenced::Lost }, left);
            }
        };
        let busy = &self.busy[place];
        done.set_token(busy.token);
        let (at, before, after, expires) = (busy.slot, busy.size(), done.size(), done.expires());
        (left.key, left.ended) = self.busy.remove(place);
        let slot = &mut self.table.slots[at];
        slot.body = Body::Done(done);
        // A slot that is filed already stood for a record whose time is over: it comes up soon and is filed again.
        if slot.timer == UNFILED {
            self.wheel.file(&mut self.table.slots, at, expires);
        }
        budget.expires(expires);
        self.resized(before, after, budget);
        (Fenced::Done, left)
    }

    /// Deletes the record that `owner` holds.
    pub(super) fn release(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        budget: &Budget,
    ) -> (Fenced, Leftover) {
        let Some(at) = self.find(id, hash) else { return (Fenced::AlreadyDone, Leftover::default()) };
        match self.table.slots[at].body {
            Body::Busy(place) if self.busy[place].owner == owner => (Fenced::Done, self.delete(at, budget)),
            _ => (Fenced::Lost, Leftover::default()),
        }
    }

    /// Takes a record out, whatever it is.
    pub(super) fn delete(&mut self, at: u32, budget: &Budget) -> Leftover {
        let mut left = Leftover::default();
        self.scopes.leave(self.table.slots[at].scope);
        let body = match self.table.remove(at) {
            Body::Done(done) => {
                let size = done.size();
                left.done = Some(done);
                size
            }
            Body::Busy(place) => {
                let size = self.busy[place].size();
                (left.key, left.ended) = self.busy.remove(place);
                size
            }
        };
        self.bytes -= SLOT_BYTES + body;
        budget.free(&mut self.credit, SLOT_BYTES + body);
        left
    }

    #[inline]
    fn resized(&mut self, before: u64, after: u64, budget: &Budget) {
        self.bytes = self.bytes + after - before;
        budget.resize(&mut self.credit, before, after);
    }

    /// The record as an operator sees it, expired or not.
    pub(super) fn inspect<T>(
        &self,
        id: &Identity,
        hash: u32,
        done: impl FnOnce(&Done) -> T,
        busy: impl FnOnce(&Busy) -> T,
    ) -> Option<T> {
        let at = self.find(id, hash)?;
        Some(match &self.table.slots[at].body {
            Body::Done(kept) => done(kept),
            Body::Busy(place) => busy(&self.busy[*place]),
        })
    }
}
