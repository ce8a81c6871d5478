// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Shard`]: the records whose hashes share their first bits, and every transition of one, each under the lock of its
//! shard. Nothing here waits, wakes, allocates a value or frees one: what must be woken or dropped is handed out.

use std::sync::Arc;

use super::budget::{Budget, Credit};
use super::record::{Busy, BusySlab, Done};
use super::scopes::Scopes;
use super::table::{Body, SLOT_BYTES, Slot, Table};
use super::wait::Ended;
use super::wheel::{TICK, Wheel};
use super::{NONE, UNFILED};
use crate::identity::{Identity, Key};
use crate::owner::OwnerId;
use crate::store::Fenced;

pub(super) struct Shard {
    table: Table,
    busy: BusySlab,
    scopes: Scopes,
    wheel: Wheel,
    pub(super) credit: Credit,
    /// The last token drawn here. It outlives every record, so no release or purge lets a smaller one follow (ACQ-10).
    last_token: u64,
    /// Bytes in use.
    bytes: u64,
    /// No IN_PROGRESS record may be purged before this.
    busy_due: u64,
}

/// What an acquire or a look finds.
pub(super) enum Found {
    Absent,
    /// COMPLETE, within its ttl.
    Done(Done),
    /// IN_PROGRESS under another owner, within its lease.
    Busy {
        expires: u64,
        token: u64,
    },
}

/// What a grant wants written.
pub(super) struct Grant {
    pub(super) owner: OwnerId,
    pub(super) expires: u64,
    pub(super) purge_after: u64,
    pub(super) has_fingerprint: bool,
}

/// What an acquire does.
pub(super) enum Granted {
    No(Found),
    Yes {
        token: u64,
        took_over: bool,
    },
    /// A new key finds no room for its record of so many bytes.
    Full {
        bytes: u64,
    },
}

/// What a call hands out of the lock: to be fired, to be dropped.
#[derive(Default)]
pub(super) struct Leftover {
    pub(super) ended: Option<Arc<Ended>>,
    pub(super) key: Option<Key>,
    pub(super) done: Option<Done>,
}

impl Leftover {
    /// Wakes the waiters of the grant that is over. Call it after the lock is released.
    pub(super) fn settle(self) {
        if let Some(ended) = self.ended {
            ended.fire();
        }
    }
}

/// What reclaiming hands out of the lock.
pub(super) type Reclaimed = Vec<Leftover>;

impl Shard {
    pub(super) fn new(first_token: u64, capacity: u32) -> Self {
        Self {
            table: Table::with_capacity(capacity),
            busy: BusySlab::new(),
            scopes: Scopes::new(),
            wheel: Wheel::new(),
            credit: Credit::default(),
            last_token: first_token,
            bytes: 0,
            busy_due: u64::MAX,
        }
    }

    /// Records, of them IN_PROGRESS, and bytes.
    pub(super) fn counts(&self) -> (u32, u32, u64) {
        (self.table.len(), self.busy.len(), self.bytes)
    }

    #[inline]
    fn find(&self, id: &Identity, hash: u32) -> Option<u32> {
        let key = id.key().expose().as_bytes();
        self.table.find(hash, |slot| {
            let kept = match &slot.body {
                Body::Done(done) => done.key(),
                Body::Busy(at) => self.busy[*at].key.as_ref().map_or(&[][..], |key| key.expose().as_bytes()),
            };
            kept == key && self.scopes.is(slot.scope, id.scope())
        })
    }

    /// Where the record stands for one who only looks.
    #[inline]
    pub(super) fn look(&self, id: &Identity, hash: u32, now: u64) -> Found {
        match self.find(id, hash) {
            Some(at) => self.standing(&self.table.slots[at], now),
            None => Found::Absent,
        }
    }

    #[inline]
    fn standing(&self, slot: &Slot, now: u64) -> Found {
        match &slot.body {
            Body::Done(done) if done.expires() > now => Found::Done(done.share()),
            Body::Done(_) => Found::Absent,
            Body::Busy(at) => match &self.busy[*at] {
                busy if busy.expires > now => Found::Busy { expires: busy.expires, token: busy.token },
                _ => Found::Absent,
            },
        }
    }

