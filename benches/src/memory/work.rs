// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measured work, and the contenders that do it: the memory store, a bare map as the floor,
//! dashmap as a peer.
//!
//! The floor and the peer do the least that an idempotency store could: records keyed by scope and
//! key, with an owner and a time that every call checks, and a shared value. Both have no bounds,
//! reclaim nothing, wake no waiters and issue no tokens. The memory store gets an [`Identity`],
//! which contains its hash. The floor and the peer get the scope and the key without a hash.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use retryproof::clock::Clock;
use retryproof::store::{AcquireRequest, Acquired, Completion, FencedWrite};
use retryproof::{Blob, IdempotencyStore, Identity, Key, MemoryStore, OwnerId, Scope};

use crate::compare::now;

pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const VALUE: usize = 200;
const SCOPE: &str = "payments.created";

/// The input of every contender, created once, because creating it is the caller's work and is not
/// measured.
pub(super) struct Ask {
    pub(super) request: AcquireRequest,
    pub(super) done: Completion,
}

impl Ask {
    /// Creates the input of a call that keeps [`VALUE`] bytes for `ttl` from the completion.
    pub(super) fn new(ttl: Duration) -> Self {
        let request = AcquireRequest::new(OwnerId::new(), DAY, ttl);
        Self { request, done: Completion::new(Blob::from(vec![7; VALUE]), ttl, None) }
    }
}

/// The work of a contender.
pub(super) trait Keeper: Sync {
    /// Runs a first execution: acquires and completes. Returns `false` if there was a record.
    fn execute(&self, item: &Item, ask: &Ask) -> bool;
    /// Runs a duplicate: reads the stored value and drops it. Returns `false` if there is none.
    fn replay(&self, item: &Item, ask: &Ask) -> bool;
}

/// A scope of 16 bytes and a key of 36.
pub(super) struct Item {
    pub(super) id: Identity,
    pub(super) pair: Pair,
}

/// The key of a record in the floor and the peers.
pub(super) type Pair = (Scope, Key);

pub(super) fn item(n: u64) -> Item {
    // This scope is built at run time, not from a literal, so it is reference-counted, like a scope
    // from a configuration.
    thread_local!(static MADE: Scope = Scope::new(SCOPE).expect("a valid scope"));
    let scope = MADE.with(Scope::clone);
    let key = Key::new(format!("{n:036}")).expect("a valid key");
    Item { id: Identity::new(scope.clone(), key.clone()), pair: (scope, key) }
}

pub(super) fn items(range: std::ops::Range<u64>) -> Vec<Item> {
    range.map(item).collect()
}

impl Keeper for MemoryStore {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let granted = pin!(self.acquire(&item.id, &ask.request)).poll(&mut context);
        matches!(granted, Poll::Ready(Ok(Acquired::Granted(_)))) && {
            let fenced =
                pin!(self.complete(&item.id, ask.request.owner, &ask.done)).poll(&mut context);
            matches!(fenced, Poll::Ready(Ok(FencedWrite::Applied)))
        }
    }

    fn replay(&self, item: &Item, ask: &Ask) -> bool {
        let answer = pin!(self.acquire(&item.id, &ask.request))
            .poll(&mut Context::from_waker(Waker::noop()));
        matches!(black_box(&answer), Poll::Ready(Ok(Acquired::Complete(_))))
    }
}

/// The clock of every contender: the host's, or one that stands still, so that only the rest of a
/// call is measured.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Time {
    still: Option<Instant>,
}

impl Time {
    pub(super) fn still() -> Self {
        Self { still: Some(now()) }
    }

    pub(super) fn store(self) -> MemoryStore {
        let builder = MemoryStore::builder().max_records(20_000_000).max_bytes(1 << 40);
        match self.still {
            Some(_) => builder.clock(Arc::new(self)).build(),
            None => builder.build(),
        }
    }

    fn now(self) -> Instant {
        self.still.unwrap_or_else(now)
    }
}

impl Clock for Time {
    fn now(&self) -> retryproof::clock::Instant {
        Time::now(*self).into()
    }
}

/// A record of the floor and the peers.
pub(super) struct Kept {
    owner: OwnerId,
    expires: Instant,
    value: Option<Blob>,
}

impl Kept {
    fn granted(ask: &Ask, time: Time) -> Self {
        Self { owner: ask.request.owner, expires: time.now() + ask.request.lease, value: None }
    }

    fn live(&self, time: Time) -> bool {
        self.expires > time.now()
    }

    fn complete(&mut self, ask: &Ask, time: Time) -> bool {
        if self.owner != ask.request.owner || self.value.is_some() {
            return false;
        }
        self.value = Some(Blob::from(ask.done.value.to_vec()));
        self.expires = time.now() + ask.done.ttl;
        true
    }

    fn replay(&self, time: Time) -> Option<Blob> {
        self.value.as_ref().filter(|_| self.live(time)).cloned()
    }
}

/// The floor: one map behind one mutex.
#[derive(Default)]
pub(super) struct Floor {
    map: Mutex<HashMap<Pair, Kept, OurHash>>,
    time: Time,
}

pub(super) type OurHash = foldhash::quality::RandomState;

impl Floor {
    pub(super) fn new(time: Time) -> Self {
        Self { time, ..Self::default() }
    }
}

impl Keeper for Floor {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        let Ok(mut map) = self.map.lock() else { return false };
        if map.get(&item.pair).is_some_and(|kept| kept.live(self.time)) {
            return false;
        }
        map.insert(item.pair.clone(), Kept::granted(ask, self.time));
        drop(map);
        let Ok(mut map) = self.map.lock() else { return false };
        map.get_mut(&item.pair).is_some_and(|kept| kept.complete(ask, self.time))
    }

    fn replay(&self, item: &Item, _ask: &Ask) -> bool {
        let Ok(map) = self.map.lock() else { return false };
        let value = map.get(&item.pair).and_then(|kept| kept.replay(self.time));
        drop(map);
        black_box(&value).is_some()
    }
}

/// A concurrent map with its default settings.
#[derive(Default)]
pub(super) struct Peer<S: BuildHasher + Clone = std::hash::RandomState> {
    map: DashMap<Pair, Kept, S>,
    time: Time,
}

impl<S: BuildHasher + Clone + Default> Peer<S> {
    pub(super) fn new(time: Time) -> Self {
        Self { time, ..Self::default() }
    }

    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        match self.map.entry(item.pair.clone()) {
            Entry::Occupied(kept) if kept.get().live(self.time) => return false,
            Entry::Occupied(mut kept) => drop(kept.insert(Kept::granted(ask, self.time))),
            Entry::Vacant(place) => drop(place.insert(Kept::granted(ask, self.time))),
        }
        self.map.get_mut(&item.pair).is_some_and(|mut kept| kept.complete(ask, self.time))
    }
}

/// An acquire has to be atomic, so a duplicate is recognised by `entry`, which needs an owned key.
impl Keeper for Peer {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        self.execute(item, ask)
    }

    fn replay(&self, item: &Item, ask: &Ask) -> bool {
        let value = match self.map.entry(item.pair.clone()) {
            Entry::Occupied(kept) => kept.get().replay(self.time),
            Entry::Vacant(place) => {
                place.insert(Kept::granted(ask, self.time));
                None
            }
        };
        black_box(&value).is_some()
    }
}

/// The peer with our hash, for a caller that expects a duplicate and only reads. This is the
/// fastest that a concurrent map can be.
pub(super) struct Reader(pub(super) Peer<OurHash>);

impl Keeper for Reader {
    fn execute(&self, item: &Item, ask: &Ask) -> bool {
        self.0.execute(item, ask)
    }

    fn replay(&self, item: &Item, _ask: &Ask) -> bool {
        let value = self.0.map.get(&item.pair).and_then(|kept| kept.replay(self.0.time));
        black_box(&value).is_some()
    }
}