    /// Grants, or says why not. `out` takes what must leave the lock.
    #[inline]
    pub(super) fn acquire(
        &mut self,
        id: &Identity,
        hash: u32,
        now: u64,
        grant: Grant,
        budget: &Budget,
        out: &mut Leftover,
    ) -> Granted {
        let Some(at) = self.find(id, hash) else {
            return self.first(id, hash, grant, budget);
        };
        match &self.table.slots[at].body {
            Body::Done(done) if done.expires() > now => Granted::No(Found::Done(done.share())),
            Body::Done(_) => self.again(at, id, grant, budget, out),
            Body::Busy(place) => {
                let place = *place;
                let busy = &mut self.busy[place];
                if busy.owner == grant.owner {
                    // The answer to its first acquire was lost (ACQ-9).
                    busy.expires = grant.expires;
                    busy.purge_after = grant.purge_after;
                    busy.has_fingerprint = grant.has_fingerprint;
                    self.busy_due = self.busy_due.min(busy.due());
                    let token = busy.token;
                    return Granted::Yes { token, took_over: false };
                }
                if busy.expires > now {
                    return Granted::No(Found::Busy { expires: busy.expires, token: busy.token });
                }
                out.ended = busy.ended.take();
                self.last_token += 1;
                busy.token = self.last_token;
                busy.owner = grant.owner;
                busy.expires = grant.expires;
                busy.purge_after = grant.purge_after;
                busy.has_fingerprint = grant.has_fingerprint;
                self.busy_due = self.busy_due.min(busy.due());
                Granted::Yes { token: self.last_token, took_over: true }
            }
        }
    }

    /// A grant for an identity without a record.
    #[inline]
    fn first(&mut self, id: &Identity, hash: u32, grant: Grant, budget: &Budget) -> Granted {
        let size = SLOT_BYTES + Busy::size_with(id.key());
        if !budget.admit(&mut self.credit, size) {
            return Granted::Full { bytes: size };
        }
        let place = self.start(id, grant);
        let scope = self.scopes.enter(id.scope());
        let Some(at) = self.table.insert(hash, scope, Body::Busy(place)) else {
            // Four billion records in one shard.
            self.scopes.leave(scope);
            self.busy.remove(place);
            budget.free(&mut self.credit, size);
            return Granted::Full { bytes: size };
        };
        self.busy[place].slot = at;
        self.bytes += size;
        Granted::Yes { token: self.last_token, took_over: false }
    }

    /// A grant in the place of a COMPLETE record past its ttl: it counts as absent (CMP-6).
    fn again(
        &mut self,
        at: u32,
        id: &Identity,
        grant: Grant,
        budget: &Budget,
        out: &mut Leftover,
    ) -> Granted {
        let place = self.start(id, grant);
        self.busy[place].slot = at;
        let after = self.busy[place].size();
        if let Body::Done(done) = std::mem::replace(&mut self.table.slots[at].body, Body::Busy(place)) {
            self.resized(done.size(), after, budget);
            out.done = Some(done);
        }
        Granted::Yes { token: self.last_token, took_over: false }
    }

    /// An IN_PROGRESS record with a new token, not yet in a slot.
    fn start(&mut self, id: &Identity, grant: Grant) -> u32 {
        self.last_token += 1;
        let busy = Busy {
            key: Some(id.key().clone()),
            owner: grant.owner,
            token: self.last_token,
            expires: grant.expires,
            purge_after: grant.purge_after,
            slot: NONE,
            has_fingerprint: grant.has_fingerprint,
            ended: None,
        };
        self.busy_due = self.busy_due.min(busy.due());
        self.busy.insert(busy)
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
    #[inline]
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
        mut done: Done,
        budget: &Budget,
        out: &mut Leftover,
    ) -> Fenced {
        let owner = done.owner();
        let Some(at) = self.find(id, hash) else {
            out.done = Some(done);
            return Fenced::Lost;
        };
        let slot = &mut self.table.slots[at];
        let place = match &slot.body {
            Body::Busy(place) if self.busy[*place].owner == owner => *place,
            kept => {
                let own = matches!(kept, Body::Done(kept) if kept.owner() == owner);
                out.done = Some(done);
                return if own { Fenced::AlreadyDone } else { Fenced::Lost };
            }
        };
        done.set_token(self.busy[place].token);
        let (before, after, expires) = (self.busy[place].size(), done.size(), done.expires());
        (out.key, out.ended) = self.busy.remove(place);
        slot.body = Body::Done(done);
        // A slot that is filed already stood for a record whose time is over: it comes up soon and is filed again.
        if slot.timer == UNFILED {
            self.wheel.file(&mut self.table.slots, at, expires);
        }
        budget.expires(expires);
        self.resized(before, after, budget);
        Fenced::Done
    }

    /// Deletes the record that `owner` holds.
    #[inline]
    pub(super) fn release(
        &mut self,
        id: &Identity,
        hash: u32,
        owner: OwnerId,
        budget: &Budget,
        out: &mut Leftover,
    ) -> Fenced {
        let Some(at) = self.find(id, hash) else { return Fenced::AlreadyDone };
        match self.table.slots[at].body {
            Body::Busy(place) if self.busy[place].owner == owner => {
                *out = self.delete(at, budget);
                Fenced::Done
            }
            _ => Fenced::Lost,
        }
    }

    /// Takes a record out, whatever it is.
    fn delete(&mut self, at: u32, budget: &Budget) -> Leftover {
        self.scopes.leave(self.table.slots[at].scope);
        let mut out = Leftover::default();
        let body = match self.table.remove(at) {
            Body::Done(done) => {
                let size = done.size();
                out.done = Some(done);
                size
            }
            Body::Busy(place) => {
                let size = self.busy[place].size();
                (out.key, out.ended) = self.busy.remove(place);
                size
            }
        };
        self.bytes -= SLOT_BYTES + body;
        budget.free(&mut self.credit, SLOT_BYTES + body);
        out
    }

    fn resized(&mut self, before: u64, after: u64, budget: &Budget) {
        self.bytes = self.bytes + after - before;
        budget.resize(&mut self.credit, before, after);
    }

    /// Whether a record expired a tick ago or more: then a new one is a good moment to reclaim some.
    #[inline]
    pub(super) fn has_litter(&self, now: u64) -> bool {
        self.wheel.due().saturating_add(TICK) <= now
    }

    /// Takes COMPLETE records past their ttl out of whole ticks that are over, looking at `most` slots.
    pub(super) fn sweep_some(&mut self, now: u64, most: usize, budget: &Budget) -> Reclaimed {
        if self.wheel.due() != 0 {
            self.wheel.gather(&mut self.table.slots, now.saturating_sub(TICK));
        }
        let mut out = Reclaimed::new();
        self.sweep_ready(now, most, usize::MAX, budget, &mut out);
        out
    }

    /// Begins a full sweep of the wheel: what has expired by `now` is ready.
    pub(super) fn begin_sweep(&mut self, now: u64) {
        self.wheel.gather(&mut self.table.slots, now);
    }

    /// Looks at `most` slots that are ready, takes up to `limit` records out, and says whether there are more to look at.
    pub(super) fn sweep_ready(
        &mut self,
        now: u64,
        most: usize,
        limit: usize,
        budget: &Budget,
        out: &mut Reclaimed,
    ) -> bool {
        for _ in 0..most {
            if out.len() >= limit {
                return true;
            }
            let Some(at) = self.wheel.take(&mut self.table.slots) else { return false };
            let expires = match &self.table.slots[at].body {
                Body::Done(done) => done.expires(),
                // Free, or replaced by a grant: it is filed again when that is completed.
                Body::Busy(_) => continue,
            };
            if expires <= now {
                out.push(self.delete(at, budget));
            } else {
                self.wheel.file(&mut self.table.slots, at, expires);
            }
        }
        true
    }

    /// Looks at `most` places of IN_PROGRESS records from `from` on and takes out up to `limit` of those whose lease and
    /// ttl are both over (STO-4). Says where to go on, [`NONE`] at the end. A whole pass that starts with `from` zero
    /// and `due` [`u64::MAX`] leaves in `due` when the next of them may go.
    pub(super) fn sweep_busy(
        &mut self,
        now: u64,
        from: u32,
        due: &mut u64,
        (most, limit): (usize, usize),
        budget: &Budget,
        out: &mut Reclaimed,
    ) -> u32 {
        let end = self.busy.places();
        let mut at = from;
        for _ in 0..most {
            if at >= end {
                return NONE;
            }
            if out.len() >= limit {
                return at;
            }
            let busy = &self.busy[at];
            if busy.key.is_some() {
                if busy.due() <= now {
                    out.push(self.delete(busy.slot, budget));
                } else {
                    *due = (*due).min(busy.due());
                }
            }
            at += 1;
        }
        if at >= end { NONE } else { at }
    }

    pub(super) fn set_busy_due(&mut self, due: u64) {
        self.busy_due = due;
    }

    pub(super) fn busy_due(&self) -> u64 {
        self.busy_due
    }

    /// A time before which no record of this shard can be reclaimed.
    pub(super) fn due(&self) -> u64 {
        self.wheel.due().min(self.busy_due)
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
